"""Two runs of one quantity over the seconds since each began, on one plot: painted curves that carry their names.

A name stands by its own curve where that is farthest from the other one. Numbers in, pixels out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, log10

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QPointF, QRect, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPen, QPolygonF

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
    """The end of a time axis that holds them all, s."""
    return 1.02 * max((float(run.times[-1]) for run in runs if len(run.times)), default=0.0) or 1.0


def ticks(end: float, most: int) -> list[float]:
    """Round values from 0 to `end`, at most so many."""
    step = next(s for s in _steps(end / most) if end / s < most)
    return [i * step for i in range(int(end / step) + 1)]


def draw(
    painter: QPainter, area: QRect, theme: Theme, runs: Sequence[Run], dots: bool, end: float, unit: str, top: float
) -> None:
    """`end`: of the time axis, s. `top`: of the other one, at least. `dots`: values stand for themselves; else each
    holds until the next."""
    small = theme.font("small")
    line = metrics(small).height()
    highest = max((float(run.values.max()) for run in runs if len(run.values)), default=1.0)
    levels = ticks(max(top, highest) or 1.0, 5)
    top = max(top, highest, levels[-1]) or 1.0
    words = [f"{level:,g}" for level in levels]
    words[-1] += f" {unit}" if unit else ""
    gutter = max(advance(small, word) for word in words) + theme.px(8)
    plot = QRect(area.left() + gutter, area.top() + line // 2, area.width() - gutter - theme.px(8), 0)
    plot.setBottom(area.bottom() - line - theme.px(6))
    if plot.height() < 2 * line or plot.width() < theme.px(80):
        return
    top *= 1 + (line / plot.height() if highest > 0.97 * top else 0.0)  # a name has room over the highest curve
    _axes(painter, theme, plot, [(level / top, word) for level, word in zip(levels, words, strict=True)], end)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    lines = [_Line(run, _x(plot, run.times, end), _y(plot, run.values, top), dots) for run in runs if len(run.times)]
    for one in lines:
        one.draw(painter, theme)
    for one in lines:
        one.write(painter, theme, plot, [other for other in lines if other is not one])


def _steps(least: float) -> Iterator[float]:
    """1, 2, 5, 10, 20, … from about `least` on."""
    decade = 10.0 ** floor(log10(least))
    while True:
        yield from (decade, 2 * decade, 5 * decade)
        decade *= 10


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
        bounds = QRectF(plot).adjusted(0, -high / 2, 0, 0)
        best, place = -1.0, QRectF(min(self.x[-1], plot.right() - wide), plot.top(), wide, high)
        gap = theme.px(8)
        boxes = self._beside(wide, high, gap, bounds) if self.dots else self._along(wide, high, gap, plot)
        for box in boxes:
            if not bounds.contains(box):
                continue
            others_far = min((other.distance(box) for other in others), default=_FAR)
            distance = min(others_far, self.distance(box)) if self.dots else others_far
            if distance > best + 2:
                best, place = distance, box
        return place

    def _along(self, wide: int, high: int, gap: int, plot: QRect) -> Iterator[QRectF]:
        """Over and under the curve."""
        for share in _PLACES:
            left = min(self.x[0] + share * (self.x[-1] - self.x[0]), plot.right() - wide)
            own = self._within(left - gap, left + wide + gap)
            yield QRectF(left, own.min() - high - gap, wide, high)
            yield QRectF(left, own.max() + gap, wide, high)

    def _beside(self, wide: int, high: int, gap: int, bounds: QRectF) -> Iterator[QRectF]:
        """Right of, left of and over its highest dots."""
        for place in np.argsort(self.y, kind="stable")[: len(_PLACES)]:
            x, y = float(self.x[place]), float(self.y[place])
            top = min(max(y - high / 2, bounds.top()), bounds.bottom() - high)
            yield QRectF(x + gap, top, wide, high)
            yield QRectF(x - gap - wide, top, wide, high)
            yield QRectF(x - wide / 2, y - gap - high, wide, high)

    def distance(self, box: QRectF) -> float:
        """Pixels from a box, `_FAR` at most; under 0 where it lies on the curve."""
        if self.dots:
            across = np.maximum(np.maximum(box.left() - self.x, self.x - box.right()), 0)
            down = np.maximum(np.maximum(box.top() - self.y, self.y - box.bottom()), 0)
            far = np.hypot(across, down).min()
        elif self.x[-1] < box.left() or self.x[0] > box.right():
            far = _FAR
        else:
            heights = self._within(box.left(), box.right())
            far = np.maximum(box.top() - heights, heights - box.bottom()).min()
        return float(min(_FAR, far)) if far > 0 else -0.5

    def _within(self, left: float, right: float) -> NDArray:
        """Heights of the curve in a stretch, corners and ends."""
        inside = self.y[(self.x >= left) & (self.x <= right)]
        ends = np.interp([left, right], self.x, self.y, left=np.nan, right=np.nan)
        found = np.concatenate([inside, ends[~np.isnan(ends)]])
        return found if len(found) else self.y[-1:]


def _x(plot: QRect, times: NDArray, end: float) -> NDArray:
    return plot.left() + times / end * plot.width()


def _y(plot: QRect, values: NDArray, top: float) -> NDArray:
    return plot.bottom() - values / top * plot.height()


def _axes(painter: QPainter, theme: Theme, plot: QRect, levels: Sequence[tuple[float, str]], end: float) -> None:
    """Faint lines at round levels (share of the height, words), round times below."""
    small, faint = theme.font("small"), theme.color("text_faint")
    line, wide = metrics(small).height(), theme.px(80)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
    for share, word in levels:
        y = plot.bottom() - round(share * plot.height())
        painter.fillRect(QRect(plot.left(), y, plot.width(), 1), theme.color("border"))
        write(painter, QRect(plot.left() - wide - theme.px(6), y - line // 2, wide, line), word, small, faint, RIGHT)
    times = ticks(end, 7)
    for time in times:
        x = plot.left() + round(time / end * plot.width())
        painter.fillRect(QRect(x, plot.bottom(), 1, theme.px(4)), theme.color("border"))
        word = f"{time:g} s" if time == times[-1] else f"{time:g}"
        write(painter, QRect(x - wide // 2, plot.bottom() + theme.px(4), wide, line), word, small, faint, CENTER)
