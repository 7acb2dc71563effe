"""One latency as a histogram: its percentiles in words above, its target as a line, the tail in the last bin."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QRect
from PySide6.QtGui import QPainter

from ui import explain
from ui.paint import histogram
from ui.paint.bars import BarStack, argb
from ui.paint.histogram import SteadyTop
from ui.paint.labels import RIGHT, write
from ui.views.painted import PaintedView

BINS = 30
FEW = 5  # samples under which a percentile is only a listing of them


class LatencyHistogram:
    """Draws one; keeps its scale steady between pictures. `token` is its colour, `words` its name."""

    def __init__(self, view: PaintedView, words: str, token: str, window: int):
        self._view, self._words, self._token, self._window = view, words, token, window
        self._bars, self._top = BarStack(), SteadyTop()

    def draw(self, painter: QPainter, area: QRect, values: NDArray, p50: float, p99: float, target: float) -> str:
        """`values` (samples,), percentiles and target in seconds. Returns what the mouse is told over it."""
        theme, line = self._view.theme, self._view.line()
        met = int(np.count_nonzero(values <= target))
        tip = (
            f"<p>{self._words} over the last {self._window} s: {explain.count(len(values), 'sample')}, "
            f"{met:,} within the target of {explain.duration(target)}</p>"
        )
        head = QRect(area.left(), area.top(), area.width(), line)
        self._draw_head(painter, head, values, p50, p99, met)
        axis = line if area.height() >= theme.px(80) else 0
        plot = QRect(area.left(), head.bottom() + theme.px(3), area.width(), area.height() - line - theme.px(5) - axis)
        if plot.height() < theme.px(14):
            return tip
        painter.setPen(theme.pen("border"))
        painter.drawLine(plot.left(), plot.bottom() + 1, plot.right(), plot.bottom() + 1)
        # the target belongs to the picture unless it would squeeze all that was measured into its corner
        tail = p99 if len(values) else target
        high = self._top.update(max(tail * 1.15, min(target * 1.25, tail * 3)))
        bar = max(2, plot.width() // BINS)
        bins = plot.width() // bar
        if len(values):
            counts = histogram.count(values, high, bins).astype(float)
            colors = [argb(theme.color(self._token))]
            picture = self._bars.render(counts[None, :], float(counts.max()), plot.height(), bar, 1, colors)
            painter.drawImage(plot.topLeft(), picture)
        self._draw_target(painter, plot, target, plot.left() + round(target / high * bins * bar))
        if axis:
            row = QRect(plot.left(), plot.bottom() + theme.px(2), bins * bar, line)
            faint = theme.color("text_faint")
            write(painter, row, "0", theme.font("small"), faint)
            write(painter, row, f"≥ {explain.duration(high)}", theme.font("small"), faint, RIGHT)
        return tip

    def _draw_head(self, painter: QPainter, head: QRect, values: NDArray, p50: float, p99: float, met: int) -> None:
        view, theme, words = self._view, self._view.theme, self._words
        small = theme.font("small")
        if not len(values):
            text = f"{words}  no sample in {self._window} s"
        elif len(values) < FEW:
            text = f"{words}  only {explain.count(len(values), 'sample')} yet"
        else:
            text = f"{words}  p50 {explain.duration(p50)} · p99 {explain.duration(p99)}"
            if view.advance(text) > head.width():
                text = f"{words} {explain.duration(p50)}"
        used = write(painter, head, text, small, theme.color("text"))
        share = f"{100 * met / len(values):.0f} % in time" if len(values) else ""
        if share and head.width() - used > view.advance(share) + theme.px(10):
            write(painter, head, share, small, theme.color("text_dim"), RIGHT)

    def _draw_target(self, painter: QPainter, plot: QRect, target: float, x: int) -> None:
        view, theme = self._view, self._view.theme
        label = f"target {explain.duration(target)}" if plot.width() >= theme.px(200) else explain.duration(target)
        if x > plot.right():
            x, label = plot.right(), f"{label} →"
        else:
            painter.setPen(theme.pen("target"))
            painter.drawLine(x, plot.top(), x, plot.bottom())
        width, gap = view.advance(label), theme.px(4)
        left = x + gap if x + width + gap <= plot.right() else x - width - gap
        if plot.height() >= view.line() + theme.px(6):
            spot = QRect(left, plot.top(), width + 1, view.line())
            painter.fillRect(spot.adjusted(-gap // 2, 0, gap // 2, 0), theme.color("panel", 0.7))  # over the bars
            write(painter, spot, label, theme.font("small"), theme.color("target"))
