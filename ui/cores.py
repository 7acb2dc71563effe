"""How much of a processor core the window's frames may take, beside an engine on the same machine. No Qt.

An engine that computes on the CPU keeps all its threads busy, and what a frame takes of their cores the engine loses.
So where no core is left over, frames take a fixed share of one core and become fewer, the dearer they are; the clock
sees to it that they don't fall under ten a second. With a core to spare, or while the engine rests, frames take what
they need.

Measured on 2 cores, 8 streams: frames at 50 a second took 0.26 of a core and left 0.81 of the engine's steps (5 pairs);
with this share, and records collected in twos, twelve a second take 0.11 and leave 0.92 (0.89–0.98, 10 pairs).
`servescope bench overhead` measures it again.
"""

from __future__ import annotations

import os

from engine.records import Ready, Status

CROWDED = 0.08  # of a core
FREE = 1.0


def cores() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def engine_cores(ready: Ready, count: int) -> int:
    """Cores that the engine keeps busy while it works, of `count`: one where a device or a cost model computes."""
    return (ready.config.threads or count) if ready.runner == "cpu" else 1


def frame_share(ready: Ready | None, status: Status, count: int) -> float:
    """Of one core, for frames. The window's own thread wants a core, so one must be left over."""
    rests = ready is None or status.idle or status.paused or status.delay > 0
    return FREE if rests or engine_cores(ready, count) < count else CROWDED
