"""Output tokens/s over the last minute, with a line at each change of a setting and what the last one did."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QRect
from PySide6.QtGui import QPainter

from ui import explain
from ui.history import Mark
from ui.latency import SECOND
from ui.paint.bars import argb
from ui.paint.histogram import SteadyTop
from ui.paint.labels import RIGHT, write
from ui.paint.timeplot import Curve, per_bin
from ui.views.mark_words import MarkWords, moments
from ui.views.painted import PaintedView

LEAST = 5  # s that the plot spans at least; a young history fills it
PER_SECOND = 2  # bins: long enough to hold some steps, short enough to show a change
LINES = 32  # marks drawn, the latest


class RatePlot:
    """Draws it; keeps its scale steady between pictures."""

    def __init__(self, view: PaintedView, window: int):
        self._view, self._window = view, window
        self._curve, self._top = Curve(), SteadyTop()
        self._words = MarkWords(view.context)

    def draw(self, painter: QPainter, area: QRect, mean: float) -> None:
        """`mean`: tokens/s over the window, for the words above the curve."""
        view, theme, line = self._view, self._view.theme, self._view.line()
        mirror, clock = view.context.mirror, view.context.cursor.clock
        small, faint = theme.font("small"), theme.color("text_faint")
        columns = mirror.history.since(clock - self._window * SECOND, clock)
        began = int(columns.clock[0]) if len(columns) else clock
        seconds = min(self._window, max(LEAST, -(-(clock - began) // SECOND)))
        since = clock - seconds * SECOND
        head = QRect(area.left(), area.top(), area.width(), line)
        used = write(painter, head, f"{explain.rate(mean)} tokens/s mean", small, theme.color("text"))
        marks = [m for m in mirror.history.marks if since <= m.clock <= clock]
        if marks:
            self._draw_around(painter, head.adjusted(used + theme.px(12), 0, 0, 0), moments(marks)[-1])
        plot = QRect(area.left(), head.bottom() + theme.px(4), area.width(), area.height() - 2 * line - theme.px(6))
        bins = seconds * PER_SECOND
        rates = per_bin(columns.end, columns.emitted.astype(float), since, clock, bins) * PER_SECOND
        top = self._top.update(float(rates.max(initial=1.0)) * 1.05)
        pixels = np.arange(plot.width())
        known = since + (pixels + 1) * ((clock - since) / plot.width()) >= began
        y = np.where(known, rates[pixels * bins // plot.width()], np.nan)
        colors = argb(theme.color("decode")), argb(theme.color("decode"), 0.25)
        painter.drawImage(plot.topLeft(), self._curve.render(y, top, plot.height(), *colors))
        painter.setPen(theme.pen("border"))
        painter.drawLine(plot.left(), plot.bottom() + 1, plot.right(), plot.bottom() + 1)
        painter.setPen(theme.pen("mark"))
        for mark in marks[-LINES:]:
            x = plot.left() + round((mark.clock - since) / (clock - since) * plot.width())
            painter.drawLine(x, plot.top(), x, plot.bottom())
        write(painter, QRect(plot.left(), plot.top(), plot.width(), line), f"{top:,.0f}", small, faint)
        row = QRect(plot.left(), plot.bottom() + theme.px(2), plot.width(), line)
        write(painter, row, f"−{seconds} s", small, faint)
        write(painter, row, "now" if view.context.cursor.is_live else "the shown moment", small, faint, RIGHT)

    def _draw_around(self, painter: QPainter, row: QRect, marks: list[Mark]) -> None:
        """'γ 4 → 8: 212 → 305 tok/s · TTFT 84 ms → 90 ms': what the last change did, as far as it fits."""
        view, theme = self._view, self._view.theme
        text = self._words.fitted(marks, row.width(), view.advance)
        write(painter, row, text, theme.font("small"), theme.color("mark"), RIGHT)
