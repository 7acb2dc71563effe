"""What the window costs at any scale: frames of the whole window over a simulated engine, the mouse in its pool all
the time, and what encoding and applying a record takes. No model; nothing here says how fast serving is.

Each scale is a process of its own (`window_simulated`). `--live` runs the real engine instead, under the built-in load.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

EXAMPLES = """example:
  servescope bench window --json
  servescope bench window --blocks 400000 --sequences 256 --steps 200 --recounts 10
  xvfb-run -s '-screen 0 1920x1080x24' servescope bench window --platform xcb --blocks 400000 --sequences 256
  servescope bench window --live 60 --size 1600x1000"""

LIMIT = 900.0  # s one scale may take


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from app.bench.window_load import DRAFTS

    parser.add_argument("--blocks", type=int, action="append", metavar="N", help="pool sizes (default 4000 and 400000)")
    parser.add_argument("--sequences", type=int, action="append", metavar="N", help="batches (default 16 and 256)")
    parser.add_argument("--steps", type=float, action="append", metavar="N",
                        help="steps a second (default 50 and 200)")  # fmt: skip
    parser.add_argument("--drafts", type=int, default=DRAFTS, metavar="N",
                        help="length of drafts, 0 for none (default %(default)s)")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S",
                        help="measured of each, once its pool is full (default 10)")  # fmt: skip
    parser.add_argument("--recounts", type=int, metavar="N",
                        help="keyframes, one every 100 steps, that the window of the largest run is compared with "
                        "after it was measured (default 10)")  # fmt: skip
    parser.add_argument("--size", default="1920x1080", metavar="WxH", help="of the window (default 1920x1080)")
    parser.add_argument("--platform", default="", metavar="NAME",
                        help="Qt's: offscreen, xcb, … (default: QT_QPA_PLATFORM, or offscreen)")  # fmt: skip
    parser.add_argument("--live", type=float, default=0.0, metavar="S",
                        help="the real engine under the built-in workload for S seconds, and nothing else")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from app.bench.runs import fresh_process
    from app.bench.window_load import Load
    from app.bench.window_simulated import Asked, words

    size = _checked(args)
    os.environ["QT_QPA_PLATFORM"] = args.platform or os.environ.get("QT_QPA_PLATFORM") or "offscreen"
    if args.live > 0:
        return _live(args, size)
    loads = [
        Load(blocks, sequences, steps, args.drafts)
        for blocks in args.blocks or [4_000, 400_000]
        for sequences in args.sequences or [16, 256]
        for steps in args.steps or [50.0, 200.0]
    ]
    largest = max(loads, key=lambda load: (load.blocks, load.sequences, load.steps_per_s))
    recounts = 10 if args.recounts is None else args.recounts
    runs = []
    for load in loads:
        asked = Asked(load, size, args.seconds, recounts if load is largest else 0)
        try:
            runs.append(fresh_process("app.bench.window_simulated", words(asked), timeout=LIMIT))
        except RuntimeError as error:
            print(f"servescope bench window: {load.blocks:,} blocks, {load.sequences} sequences, "
                  f"{load.steps_per_s:g} steps/s: {error}", file=sys.stderr)  # fmt: skip
            return 1
        if not args.json:
            print(_line(runs[-1]), flush=True)
    if args.json:
        print(json.dumps({"runs": runs}))
    return 0 if all(_right(one) for one in runs) else 1


def _checked(args: argparse.Namespace) -> tuple[int, int]:
    """The size. Raises UsageError."""
    from app.options import UsageError, pixels, within
    from engine.config import MAX_BATCH, MAX_DRAFT
    from engine.profiles import MOST_BLOCKS

    size = pixels("--size", args.size)
    for blocks in args.blocks or []:
        within("--blocks", blocks, 4, MOST_BLOCKS)
    for steps in args.steps or []:
        within("--steps", steps, 1, 10_000)
    within("--seconds", args.seconds, 0.1, LIMIT)
    within("--drafts", args.drafts, 0, MAX_DRAFT)
    within("--recounts", args.recounts, 0, 10_000)
    within("--live", args.live, 0, 24 * 3600)
    for sequences in args.sequences or []:
        within("--sequences", sequences, 1, MAX_BATCH)
        for blocks in args.blocks or [4_000]:
            if blocks < 4 * sequences:
                raise UsageError(f"--blocks {blocks}: too few for {sequences} sequences; give 4 for each or more")
    return size


def _right(one: dict) -> bool:
    """The window showed what the engine's structures hold, wherever it was compared."""
    return one.get("equal") == one.get("recounted") and not one.get("picture_pixels_wrong")


def _line(one: dict) -> str:
    text = (
        f"{one['blocks']:>8,} blocks {one['sequences']:>4} sequences {one['steps_per_s_reached']:>6.1f} steps/s, "
        f"simulated: frame {one['frame_ms_p50']:.1f} / {one['frame_ms_p99']:.1f} ms, "
        f"{one['frames_per_s']:.1f} frames/s, "
        f"encode {one['encode_us_p50']:.0f} / {one['encode_us_p99']:.0f} µs, "
        f"apply {one['apply_us_p50']:.0f} / {one['apply_us_p99']:.0f} µs (p50 / p99)"
    )
    if "recounted" in one:
        text += f"; {one['equal']} of {one['recounted']} recounts equal, {one['picture_pixels_wrong']} pixels wrong"
    return text


def _live(args: argparse.Namespace, size: tuple[int, int]) -> int:
    from app.bench import window_live

    one = window_live.measure(size, args.live)
    if args.json:
        print(json.dumps({"size": list(size), "live": [one]}))
    else:
        spent = f"frame {one['total_ms_p50']:g} / {one['total_ms_p99']:g} ms, {one['frames_per_s']:g} frames/s"
        print(f"real engine, built-in workload, {one['steps']:g} steps: {spent}")
    return 0
