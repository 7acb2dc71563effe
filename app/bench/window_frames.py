"""Frames of the whole window, all views in sight, while records come at a given pace. A part of `bench window`.

Records are made before the clock runs: the generator is no part of the window, and in the product records come from
another process.
"""

from __future__ import annotations

from time import perf_counter

from app.bench.synthetic_source import NoProbe, NoWorkload, SyntheticSource
from engine.records import Message

SETTLE = 2.0  # s before anything is counted: first layout, first paints


class PacedSource(SyntheticSource):
    """Releases records made beforehand at `rate` a second."""

    def __init__(self, blocks: int, sequences: int, rate: float, seconds: float):
        super().__init__(blocks, sequences)
        self.rate, self._started, self._released = rate, 0.0, 0
        self._ready = [self.world.next() for _ in range(int(rate * seconds))]

    def poll(self, limit: int = 0) -> list[Message]:
        first = super().poll()
        now = perf_counter()
        self._started = self._started or now
        due = min(len(self._ready), int((now - self._started) * self.rate))
        if limit:
            due = min(due, self._released + limit)
        records = self._ready[self._released : due]
        self._released = max(self._released, due)
        return first + records


def measure(
    blocks: int, sequences: int, size: tuple[int, int], rate: float = 200.0, seconds: float = 10.0
) -> dict[str, float]:
    """Frame times, ms, and frames really painted a second."""
    from PySide6.QtWidgets import QApplication

    from ui.window import Window

    source = PacedSource(blocks, sequences, rate, seconds + SETTLE)
    window = Window(source, NoWorkload(), NoProbe(), size=size, theme="dark", scale=1.0)
    window.show()
    _spin(QApplication.instance(), SETTLE)
    window.frames.clear()
    before, began = window.mirror.last_step, perf_counter()
    _spin(QApplication.instance(), seconds)
    spent, frames = perf_counter() - began, window.frames
    shown = sum(dock.view.isVisible() for dock in window.deck.docks.values())
    result = {"blocks": blocks, "sequences": sequences, "views_visible": shown}
    for part in ("total", "apply", "refresh", "paint"):
        for q in (50, 99):
            result[f"{part}_ms_p{q}"] = round(frames.percentile_ms(q, part), 3)
    result["frames_per_s"] = round(frames.count / spent, 1)
    result["steps_per_s"] = round((window.mirror.last_step - before) / spent, 1)
    window.clock.stop()
    window.close()
    return result


def _spin(application, seconds: float) -> None:
    end = perf_counter() + seconds
    while perf_counter() < end:
        application.processEvents()
