"""Where settings changed, over a plot of steps: a line, and above the plot what it was and what followed."""

from __future__ import annotations

from PySide6.QtCore import QRect
from PySide6.QtGui import QPainter

from ui.paint.labels import write
from ui.views.mark_words import FIGURES, MarkWords, moments
from ui.views.painted import PaintedView
from ui.views.step_axis import StepAxis

MOST = 64  # marks drawn, the latest


class StepMarks:
    """Draws the marks of the steps in view."""

    def __init__(self, view: PaintedView, axis: StepAxis):
        self._view, self._axis = view, axis
        self._words = MarkWords(view.context)

    def draw(self, painter: QPainter, plot: QRect, head: QRect, bottom: int, row: int) -> None:
        """A line where settings changed, broken where it would cross the words in `head`; above the bars what
        changed and, as far as there is room, the figures before and after. Labels that would overlap are left out."""
        view, theme = self._view, self._view.theme
        taken, gap = plot.right() + 1, theme.px(4)
        marks = [m for m in view.context.mirror.history.marks if self._axis.low <= m.step <= self._axis.high]
        groups = moments(marks[-MOST:])
        places = [self._axis.x(group[0].step) for group in groups]
        for index in range(len(groups) - 1, -1, -1):
            group, x = groups[index], places[index]
            painter.setPen(theme.pen("mark"))
            painter.drawLine(x, plot.top() - row, x, head.top() - 1)
            painter.drawLine(x, head.bottom() + 1, x, bottom)
            if not row:
                continue
            text = self._words.fitted(group, taken - x - 2 * gap, view.advance)
            start = x + gap
            if FIGURES not in text:  # too little room at its right: at its left, up to the change before
                edge, before = min(x, taken), places[index - 1] if index else plot.left()
                left = self._words.fitted(group, edge - before - 2 * gap, view.advance)
                if not text or FIGURES in left:
                    text, start = left, edge - gap - view.advance(left)
            if text:
                spot = QRect(start, plot.top() - row, view.advance(text) + 1, row)
                write(painter, spot, text, theme.font("small"), theme.color("mark"))
                taken = min(start, x) - gap
