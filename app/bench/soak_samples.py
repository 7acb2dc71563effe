"""What a soak samples: of both processes what the system says of them, of this one also what Python and Qt hold."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from pathlib import Path

from app.bench.soak_trend import Allowance

MIB = 1 << 20
# Units and what may come between the first and the last quarter of a run. Memory: what allocators and lazily read
# pages of libraries make of a steady load was up to some MiB; a leak of one record a step would be hundreds in an hour.
# Objects: 2 %, for what is being served at the moment is among them. Files, threads and timers: none may stay.
MEMORY = Allowance(8.0, 0.02)
QUANTITIES: dict[str, tuple[str, Allowance]] = {
    "window_rss": ("MiB", MEMORY),
    "window_anonymous": ("MiB", MEMORY),
    "engine_rss": ("MiB", MEMORY),
    "engine_anonymous": ("MiB", MEMORY),
    "window_files": ("files", Allowance(0)),
    "engine_files": ("files", Allowance(0)),
    "window_threads": ("threads", Allowance(0)),
    "engine_threads": ("threads", Allowance(0)),
    "python_threads": ("threads", Allowance(0)),
    "timers": ("timers", Allowance(0)),
    "qt_objects": ("objects", Allowance(8, 0.02)),
    "plot_items": ("items", Allowance(8, 0.02)),
    "gc_objects": ("objects", Allowance(2_000, 0.02)),
}


def process(pid: int) -> dict[str, float] | None:
    """rss and anonymous in MiB, open files, threads; None where the process is gone. Linux only.

    Anonymous pages are those that the process wrote itself. Its pages of libraries count as private only until another
    process maps them too, so a unique set size would tell of what else was started."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
        threads = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("Threads"))
        return {
            "rss": sizes["Rss"] / 1024,
            "anonymous": sizes["Anonymous"] / 1024,
            "files": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": int(threads.split()[1]),
        }
    except (OSError, StopIteration, KeyError, ValueError):
        return None


def objects(window) -> dict[str, float]:
    """Of this process: Qt's objects below the window and above it, timers that run, items of plots, Python's."""
    from PySide6.QtCore import QObject, QTimer
    from PySide6.QtWidgets import QApplication, QGraphicsView

    below = window.findChildren(QObject)
    return {
        "qt_objects": len(below) + len(QApplication.topLevelWidgets()),
        "timers": sum(isinstance(each, QTimer) and each.isActive() for each in below),
        "plot_items": sum(len(each.scene().items()) for each in below if isinstance(each, QGraphicsView)),
        "gc_objects": len(gc.get_objects()),
        "python_threads": threading.active_count(),
    }


def types() -> Counter[str]:
    """Python's objects that the collector follows, by type, after it ran."""
    gc.collect()
    return Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())


def grown(before: Counter[str], after: Counter[str], most: int = 12) -> dict[str, list[int]]:
    """The types that grew most: objects before and after."""
    more = sorted(((after[name] - before[name], name) for name in after), reverse=True)
    return {name: [before[name], after[name]] for count, name in more[:most] if count > 0}
