"""Output tokens/s over the last minute, with a line at each change of a setting and what the last one did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PySide6.QtCore import QRect
from PySide6.QtGui import QPainter

from ui import explain
from ui.history import Columns, Mark
from ui.latency import SECOND
from ui.paint.bins import per_bin
from ui.paint.histogram import SteadyTop
from ui.paint.labels import RIGHT, write
from ui.views.mark_words import MarkWords, moments
from ui.views.painted import PaintedView

if TYPE_CHECKING:
    from ui.paint.time_plot import TimePlot

LEAST = 5  # s that the plot spans at least; a young history fills it
PER_SECOND = 2  # bins: long enough to hold some steps, short enough to show a change
LINES = 32  # marks drawn, the latest


class RatePlot:
    """A plot inside `view`, with a row of words above it that the view paints."""

    def __init__(self, view: PaintedView, window: int):
        self._view, self._window = view, window
        self._top = SteadyTop()
        self._words = MarkWords(view.context)
        self._marks: list[Mark] = []
        self.plot: TimePlot | None = None

    @property
    def shown(self) -> bool:
        return self.plot is not None and not self.plot.isHidden()

    def restyle(self) -> None:
        if self.plot is None:
            return
        theme = self._view.theme
        self.plot.restyle(
            theme.pen("decode"), theme.color("decode", 0.25), theme.pen("border"), theme.color("text_faint"),
            theme.pen("mark"), theme.color("panel"), theme.font("small"),
        )  # fmt: skip

    def place(self, area: QRect | None) -> None:
        """`area` in the view, its first line for the words; None: no room."""
        if area is not None:
            plot = self.plot or self._build()
            plot.setGeometry(area.adjusted(0, self._view.line() + self._view.theme.px(4), 0, 0))
        if self.plot is not None:
            self.plot.setVisible(area is not None)

    def _build(self) -> TimePlot:
        # pyqtgraph takes a quarter of a second to read, which a window that has no room for the plot needn't wait for
        from ui.paint.time_plot import TimePlot

        self.plot = TimePlot(self._view)
        self.restyle()
        return self.plot

    def look(self) -> None:
        """Bring the curve and the lines up to the shown moment."""
        if self.plot is None or not self.shown:
            return
        mirror, clock = self._view.context.mirror, self._view.context.cursor.clock
        columns = mirror.history.since(clock - self._window * SECOND, clock)
        seconds = self._seconds(columns, clock)
        since = clock - seconds * SECOND
        rates = per_bin(columns.end, columns.emitted.astype(float), since, clock, seconds * PER_SECOND) * PER_SECOND
        self._marks = [m for m in mirror.history.marks if since <= m.clock <= clock]
        self.plot.show_steps(np.linspace(-seconds, 0.0, len(rates) + 1), rates)
        self.plot.show_range(seconds, self._top.update(float(rates.max(initial=1.0)) * 1.05))
        self.plot.show_lines([(group[0].clock - clock) / SECOND for group in moments(self._marks)[-LINES:]])

    def draw_words(self, painter: QPainter, row: QRect, mean: float) -> None:
        """'98 tokens/s mean', and what the last change did: 'γ 4 → 8: 212 → 305 tok/s', as far as it fits."""
        view, theme = self._view, self._view.theme
        small = theme.font("small")
        used = write(painter, row, f"{explain.rate(mean)} tokens/s mean", small, theme.color("text"))
        if self._marks:
            rest = row.adjusted(used + theme.px(12), 0, 0, 0)
            text = self._words.fitted(moments(self._marks)[-1], rest.width(), view.advance)
            write(painter, rest, text, small, theme.color("mark"), RIGHT)

    def _seconds(self, columns: Columns, clock: int) -> int:
        began = int(columns.clock[0]) if len(columns) else clock
        return min(self._window, max(LEAST, -(-(clock - began) // SECOND)))
