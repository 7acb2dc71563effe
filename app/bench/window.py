"""What the window's own work costs at any scale, against the synthetic stream: encoding and applying a record,
painting a frame of the pool and of the tables. No engine, no model; nothing here says how fast serving is.

Encoding happens in the engine's process and applying in the window's; both are timed here in one thread, each record
by itself. A frame is a refresh and a repaint that really puts pixels into the widget.
"""

from __future__ import annotations

import argparse
import json
import os
from time import perf_counter_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PySide6.QtWidgets import QWidget

    from ui.views.base import View

EXAMPLES = """example:
  servescope bench window --json
  servescope bench window --blocks 400000 --sequences 256 --size 1920x1080 --whole 10
  servescope bench window --frames 1 --live 60 --size 1600x1000"""

RECORDS_PER_FRAME = 3  # 200 steps/s at 60 frames/s
WARM_UP = 10  # frames; fonts, first layout and caches


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--blocks", type=int, action="append", metavar="N", help="pool sizes (default 4000 and 400000)")
    parser.add_argument("--sequences", type=int, action="append", metavar="N", help="batches (default 16 and 256)")
    parser.add_argument("--frames", type=int, default=150, metavar="N", help="frames measured of each (default 150)")
    parser.add_argument("--size", default="1920x1080", metavar="WxH", help="of the pool view (default 1920x1080)")
    parser.add_argument("--whole", type=float, default=0.0, metavar="S",
                        help="also run the whole window for S seconds at 200 steps/s")  # fmt: skip
    parser.add_argument("--live", type=float, default=0.0, metavar="S",
                        help="also run the real engine under the built-in workload for S seconds")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from app.options import UsageError

    try:
        width, height = (int(part) for part in args.size.lower().split("x"))
    except ValueError:
        raise UsageError(f"--size is WIDTHxHEIGHT, such as 1920x1080, not {args.size!r}") from None
    blocks, sequences = args.blocks or [4_000, 400_000], args.sequences or [16, 256]
    if min(*blocks, *sequences, args.frames, width, height) < 1:
        raise UsageError("blocks, sequences, frames and size must be 1 or more")
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    from PySide6.QtWidgets import QApplication

    application = QApplication.instance() or QApplication([])
    results = [_measure(n, b, args.frames, (width, height)) for n in blocks for b in sequences]
    application.processEvents()
    whole = []
    if args.whole > 0:
        from app.bench.window_frames import measure

        whole = [measure(max(blocks), max(sequences), (width, height), seconds=args.whole)]
    live = []
    if args.live > 0:
        from app.bench import window_live

        live = [window_live.measure((width, height), args.live)]
    if args.json:
        found = {"size": [width, height], "frames": args.frames, "results": results, "whole": whole, "live": live}
        print(json.dumps(found))
    else:
        for one in results:
            print(_line(one))
        for one in whole:
            print(f"whole window, {one['views_visible']} views, {one['steps_per_s']:g} steps/s: "
                  f"frame {one['total_ms_p50']:g} / {one['total_ms_p99']:g} ms, {one['frames_per_s']:g} frames/s")
        for one in live:
            print(f"real engine, built-in workload, {one['steps']:g} steps: "
                  f"frame {one['total_ms_p50']:g} / {one['total_ms_p99']:g} ms, {one['frames_per_s']:g} frames/s")
    return 0


def _measure(blocks: int, sequences: int, frames: int, size: tuple[int, int]) -> dict[str, float]:
    from app.bench.synthetic_source import NoProbe, NoWorkload, SyntheticSource
    from engine.records import StepRecord, decode, encode
    from ui.context import ViewContext
    from ui.cursor import Cursor
    from ui.mirror import Mirror
    from ui.selection import Selection
    from ui.theme import Theme
    from ui.views.pool import PoolView
    from ui.views.tables import TablesView

    source, mirror = SyntheticSource(blocks, sequences), Mirror()
    mirror.apply_all(source.poll())
    context = ViewContext(mirror, Cursor(mirror), Selection(), Theme(), source, NoWorkload(), NoProbe())
    views = {"pool": PoolView(context), "tables": TablesView(context)}
    hosts = [_shown(views["pool"], size), _shown(views["tables"], (max(1, size[0] // 3), max(1, size[1] // 2)))]
    times: dict[str, list[int]] = {"encode": [], "decode": [], "apply": [], "pool": [], "tables": []}
    sizes = []
    for _ in range(frames + WARM_UP):
        source.advance(RECORDS_PER_FRAME)
        kinds = None
        for record in source.poll():
            assert isinstance(record, StepRecord)
            start = perf_counter_ns()
            data = encode(record)
            encoded = perf_counter_ns()
            again = decode(data)
            decoded = perf_counter_ns()
            changed = mirror.apply(again)
            applied = perf_counter_ns()
            kinds = changed if kinds is None else kinds | changed
            sizes.append(len(data))
            times["encode"].append(encoded - start)
            times["decode"].append(decoded - encoded)
            times["apply"].append(applied - decoded)
        for name, view in views.items():
            start = perf_counter_ns()
            view.refresh(kinds)
            (view.canvas if isinstance(view, PoolView) else view.area.viewport()).repaint()
            times[name].append(perf_counter_ns() - start)
    result: dict[str, float] = {"blocks": blocks, "sequences": sequences, "record_bytes": sum(sizes) / len(sizes)}
    for name in ("encode", "decode", "apply"):
        result |= _percentiles(f"{name}_us", times[name][WARM_UP * RECORDS_PER_FRAME :], 1e3)
    for name in views:
        result |= _percentiles(f"{name}_frame_ms", times[name][WARM_UP:], 1e6)
    for host in hosts:
        host.close()
    return result


def _shown(view: View, size: tuple[int, int]) -> QWidget:
    """Shows the view; returns the window that has to be kept as long as it is shown."""
    from PySide6.QtWidgets import QApplication, QWidget

    from ui.changes import Kinds

    host = QWidget()  # without a layout: the offscreen platform warns of windows with size hints
    host.resize(*size)
    view.setParent(host)
    view.resize(*size)
    host.show()
    QApplication.processEvents()  # until it is exposed, a repaint paints nothing
    view.refresh(Kinds.ALL)
    return host


def _percentiles(name: str, spent: list[int], unit: float) -> dict[str, float]:
    ordered = sorted(spent)
    return {
        f"{name}_p50": round(ordered[len(ordered) // 2] / unit, 3),
        f"{name}_p99": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] / unit, 3),
    }


def _line(one: dict[str, float]) -> str:
    parts = [f"{one['blocks']:>8,} blocks {one['sequences']:>4} sequences"]
    for name, unit in (("encode_us", "µs"), ("apply_us", "µs"), ("pool_frame_ms", "ms"), ("tables_frame_ms", "ms")):
        parts.append(f"{name.split('_')[0]} {one[f'{name}_p50']:.4g} / {one[f'{name}_p99']:.4g} {unit}")
    return "   ".join(parts) + "   (p50 / p99)"

