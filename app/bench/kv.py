"""Measure what the KV pool and the scheduler cost a step, and what a prefix hit spares.

Two pools, a small and a large one, run the same steady load: many sequences at once, prefix cache on, every block
that none of them holds cached, so that whoever takes a block evicts another. `schedule_ms` is planning the step,
putting its outcome into the pool and handing the changes out; no model runs and no text is made. The rounds take the
pools in turns, each time in a fresh process. Then the model: prompts sent twice, cold and as a prefix hit, and the
times to their first tokens. Busy neighbours make p99 worse, so give it a quiet machine or a real-time priority.
"""

from __future__ import annotations

import argparse
import json
from statistics import median

from app.bench import kv_hit
from app.bench.answer import answered
from app.options import UsageError, add_engine_options, within

EXAMPLES = """examples:
  servescope bench kv --json
  servescope bench kv --gamma 0 --blocks 4000 --rounds 1 --no-model"""

NAME = "bench kv"
ROWS = 256
BLOCKS = (4_000, 400_000)
GAMMAS = (0, 4)
FINISH_WITHIN = 1800.0  # s, of one process
LEAST_EACH = 15  # blocks a sequence, so that nobody is preempted; they hold about 10
MOST_BLOCKS = 4_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("pool and scheduler")
    group.add_argument("--rows", type=int, default=ROWS, metavar="N", help=f"running sequences (default {ROWS})")
    group.add_argument(
        "--blocks", type=int, nargs="+", default=list(BLOCKS), metavar="N",
        help=f"sizes of pools to compare (default {' '.join(map(str, BLOCKS))})",
    )  # fmt: skip
    group.add_argument(
        "--gamma", type=int, nargs="+", default=list(GAMMAS), metavar="K",
        help=f"draft lengths; 0 = no speculation (default {' '.join(map(str, GAMMAS))})",
    )  # fmt: skip
    group.add_argument("--steps", type=int, default=1000, metavar="N", help="that count, of each (default 1000)")
    group.add_argument("--rounds", type=int, default=3, metavar="R", help="repeats, pools in turns (default 3)")
    group.add_argument("--json", action="store_true", help="print one JSON object")
    kv_hit.add_arguments(parser)
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    _check(args)
    return 1 if answered(NAME, args, measure, _in_words) is None else 0


def measure(args: argparse.Namespace) -> dict:
    """Raises EngineFailed."""
    result = _summary(args, _rounds(args))
    return result | kv_hit.measure(args, NAME) if args.model_too else result


def _check(args: argparse.Namespace) -> None:
    from engine.config import MAX_BATCH, MAX_DRAFT

    within("--rows", args.rows, 1, MAX_BATCH)
    for blocks in args.blocks:
        within("--blocks", blocks, 1, MOST_BLOCKS)
        if blocks < (least := max(256, LEAST_EACH * args.rows)):
            raise UsageError(f"--blocks {blocks}: {args.rows} sequences need {least:,} or more; or lower --rows")
    for gamma in args.gamma:
        within("--gamma", gamma, 0, MAX_DRAFT)
    within("--steps", args.steps, 1, 1_000_000)
    within("--rounds", args.rounds, 1, 1000)
    kv_hit.check(args)


def _rounds(args: argparse.Namespace) -> list[list[dict]]:
    """Of each round, one answer a pool, the smallest first. Raises EngineFailed."""
    from app.bench.runs import fresh_process
    from app.headless import EngineFailed, tell

    sizes, rounds = sorted(set(args.blocks)), []
    for number in range(args.rounds):
        tell(NAME, f"round {number + 1} of {args.rounds}")
        jobs = [{"blocks": size, "gammas": args.gamma, "rows": args.rows, "steps": args.steps} for size in sizes]
        try:
            rounds.append([fresh_process("engine.kv_times", json.dumps(job), timeout=FINISH_WITHIN) for job in jobs])
        except RuntimeError as error:
            raise EngineFailed(f"no step could be measured: {error}") from None
    return rounds


def _summary(args: argparse.Namespace, rounds: list[list[dict]]) -> dict:
    """The pools' figures; those at the top are of the largest pool, at the γ where they are worst."""
    from app.bench.runs import summary

    loads = [_load(pool, gamma) for pool in zip(*rounds, strict=True) for gamma in range(len(args.gamma))]
    largest = [load for load in loads if load["blocks"] == max(args.blocks)]
    last = [answers[-1] for answers in rounds]
    ratios = [
        median(large["us"]) / median(small["us"])
        for answers in rounds
        if len(answers) > 1
        for small, large in zip(answers[0]["loads"], answers[-1]["loads"], strict=True)
    ]
    return {
        "schedule_ms_p50": max(load["schedule_ms_p50"] for load in largest),
        "schedule_ms_p99": max(load["schedule_ms_p99"] for load in largest),
        "alloc_free_us": round(median(answer["alloc_free_us"] for answer in last), 3),
        "lookup_us_per_block": round(median(answer["lookup_us_per_block"] for answer in last), 3),
        "size_ratio": summary(ratios) if ratios else None,
        "rows": args.rows,
        "block_size": last[0]["block_size"],
        "steps": args.steps,
        "rounds": args.rounds,
        "loads": loads,
    }


def _load(answers: tuple[dict, ...], index: int) -> dict:
    """One pool's steps at one γ, all rounds together."""
    import numpy as np

    loads = [answer["loads"][index] for answer in answers]
    p50, p99 = np.percentile([us / 1e3 for load in loads for us in load["us"]], [50, 99]).tolist()
    parts = loads[0]["parts_ms"]
    return {
        "blocks": answers[0]["blocks"],
        "gamma": loads[0]["gamma"],
        "schedule_ms_p50": round(p50, 4),
        "schedule_ms_p99": round(p99, 4),
        "parts_ms": {name: round(median(load["parts_ms"][name] for load in loads), 4) for name in parts},
        **{name: round(median(load[name] for load in loads), 2) for name in ("running", "drafted", "ended", "evicted")},
    }


def _in_words(result: dict) -> str:
    lines = [f"{result['rows']} sequences, blocks of {result['block_size']} tokens, prefix cache on"]
    for load in result["loads"]:
        parts = ", ".join(f"{name} {ms:.3f}" for name, ms in load["parts_ms"].items())
        lines.append(
            f"{load['blocks']:,} blocks, γ {load['gamma']}: {load['schedule_ms_p50']:.3f} ms a step p50, "
            f"{load['schedule_ms_p99']:.3f} p99 ({parts}); {load['ended']:g} ended and {load['evicted']:g} blocks "
            "evicted a step"
        )
    if ratio := result["size_ratio"]:
        lines.append(f"largest ÷ smallest pool {ratio['median']:.2f} ({ratio['min']:.2f}–{ratio['max']:.2f})")
    lines.append(
        f"a block taken and let go of {result['alloc_free_us']} µs; hashed and found {result['lookup_us_per_block']} µs"
    )
    return "\n".join(lines + kv_hit.in_words(result))
