"""One latency as a histogram: its percentiles in words above, its target as a line, the tail in the last bin.

What missed the target is drawn paler, so that the share in time is seen and not only read.
"""

from __future__ import annotations

from typing import NamedTuple

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
_MISSED = 0.45  # of the colour in what missed the target
FEW = 5  # samples under which a percentile is only a listing of them


class Chosen(NamedTuple):
    """The selected sequence's own figure, seconds."""

    seq: int
    value: float


class LatencyHistogram:
    """Draws one; keeps its scale steady between pictures. `token` is its colour, `words` its name."""

    def __init__(self, view: PaintedView, words: str, token: str, window: int):
        self._view, self._words, self._token, self._window = view, words, token, window
        self._bars, self._top = BarStack(), SteadyTop()

    def draw(
        self, painter: QPainter, area: QRect, values: NDArray, p50: float, p99: float, target: float,
        chosen: Chosen | None = None,
    ) -> str:  # fmt: skip
        """`values` (samples,), percentiles and target in seconds; `chosen` is the selected sequence's own.
        Returns what the mouse is told over it."""
        theme, line = self._view.theme, self._view.line()
        met = int(np.count_nonzero(values <= target))
        tip = (
            f"<p>{self._words} over the last {self._window} s: {explain.count(len(values), 'sample')}, "
            f"{met:,} within the target of {explain.duration(target)}</p>"
        )
        head = QRect(area.left(), area.top(), area.width(), line)
        self._draw_head(painter, head, values, p50, p99, met, chosen)
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
            parts = [histogram.count(some, high, bins) for some in (values[values <= target], values[values > target])]
            counts = np.stack(parts).astype(float)
            colors = [argb(theme.color(self._token)), argb(theme.mix(self._token, _MISSED))]
            most = float(counts.sum(axis=0).max())
            painter.drawImage(plot.topLeft(), self._bars.render(counts, most, plot.height(), bar, 1, colors))
        scale = bins * bar / high
        row = QRect(plot.left(), plot.bottom() + theme.px(2), bins * bar, line if axis else 0)
        if chosen is not None:
            self._draw_chosen(painter, plot, chosen, plot.left() + round(chosen.value * scale))
        self._draw_target(painter, plot, row, target, plot.left() + round(target * scale), high)
        return tip

    def _draw_head(
        self, painter: QPainter, head: QRect, values: NDArray, p50: float, p99: float, met: int, chosen: Chosen | None
    ) -> None:
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
        share, token = f"{100 * met / len(values):.0f} % in time" if len(values) else "", "text_dim"
        if chosen is not None:
            own, token = f"seq {chosen.seq}: {explain.duration(chosen.value)}", "text"
            both = f"{own} · {share}"
            share = both if used + view.advance(both) + theme.px(10) < head.width() else own
        if share and head.width() - used > view.advance(share) + theme.px(10):
            write(painter, head, share, small, theme.color(token), RIGHT)

    def _draw_target(self, painter: QPainter, plot: QRect, row: QRect, target: float, x: int, high: float) -> None:
        """A line, its value in the row under the axis; the ends of the axis give way to it."""
        view, theme, gap = self._view, self._view.theme, self._view.theme.px(8)
        small, faint = theme.font("small"), theme.color("text_faint")
        label, inside = f"target {explain.duration(target)}", x <= plot.right()
        if inside:
            painter.setPen(theme.pen("target"))
            painter.drawLine(x, plot.top(), x, plot.bottom() + theme.px(3))
        else:
            x, label = plot.right(), f"{label} →"
        if not row.height():
            return
        width = view.advance(label)
        left = min(max(row.left(), x - width // 2), row.right() - width)
        write(painter, QRect(left, row.top(), width + 1, row.height()), label, small, theme.color("target"))
        if view.advance("0") + gap <= left - row.left():
            write(painter, row, "0", small, faint)
        end = f"≥ {explain.duration(high)}"
        if left + width + gap + view.advance(end) <= row.right():
            write(painter, row, end, small, faint, RIGHT)

    def _draw_chosen(self, painter: QPainter, plot: QRect, chosen: Chosen, x: int) -> None:
        """Where the selected sequence stands: a line in its hue with a foot on the axis."""
        theme, x = self._view.theme, min(x, plot.right() - 1)
        wide = theme.px(2)
        painter.fillRect(QRect(x - wide // 2, plot.top(), wide, plot.height()), theme.sequence_color(chosen.seq))
        foot = QRect(x - 2 * wide, plot.bottom() - wide, 4 * wide, 2 * wide)
        painter.fillRect(foot, theme.color("selection"))
