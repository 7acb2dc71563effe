"""What looking on costs the engine: steps a second with the window open, minimised and frozen, against headless.

One engine serves a steady load, and observers take turns at it in one process beside it, so that the engine is the
same in all of them. Headless is a loop that reads the same pipe and decodes the same records 60 times a second, while
no timer of the window runs; the engine encodes and sends in every arm. Each of the others stands between two headless
segments, and its ratio is to the mean of these two: what drifts falls out. A frozen window is its process stopped.

Three loads: `cpu` is the default model on the CPU, where engine and window share the cores; `simulated` a card's load
in virtual time, as fast as scheduler and pool allow, so that no cost can hide in a step's sleep; `paced` the same at a
given rate, where the cost shows as steps that begin late.

Last, for each engine, a long freeze: the steps of that time against those of the same time before it, with all the
work queued before, and whether the window is right again after it wakes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from statistics import mean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.bench.observed import Job
    from app.bench.watched import Segment, Watched

EXAMPLES = """examples:
  servescope bench overhead --pairs 10 --json
  servescope bench overhead --engines cpu --pairs 5 --frozen 0"""

ENGINES = ("cpu", "simulated", "paced")
ARMS = ("open", "hidden", "frozen")
PROFILE = "h200:smollm2-135m"
CPU_LENGTHS, SIMULATED_LENGTHS = (256, 768), (3000, 8000)  # new tokens of a request
CPU_BLOCKS = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=10, metavar="N", help="of each arm with headless (default 10)")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="of a segment (default 3)")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="loads (default all)")
    parser.add_argument("--frozen", type=float, default=30.0, metavar="S",
                        help="seconds of the long freeze, and before it; 0 = none (default 30)")  # fmt: skip
    parser.add_argument("--streams", type=int, default=8, metavar="N", help="requests at once on the CPU (default 8)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="of the CPU engine (default: its own)")
    parser.add_argument("--blocks", type=int, default=400_000, metavar="N", help="of the simulated pool")
    parser.add_argument("--sequences", type=int, default=256, metavar="N", help="requests at once, simulated")
    parser.add_argument("--rate", type=float, default=200.0, metavar="N", help="steps/s of paced (default 200)")
    parser.add_argument("--size", default="1600x1000", metavar="WxH", help="of the window")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from app.bench.runs import BenchFailed

    size = _checked(args)
    figures: dict[str, object] = {"pairs": args.pairs, "seconds": args.seconds, "size": args.size}
    try:
        for engines in (["cpu"], [one for one in ENGINES[1:] if one in args.engines]):
            if set(engines) & set(args.engines):
                figures |= _watch(_job(engines[0], args, size), engines, args)
    except BenchFailed as error:
        print(f"servescope bench overhead: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(figures))
    else:
        for key, figure in figures.items():
            print(f"{key:<38}{figure}")
    return 0


def _checked(args: argparse.Namespace) -> tuple[int, int]:
    """The size. Raises UsageError."""
    from app.options import MOST_THREADS, pixels, within
    from engine.config import MAX_BATCH
    from engine.profiles import MOST_BLOCKS

    within("--pairs", args.pairs, 1, 10_000)
    within("--seconds", args.seconds, 0.1, 3600)
    within("--frozen", args.frozen, 0, 3600)
    within("--streams", args.streams, 1, MAX_BATCH)
    within("--threads", args.threads, 0, max(MOST_THREADS, os.cpu_count() or 1))
    within("--sequences", args.sequences, 1, MAX_BATCH)
    within("--blocks", args.blocks, 1, MOST_BLOCKS)
    within("--rate", args.rate, 1, 10_000)
    return pixels("--size", args.size)


def _job(engine: str, args: argparse.Namespace, size: tuple[int, int]) -> Job:
    from app.bench.observed import Job
    from engine.config import EngineConfig, LiveSettings, Simulation

    if engine == "cpu":
        settings = LiveSettings(max_batch=args.streams, draft_length=0, kv_blocks=max(CPU_BLOCKS, 64 * args.streams))
        return Job(EngineConfig(device="cpu", threads=args.threads, settings=settings), CPU_LENGTHS, size)
    longest = 8192  # tokens of a context
    settings = LiveSettings(
        max_batch=args.sequences, draft_length=0, kv_blocks=max(args.blocks, longest // 16), max_context=longest
    )
    simulation = Simulation(profile=PROFILE, paced=False)
    return Job(EngineConfig(simulation=simulation, settings=settings), SIMULATED_LENGTHS, size)


def _watch(job: Job, engines: list[str], args: argparse.Namespace) -> dict[str, object]:
    """All figures of one engine, under one or two paces."""
    from app.bench.watched import Watched

    figures: dict[str, object] = {}
    with Watched(job) as watched:
        figures[f"{engines[0]}_engine"] = f"{watched.said['model']}, {watched.said['device']}"
        for engine in engines:
            watched.period = round(1e9 / args.rate) if engine == "paced" else 0
            figures |= _figures(engine, *_turns(watched, args.pairs, args.seconds))
            if args.frozen:
                figures |= {f"{engine}_{key}": figure for key, figure in frozen(watched, args.frozen).items()}
    return figures


Frames = dict[str, list[float]]


def _turns(watched: Watched, pairs: int, seconds: float) -> tuple[list[Segment], Frames]:
    """Segments in the order in which they were: headless, an arm, headless, an arm, … each as often as `pairs`."""
    for arm in ("open", "hidden", "headless"):  # first paints, and the keyframe of a window that saw nothing yet
        watched.segment(arm, seconds)
    found, frames = [watched.segment("headless", seconds)], defaultdict(list)
    for pair in range(pairs):
        for arm in ARMS if pair % 2 == 0 else reversed(ARMS):
            found.append(watched.segment(arm, seconds))
            if arm == "open":
                for key, figure in watched.frames().items():
                    frames[key].append(figure)
            found.append(watched.segment("headless", seconds))
    return found, frames


def ratios(found: list[Segment]) -> dict[str, list[float]]:
    """Of each arm the steps a second, over the mean of the headless segments before and after."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for before, segment, after in zip(found, found[1:], found[2:], strict=False):
        if segment.arm != "headless":
            ratios[segment.arm].append(segment.steps_per_s / mean((before.steps_per_s, after.steps_per_s)))
    return dict(ratios)


def _figures(engine: str, found: list[Segment], frames: Frames) -> dict[str, object]:
    from app.bench.runs import interval

    figures: dict[str, object] = {}
    for arm, values in ratios(found).items():
        figures[f"{engine}_{arm}_ratio"] = round(median(values), 3)
        figures[f"{engine}_{arm}_ratio_interval"] = [round(edge, 3) for edge in interval(values)]
    for arm in ("headless", *ARMS):
        of_arm = [segment for segment in found if segment.arm == arm]
        for key, digits in (("steps_per_s", 1), ("tokens_per_s", 1), ("window_cpu", 3), ("engine_cpu", 3),
                            ("engine_ms_per_step", 3)):  # fmt: skip
            figures[f"{engine}_{arm}_{key}"] = round(median([getattr(s, key) for s in of_arm]), digits)
        if engine == "paced":
            for key in ("late_p50", "late_p99"):
                late = [getattr(segment, key) for segment in of_arm]
                figures[f"{engine}_{arm}_{key}_ms"] = round(median(late), 3)
                figures[f"{engine}_{arm}_{key}_ms_interval"] = [round(edge, 3) for edge in interval(late)]
    figures |= {f"{engine}_open_{key}": round(median(values), 2) for key, values in frames.items()}
    figures[f"{engine}_starved_segments"] = sum(segment.starved for segment in found)
    return figures


def frozen(watched: Watched, seconds: float) -> dict[str, object]:
    """The window open for so long, then its process stopped for as long: steps of the one ÷ steps of the other, what
    the window was told when it woke, and in what it then differs from a fresh keyframe."""
    watched.fill(2 * seconds + 5)
    before = watched.segment("open", seconds)
    during = watched.segment("frozen", seconds)
    awake = watched.awake()
    seen = watched.order("check")
    return {
        "frozen_steps_ratio": round(during.steps_per_s / before.steps_per_s, 3),
        "frozen_seconds": seconds,
        "frozen_starved": before.starved or during.starved,
        "frozen_awake_s": round(awake, 2),
        "frozen_gaps": seen["gaps"],
        "frozen_differs": seen["differing"],
    }
