"""Whether the simulation's cost model is one: fitted to the real engine at a few batches, does it predict others?

One engine is started and decodes batches of random prompts, round by round. From the step times at batches 1, 4 and 32,
and at 4 with a long context too, come a bandwidth, an arithmetic rate, one of attention and an overhead
(`engine.cost_model.fit`): the profile of this machine, measured on the spot. With these the cost model predicts the
throughput at 2, 8 and 16, and at a context that the fit has never seen; the error of each is told, whatever it is.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import TYPE_CHECKING

from app.options import UsageError, add_engine_options, engine_config, within

if TYPE_CHECKING:
    from engine.cost_model import Counts, Rates, StepWork

EXAMPLES = """examples:
  servescope bench calibrate
  servescope bench calibrate --rounds 5 --json"""

NAME = "bench calibrate"
FITTED = (1, 4, 32)  # streams
PREDICTED = (2, 8, 16)
LONG = 4  # streams of the fitted load in which attention weighs
ELSEWHERE = (2, 8)  # streams at the other context
ALLOWED = 0.20  # of the measured throughput, that a prediction may be off by
SPARE_BLOCKS = 16
BUDGET = 4096  # tokens a step: all prompts of a load are computed before the first stream ends


@dataclass(frozen=True)
class Case:
    """`context`: tokens of each prompt."""

    streams: int
    context: int


class Steps:
    """Decode steps of one load in which all streams took part: what each was by the cost model, and its seconds."""

    def __init__(self, streams: int, counted: Counts):
        self.works: list[StepWork] = []
        self.seconds: list[float] = []
        self._streams, self._counts = streams, counted

    def see(self, message: object, _answers: object = None) -> None:
        from engine import records as r

        if not isinstance(message, r.StepRecord):
            return
        rows = r.unpack(message.rows, r.ROW)
        if len(rows) == self._streams and (rows["scheduled"] == 1).all():
            self.works.append(self._counts.work(rows["scheduled"], rows["context"], len(rows)))
            self.seconds.append(message.timing.total / 1e9)

    def middle(self) -> tuple[StepWork, float]:
        """The work and the time of the median step: a neighbour's burst on this machine is no property of it."""
        place = sorted(range(len(self.seconds)), key=self.seconds.__getitem__)[len(self.seconds) // 2]
        return self.works[len(self.works) // 2], self.seconds[place]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument("--rounds", type=int, default=3, metavar="N", help="times each batch is measured (default 3)")
    group.add_argument("--context", type=int, default=64, metavar="P", help="tokens of a prompt (default 64)")
    group.add_argument("--other-context", type=int, default=512, metavar="P",
                       help="of the prompts at which it must hold too (default 512)")  # fmt: skip
    group.add_argument("--long-context", type=int, default=1024, metavar="P",
                       help="of the prompts that attention's rate is fitted to (default 1024)")  # fmt: skip
    group.add_argument("--new-tokens", type=int, default=24, metavar="M", help="steps of each load (default 24)")
    group.add_argument("--json", action="store_true", help="print one JSON object")
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    from app.headless import EngineFailed, tell

    ranges = {"rounds": (1, 100), "new_tokens": (8, 512)}
    contexts = dict.fromkeys(("context", "other_context", "long_context"), (8, 4096))
    for option, (low, high) in (ranges | contexts).items():
        within(f"--{option.replace('_', '-')}", getattr(args, option), low, high)
    if len({args.context, args.other_context, args.long_context}) < 3:
        raise UsageError("--context, --other-context and --long-context must differ: the fit may not see the second")
    try:
        found = measure(args)
    except EngineFailed as failure:
        tell(NAME, str(failure))
        return 1
    print(json.dumps(found) if args.json else in_words(found))
    return 0


def cases(context: int, other: int, long: int) -> list[Case]:
    near = [Case(streams, context) for streams in (*FITTED, *PREDICTED)] + [Case(LONG, long)]
    return near + [Case(streams, other) for streams in ELSEWHERE]


def measure(args: argparse.Namespace) -> dict:
    from app.bench.engine import WARM_UP, requests
    from app.headless import EngineFailed, running, serve

    wanted = cases(args.context, args.other_context, args.long_context)
    measured: dict[Case, list[tuple[StepWork, float]]] = {case: [] for case in wanted}
    with running(_config(args), NAME) as client:
        model, device = client.ready.model, client.ready.device
        assert client.ready.roof is not None
        counted = client.ready.roof.counts
        first = 0
        serve(client, requests(1, *WARM_UP, model.vocabulary, first=10_000_000), NAME)
        for round_ in range(args.rounds):
            for case in list(measured) if round_ % 2 == 0 else list(measured)[::-1]:
                steps = Steps(case.streams, counted)
                asked = requests(case.streams, case.context, args.new_tokens, model.vocabulary, first=first)
                first += case.streams
                serve(client, asked, NAME, steps.see)
                if not steps.seconds:
                    raise EngineFailed(f"{case.streams} streams never decoded together; raise --new-tokens")
                measured[case].append(steps.middle())
    times = {case: (rounds[0][0], median(seconds for _, seconds in rounds)) for case, rounds in measured.items()}
    return judged(times, fitted(args.context, args.long_context)) | {
        "rounds": args.rounds, "model": model.name, "dtype": model.dtype, "device": device,
    }  # fmt: skip


def fitted(context: int, long: int) -> list[Case]:
    return [*(Case(streams, context) for streams in FITTED), Case(LONG, long)]


def judged(times: dict[Case, tuple[StepWork, float]], known: list[Case]) -> dict:
    """Fit the steps of the cases `known`, predict all."""
    from engine.cost_model import fit

    rates: Rates = fit([times[case] for case in known])
    rows = []
    for case, (work, seconds) in times.items():
        predicted, real = case.streams / rates.seconds(work), case.streams / seconds
        rows.append({
            "streams": case.streams, "context": case.context,
            "fitted": case in known,
            "measured_tokens_per_s": round(real, 2), "predicted_tokens_per_s": round(predicted, 2),
            "error": round(predicted / real - 1, 4), "intensity": round(work.intensity, 2),
        })  # fmt: skip
    worst = max(abs(row["error"]) for row in rows if not row["fitted"])
    return {
        "bandwidth_gb_per_s": _giga(rates.bandwidth),
        "gflops": _giga(rates.flops),
        "attention_gb_per_s": _giga(rates.attention),
        "overhead_ms": round(1e3 * rates.overhead, 3),
        "worst_error": round(worst, 4),
        "within": ALLOWED,
        "holds": worst <= ALLOWED,
        "cases": rows,
    }


def _giga(rate: float) -> float | None:
    """None: it bound no step of the fit, so that nothing is known of it."""
    return round(rate / 1e9, 2) if isfinite(rate) else None


def _config(args: argparse.Namespace):
    import msgspec

    from app.fitting import fit, given
    from engine.formulas import blocks_for

    longest = max(args.context, args.other_context, args.long_context) + args.new_tokens + 1
    config = engine_config(args)
    size = config.block_size
    most = max(
        max(FITTED) * blocks_for(args.context + args.new_tokens + 1, size),
        max(ELSEWHERE) * blocks_for(longest, size),
    )
    mine = {"max_batch": max(FITTED), "max_context": max(16, longest), "kv_blocks": most + SPARE_BLOCKS,
            "draft_length": 0, "prefix_cache": False, "token_budget": BUDGET}  # fmt: skip
    free = {key: value for key, value in mine.items() if key not in given(args.set)}
    settings = msgspec.structs.replace(config.settings, **free)
    return fit(msgspec.structs.replace(config, settings=settings), given(args.set) | set(mine))


def in_words(found: dict) -> str:
    rates = {"bandwidth_gb_per_s": "bandwidth {} GB/s", "gflops": "products {} GFLOP/s",
             "attention_gb_per_s": "attention {} GB/s"}  # fmt: skip
    unknown = "? (no limit in these steps)"
    figures = {key: unknown if found[key] is None else f"{found[key]:g}" for key in rates}
    told = [words.format(figures[key]) for key, words in rates.items()]
    lines = [
        f"{found['model']} ({found['dtype']}) on {found['device']}: {', '.join(told)}, "
        f"{found['overhead_ms']:g} ms a step"
    ]
    for row in found["cases"]:
        kind = "fitted   " if row["fitted"] else "predicted"
        lines.append(
            f"{kind} {row['streams']:>3} streams, prompts of {row['context']:>4}: "
            f"{row['predicted_tokens_per_s']:>8.1f} tok/s by the model, {row['measured_tokens_per_s']:>8.1f} measured, "
            f"{row['error']:+.1%}"
        )
    verdict = "holds" if found["holds"] else "does not hold"
    lines.append(f"worst prediction {found['worst_error']:.1%} off; within {found['within']:.0%}: {verdict}")
    return "\n".join(lines)
