"""Two runs of one quantity over the seconds since each began, on one plot: painted curves that carry their names.

A name stands by its own curve where that is farthest from the other one. Numbers in, pixels out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QPointF, QRect, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPen, QPolygonF

from ui.paint.histogram import nice
from ui.paint.labels import CENTER, RIGHT, advance, metrics, put, write
from ui.theme import Theme

_PLACES = np.linspace(0.04, 0.9, 24)  # of a curve's length, where its name may stand
_FAR = 90.0  # pixels; farther apart is no better


@dataclass(frozen=True)
class Run:
    """`times` rise. `colour`: of the curve and its name."""

    name: str
    times: NDArray[np.float64]
    values: NDArray[np.float64]
    colour: QColor


def span(runs: Sequence[Run]) -> float:
    """The end of a time axis that holds them all."""
    return nice(max((float(run.times[-1]) for run in runs if len(run.times)), default=1.0))


def draw(painter: QPainter, area: QRect, theme: Theme, runs: Sequence[Run], dots: bool, end: float, unit: str) -> None:
    """`end`: of the time axis, s. `dots`: values stand for themselves; else each holds until the next."""
    small = theme.font("small")
    line = metrics(small).height()
    top = nice(max((float(run.values.max()) for run in runs if len(run.values)), default=1.0) * 1.08)
    ticks = [f"{value:,.0f}" if top >= 10 or not value else f"{value:g}" for value in (top, top / 2, 0.0)]
    ticks[0] += f" {unit}" if unit else ""
    gutter = max(advance(small, tick) for tick in ticks) + theme.px(8)
    plot = QRect(area.left() + gutter, area.top() + line // 2, area.width() - gutter - theme.px(12), 0)
    plot.setBottom(area.bottom() - line - theme.px(6))
    if plot.height() < 2 * line or plot.width() < theme.px(80):
        return
    _axes(painter, theme, plot, ticks, end)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    lines = [_Line(run, _x(plot, run.times, end), _y(plot, run.values, top), dots) for run in runs if len(run.times)]
    for one in lines:
        one.draw(painter, theme)
    for one in lines:
        one.write(painter, theme, plot, [other for other in lines if other is not one])


class _Line:
    """One run in pixels."""

    def __init__(self, run: Run, x: NDArray, y: NDArray, dots: bool):
        self.run, self.dots = run, dots
        if dots or len(x) < 2:
            self.x, self.y = x, y
        else:  # a value holds until the next: a corner before each
            self.x, self.y = np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]

    def draw(self, painter: QPainter, theme: Theme) -> None:
        width = theme.px(2)
        if self.dots or len(self.x) < 2:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(self.run.colour)
            radius = theme.px(4) if len(self.x) <= 64 else theme.px(2)
            for x, y in zip(self.x.tolist(), self.y.tolist(), strict=True):
                painter.drawEllipse(QPointF(x, y), radius, radius)
            return
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setPen(QPen(self.run.colour, width, Qt.PenStyle.SolidLine, Qt.PenCapStyle.FlatCap))
        painter.drawPolyline(QPolygonF([QPointF(x, y) for x, y in zip(self.x.tolist(), self.y.tolist(), strict=True)]))

    def at(self, x: NDArray) -> NDArray:
        """Heights there; NaN beyond its ends."""
        return np.interp(x, self.x, self.y, left=np.nan, right=np.nan)

    def write(self, painter: QPainter, theme: Theme, plot: QRect, others: Sequence[_Line]) -> None:
        box = self.place(theme, plot, others)
        put(painter, int(box.left()), int(box.top()), int(box.height()), self.run.name, theme.font("strong"),
            self.run.colour)  # fmt: skip

    def place(self, theme: Theme, plot: QRect, others: Sequence[_Line]) -> QRectF:
        """Where the name stands: by the curve, where that is farthest from the others."""
        font = theme.font("strong")
        wide, high = advance(font, self.run.name), metrics(font).height()
        best, place = -1.0, QRectF()
        for share in _PLACES:
            left = min(self.x[0] + share * (self.x[-1] - self.x[0]), plot.right() - wide)
            xs = np.linspace(left, left + wide, 9)
            own = self._within(left, left + wide, xs)
            for above in (True, False):
                edge = own.min() - high - theme.px(6) if above else own.max() + theme.px(6)
                if not plot.top() - high / 2 <= edge <= plot.bottom() - high:
                    continue
                box = QRectF(left, edge, wide, high)
                distance = min((_distance(other, box, xs) for other in others), default=_FAR)
                if distance > best + 2:
                    best, place = distance, box
        if best < 0:
            place = QRectF(min(self.x[-1], plot.right() - wide), plot.top(), wide, high)
        return place

    def _within(self, left: float, right: float, xs: NDArray) -> NDArray:
        """Heights of the curve in a stretch; all of them, so that a name crosses none."""
        inside = self.y[(self.x >= left) & (self.x <= right)]
        between = self.at(xs)
        found = np.concatenate([inside, between[~np.isnan(between)]])
        return found if len(found) else self.y[-1:]


def _distance(other: _Line, box: QRectF, xs: NDArray) -> float:
    """Pixels between a name and another curve, under 0 where it lies on it; `_FAR` at most."""
    heights = other._within(box.left(), box.right(), xs)
    if other.x[-1] < box.left() or other.x[0] > box.right():
        return _FAR
    gap = np.maximum(box.top() - heights, heights - box.bottom()).min()
    return float(min(_FAR, gap)) if gap > 0 else -0.5


def _x(plot: QRect, times: NDArray, end: float) -> NDArray:
    return plot.left() + times / end * plot.width()


def _y(plot: QRect, values: NDArray, top: float) -> NDArray:
    return plot.bottom() - values / top * plot.height()


def _axes(painter: QPainter, theme: Theme, plot: QRect, ticks: Sequence[str], end: float) -> None:
    """Three levels and four times; the lines are faint and the figures small."""
    small, faint = theme.font("small"), theme.color("text_faint")
    line = metrics(small).height()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
    for share, tick in zip((0.0, 0.5, 1.0), ticks, strict=True):
        y = plot.top() + round(share * plot.height())
        painter.fillRect(QRect(plot.left(), y, plot.width(), 1), theme.color("border"))
        write(
            painter, QRect(plot.left() - theme.px(200), y - line // 2, theme.px(194), line), tick, small, faint, RIGHT
        )
    for part in range(5):
        x = plot.left() + round(part / 4 * plot.width())
        word = f"{end * part / 4:g}" + (" s" if part == 4 else "")
        where = CENTER if part < 4 else RIGHT
        wide = theme.px(80)
        left = x - wide // 2 if part < 4 else x - wide + theme.px(10)
        write(painter, QRect(left, plot.bottom() + theme.px(4), wide, line), word, small, faint, where)
