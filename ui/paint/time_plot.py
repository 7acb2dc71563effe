"""A quantity over time on pyqtgraph: a filled step curve, vertical lines, two axes. Built once and reused.

PlotItems leak under PySide6 when they are thrown away, so the curve, the axes and every line ever needed are kept
and moved. Ranges are set by the caller, never found by the plot; the mouse is left to whoever holds it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import Qt
from PySide6.QtGui import QBrush, QColor, QFont, QFontMetrics, QPen
from PySide6.QtWidgets import QWidget

_INSIDE = 0.9999  # of a range


class TimePlot(pg.PlotWidget):
    """Seconds along x, 0 = now; anything from 0 up along y."""

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self.setMenuEnabled(False)
        self.setMouseEnabled(False, False)
        self.hideButtons()
        self.setFrameShape(pg.QtWidgets.QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.getViewBox().setDefaultPadding(0.0)
        # two edges around one value: pyqtgraph can't draw a step curve without any
        self._curve = pg.PlotCurveItem(
            np.array([-1.0, 0.0]), np.zeros(1), stepMode="center", fillLevel=0.0, skipFiniteCheck=True
        )
        self.addItem(self._curve)
        self._lines: list[pg.InfiniteLine] = []
        self._mark_pen = QPen()

    def restyle(
        self, line: QPen, fill: QBrush | QColor, axis: QPen, words: QColor, mark: QPen, back: QColor, font: QFont
    ) -> None:
        metrics = QFontMetrics(font)
        self.setBackground(back)
        self._curve.setPen(line)
        self._curve.setBrush(fill)
        for name in ("left", "bottom"):
            edge = self.getAxis(name)
            edge.setPen(axis)
            edge.setTextPen(words)
            edge.setTickFont(font)
            # pixels that a label may reach beyond the axis: those at the ends are the ones that count
            edge.setStyle(tickLength=-3, hideOverlappingLabels=4 * metrics.height())
        self.getAxis("left").setWidth(metrics.horizontalAdvance("99,999") + 6)
        half = metrics.horizontalAdvance("now") // 2 + 1
        self.getPlotItem().setContentsMargins(0, metrics.height() // 2, half, 0)
        self._mark_pen = mark
        for one in self._lines:
            one.setPen(mark)

    def show_steps(self, edges: NDArray[np.float64], values: NDArray[np.float64]) -> None:
        """`values` (n) between `edges` (n + 1)."""
        self._curve.setData(edges, values)

    def show_range(self, seconds: float, top: float) -> None:
        self.setRange(xRange=(-seconds, 0.0), yRange=(0.0, top), padding=0)
        # a tick on the very edge is lost to rounding: pyqtgraph leaves out what it takes to lie beyond
        # and the floor is 0 without a word, which would stand on that of the other axis's end
        self.getAxis("left").setTicks([[(_INSIDE * top, f"{top:,.0f}")]])
        ends = [(-_INSIDE * seconds, f"−{seconds:.0f} s"), (-seconds / 2, f"−{seconds / 2:g} s"), (0.0, "now")]
        self.getAxis("bottom").setTicks([ends])

    def show_lines(self, at: Sequence[float]) -> None:
        """A vertical line at each of these times."""
        while len(self._lines) < len(at):
            one = pg.InfiniteLine(angle=90, pen=self._mark_pen)
            self.addItem(one)
            self._lines.append(one)
        for one, x in zip(self._lines, at, strict=False):
            one.setPos(x)
            one.show()
        for one in self._lines[len(at) :]:
            one.hide()

    @property
    def lines(self) -> list[float]:
        """Where the lines stand that are shown."""
        return [one.x() for one in self._lines if one.isVisible()]
