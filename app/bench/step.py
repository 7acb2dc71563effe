"""Measure where a decode step's time goes, at several batch sizes, and how near it comes to what the machine can.

The parts of a step are schedule, prepare (laying the batch out), forward, sample and record; forward by op where the
weights are packed. The roofline: time to read the weights once and the keys and values of all contexts, as fast as all
threads read so many bytes again and again, or time of the products with weights at the rate that the threads reach,
whichever is more. CPU only. Medians over the steps; busy neighbours make a step slower, so give it a quiet machine or
a real-time priority.
"""

from __future__ import annotations

import argparse
import json

from app.bench.answer import answered
from app.options import UsageError, add_engine_options, engine_config, within

EXAMPLES = """examples:
  servescope bench step
  servescope bench step --streams 8 --prompt-tokens 512 --json
  servescope bench step --dtype bfloat16 --threads 1"""

NAME = "bench step"
STREAMS = (1, 8, 32)
FINISH_WITHIN = 3600.0  # s
SPARE = 16  # tokens a stream beyond what is measured: those that settle, and those that wait for the last to start
MOST_BUDGET = 2048  # tokens a step


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is measured")
    group.add_argument(
        "--streams", type=int, nargs="+", default=list(STREAMS), metavar="N",
        help=f"requests decoding at once, one number or more (default {' '.join(map(str, STREAMS))})",
    )  # fmt: skip
    group.add_argument("--prompt-tokens", type=int, default=32, metavar="P", help="of each stream (default 32)")
    group.add_argument("--steps", type=int, default=64, metavar="N", help="decode steps that count (default 64)")
    group.add_argument("--json", action="store_true", help="print one JSON object")
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    if args.device == "cuda":
        raise UsageError("--device cuda: the bench measures the CPU")
    if args.set:
        raise UsageError(f"--set {args.set[0]}: the bench chooses the settings itself")
    return 1 if answered(NAME, args, measure, _in_words) is None else 0


def measure(args: argparse.Namespace) -> dict:
    """Have a process of its own run the steps. Raises EngineFailed and UsageError."""
    import msgspec

    from app.bench.runs import fresh_process
    from app.headless import EngineFailed, tell
    from engine.config import MAX_BATCH

    for count in args.streams:
        within("--streams", count, 1, MAX_BATCH)
    within("--prompt-tokens", args.prompt_tokens, 1, 1_000_000)
    within("--steps", args.steps, 1, 100_000)
    job = {
        "config": msgspec.to_builtins(_config(args)),
        "streams": args.streams,
        "prompt_tokens": args.prompt_tokens,
        "steps": args.steps,
    }
    tell(NAME, f"{args.steps} steps of {', '.join(map(str, args.streams))} streams")
    try:
        answer = fresh_process("engine.step_times", json.dumps(job), timeout=FINISH_WITHIN)
    except RuntimeError as error:
        raise EngineFailed(f"no step could be measured: {error}") from None
    if "problem" in answer:
        raise EngineFailed(answer["problem"])
    return _rounded(answer)


def _config(args: argparse.Namespace):
    """Room for all streams at once; neither drafts nor shared prefixes."""
    import msgspec

    from engine.config import LiveSettings

    most = max(args.streams)
    context = args.prompt_tokens + args.steps + SPARE + 2 * most
    config = engine_config(args)
    blocks = most * -(-context // config.block_size)
    settings = LiveSettings(
        max_batch=most,
        max_context=context,
        kv_blocks=2 * blocks,
        token_budget=max(most, min(most * args.prompt_tokens, MOST_BUDGET), 64),
        draft_length=0,
        draft_method="off",
        prefix_cache=False,
    )
    return msgspec.structs.replace(config, device="cpu", settings=settings)


def _rounded(answer: dict) -> dict:
    """As measured, with no more digits than mean something."""
    for key in ("memory_bytes_per_s", "products_per_s"):
        answer[key] = round(answer[key])
    for batch in answer["batches"]:
        for key in ("parts_ms", "forward_ms"):
            batch[key] = {name: round(value, 4) for name, value in batch[key].items()}
        for key, value in batch.items():
            if isinstance(value, float):
                batch[key] = round(value, 4)
    return answer


def _in_words(result: dict) -> str:
    lines = [
        f"{result['model']}, {result['dtype']}, {result['device']}: prompts of {result['prompt_tokens']} tokens, "
        f"medians of {result['steps']} decode steps",
        f"this machine reads {result['memory_bytes_per_s'] / 1e9:.1f} GB/s from memory and makes "
        f"{result['products_per_s'] / 1e9:.0f} billion products a second",
    ]
    batches = result["batches"]
    lines.append(_row("streams", [str(batch["streams"]) for batch in batches]))
    lines.append(_row("step, ms", [f"{batch['step_ms']:.2f}" for batch in batches]))
    for name in batches[0]["parts_ms"]:
        lines.append(_row(f"  {name}", [_part(batch["parts_ms"][name], batch["step_ms"]) for batch in batches]))
        if name == "forward" and len(batches[0]["forward_ms"]) > 1:
            for op in batches[0]["forward_ms"]:
                parts = [_part(batch["forward_ms"][op], batch["step_ms"]) for batch in batches]
                lines.append(_row(f"    {op}", parts))
    lines.append(_row("read, MB", [f"{batch['bytes'] / 1e6:.1f}" for batch in batches]))
    lines.append(_row("at most, GB/s", [f"{batch['bytes_per_s'] / 1e9:.1f}" for batch in batches]))
    lines.append(_row("least forward, ms", [f"{batch['ceiling_ms']:.2f} {batch['bound']}" for batch in batches]))
    lines.append(_row("of the roofline", [f"{batch['fraction']:.0%}" for batch in batches]))
    return "\n".join(lines)


def _part(ms: float, whole: float) -> str:
    return f"{ms:.3f} {ms / whole:4.0%}"


def _row(name: str, cells: list[str]) -> str:
    return f"{name:<20}" + "".join(f"{cell:>18}" for cell in cells)
