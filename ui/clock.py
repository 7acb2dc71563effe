"""The only timer of the window. Knows when a frame is due and what frames cost, not what is in them.

60 times a second it calls `on_frame(draw)`. Frames whose painting takes longer than a frame's time are paid back by
half: the next ones still collect records, but with `draw` False, so that input and other work keep their share. Where
frames have only a share of a core, they are paid back by as much as that share asks for, which never makes them fewer
than ten a second; and records are collected half as often, for two at once are cheaper than one by one. Out of sight
they are collected ten times a second.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns, thread_time_ns

import numpy as np
from PySide6.QtCore import QObject, Qt, QTimer

FRAME_NS = 16_666_667
_KEPT = 4096  # frames, about a minute
# Debt is capped so that one slow frame (a first paint, a resize) doesn't freeze the picture for long.
_MOST_DEBT = 4 * FRAME_NS
_SLOWEST_NS = 96_000_000  # between two drawn frames that a share puts apart: ten a second, and a little more
# ms of the timer. Beside an engine on every core each turn of the window finds cold caches: at 48 ms a record cost it
# 0.57 ms in all, at 16 ms 0.80.
_ALWAYS, _SHARING, _UNSEEN = 16, 32, 96


class FrameStats:
    """What the last frames cost, ns: `apply` records, `refresh` views, `paint` pixels."""

    def __init__(self, kept: int = _KEPT):
        self._costs = np.zeros((kept, 3), np.int64)
        self._at = np.zeros(kept, np.int64)  # when the frame's painting ended
        self.count = 0  # frames that put pixels on the window, since the start or the last clear()
        self.skipped = 0  # frames that only collected records

    def add(self, apply: int, refresh: int, paint: int) -> None:
        index = self.count % len(self._costs)
        self._costs[index] = apply, refresh, paint
        self._at[index] = perf_counter_ns()
        self.count += 1

    def clear(self) -> None:
        self.count = self.skipped = 0

    def costs(self) -> np.ndarray:
        """(frames, 3): apply, refresh, paint of the frames kept, ns."""
        return self._costs[: min(self.count, len(self._costs))]

    def percentile_ms(self, q: float, part: str = "total") -> float:
        """Milliseconds; `part`: apply, refresh, paint or total. NaN before the first frame."""
        costs = self.costs()
        if not len(costs):
            return float("nan")
        values = costs.sum(axis=1) if part == "total" else costs[:, ("apply", "refresh", "paint").index(part)]
        return float(np.percentile(values, q)) / 1e6

    def rate(self) -> float:
        """Frames really painted a second, over the frames kept."""
        count = min(self.count, len(self._at))
        if count < 2:
            return 0.0
        span = int(self._at[:count].max() - self._at[:count].min())
        return (count - 1) / span * 1e9 if span else 0.0


class FrameClock(QObject):
    """Calls back once a frame while started.

    Attributes:
        stats: what frames cost.
        share: of a core, that frames may take: see `ui.cores`.
    """

    def __init__(self, on_frame: Callable[[bool], tuple[int, int] | None], parent: QObject | None = None):
        super().__init__(parent)
        self._on_frame = on_frame
        self.stats = FrameStats()
        self._pending: tuple[int, int] | None = None  # apply and refresh cost of the frame that waits for its paint
        self.share = 1.0
        self._turn = FRAME_NS  # from one tick to the next, ns
        self._debt = 0
        self._drawn_at = 0  # ns
        self._busy = 0  # processor time of the frame that waits for its paint, ns
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.setInterval(_ALWAYS)
        self._timer.timeout.connect(self.tick)

    @property
    def running(self) -> bool:
        return self._timer.isActive()

    def pace(self, share: float, seen: bool) -> None:
        """The share of a core that frames may take, and whether anybody sees them."""
        self.share = share
        interval = _UNSEEN if not seen else _ALWAYS if share == 1 else _SHARING
        if interval != self._timer.interval():
            self._timer.setInterval(interval)
            self._turn = FRAME_NS * interval // _ALWAYS

    def start(self) -> None:
        self._timer.start()

    def stop(self) -> None:
        self._timer.stop()

    def tick(self) -> None:
        """One frame. `on_frame` returns (apply ns, refresh ns), or None if nothing was drawn; it may draw unasked."""
        now, begun = perf_counter_ns(), thread_time_ns()
        # ticks that come late count by their time
        draw = self._debt <= 0 or now - self._drawn_at >= _SLOWEST_NS
        cost = self._on_frame(draw)
        if cost is not None:
            self._pending, self._drawn_at, self._busy = cost, now, thread_time_ns() - begun
        if not draw and cost is None:
            self._debt -= self._turn
            self.stats.skipped += 1

    def painted(self, nanoseconds: int, busy: int = 0) -> None:
        """The window has put pixels on its surface; tells what that took, and the processor time of that."""
        apply, refresh = self._pending or (0, 0)
        if self._pending is None:
            return  # a repaint that no frame asked for: an exposed corner, a hovered button
        self._pending = None
        self.stats.add(apply, refresh, nanoseconds)
        cost = apply + refresh + nanoseconds
        self._drawn_at = max(self._drawn_at, perf_counter_ns() - FRAME_NS)
        self._debt = min(_MOST_DEBT, max(0, cost - FRAME_NS) // 2)
        if self.share < 1:
            # by processor time: what others took of the core meanwhile is no cost of the frame's
            self._debt = max(self._debt, round(min(_SLOWEST_NS, (self._busy + busy) / self.share)) - self._turn)
