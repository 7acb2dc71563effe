"""One histogram of block times on a logarithmic axis, and the axis that all of them share."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QPoint, QRect
from PySide6.QtGui import QPainter, QPolygon

from ui import explain, log_bins
from ui.paint.labels import CENTER, RIGHT, write
from ui.views.painted import PaintedView

FEWEST_DECADES = 3


@dataclass(frozen=True)
class Axis:
    """Bins low..high lie between two pixels; what is beyond is counted at the ends."""

    low: int
    high: int
    left: int
    width: int
    below: bool = False  # something took less than the axis shows: it is counted in the first bin

    @classmethod
    def of(cls, counts: NDArray, left: int, width: int) -> Axis:
        """Whole decades around everything counted, but for what took no time: it has no place on such an axis."""
        found = np.flatnonzero(counts[1:-1])
        ends = (found[0], found[-1]) if len(found) else (2 * log_bins.PER_DECADE, 2 * log_bins.PER_DECADE)
        first, last = (int(end) // log_bins.PER_DECADE for end in ends)
        while last - first + 1 < FEWEST_DECADES:
            if last < log_bins.HIGHEST - log_bins.LOWEST - 1:
                last += 1
            if last - first + 1 < FEWEST_DECADES and first > 0:
                first -= 1
        low = first * log_bins.PER_DECADE + 1
        return cls(low, (last + 1) * log_bins.PER_DECADE + 1, left, width, bool(counts[:low].any()))

    def x(self, place: float) -> int:
        """Of the edge where a bin begins."""
        return self.left + round((place - self.low) * self.width / (self.high - self.low))

    def x_of(self, seconds: float) -> int:
        if seconds <= 0:
            return self.left
        place = (math.log10(seconds) - log_bins.LOWEST) * log_bins.PER_DECADE + 1
        return self.x(min(max(place, self.low), self.high))

    def bin_at(self, x: int) -> int:
        return min(self.high - 1, max(self.low, self.low + (x - self.left) * (self.high - self.low) // self.width))

    def folded(self, counts: NDArray) -> NDArray:
        """The bins between, those beyond added to the first and the last."""
        inside = counts[..., self.low : self.high].copy()
        inside[..., 0] += counts[..., : self.low].sum(axis=-1)
        inside[..., -1] += counts[..., self.high :].sum(axis=-1)
        return inside

    def decades(self) -> list[tuple[int, str]]:
        """Where a power of ten stands, and its words."""
        powers = range((self.low - 1) // log_bins.PER_DECADE, (self.high - 1) // log_bins.PER_DECADE + 1)
        ticks = [(self.x(p * log_bins.PER_DECADE + 1), tick(p + log_bins.LOWEST)) for p in powers]
        return [(ticks[0][0], f"≤ {ticks[0][1]}"), *ticks[1:]] if self.below else ticks

    def range_words(self, index: int) -> str:
        """'1.2 s to 1.5 s', of a bin on the axis."""
        high = explain.duration(log_bins.edge(index + 1))
        if index == self.low and self.below:
            return f"at most {high}"
        return f"{explain.duration(log_bins.edge(index))} to {high}"


def tick(power: int) -> str:
    """'10 ms', '1 s', '1,000 s'."""
    if power <= -4:
        return "0.1 ms"
    return f"{10 ** (power + 3)} ms" if power < 0 else f"{10**power:,} s"


def draw_axis(painter: QPainter, view: PaintedView, axis: Axis, row: QRect, top: int) -> None:
    """Decades as faint lines from `top` down, and their words in `row`, as many as have room."""
    theme, small = view.theme, view.theme.font("small")
    edge, last = row.left(), row.right()
    for x, words in axis.decades():
        x = min(x, axis.left + axis.width - 1)
        painter.setPen(theme.pen("border"))
        painter.drawLine(x, top, x, row.top() - 1)
        wide = view.advance(words)
        left = min(max(row.left(), x - wide // 2), last - wide)
        if left >= edge:
            write(painter, QRect(left, row.top(), wide + 2, row.height()), words, small, theme.color("text_faint"))
            edge = left + wide + theme.px(8)


@dataclass(frozen=True)
class Shown:
    """What one histogram draws.

    `counts` (parts, bins) are the window's, lowest part first, in `tokens`' colours; `session` (bins,) everything's.
    `value` and `words`: the middle of the window's, where it is marked and how; NaN without any.
    `own`: the selected block's, in seconds, and its words; `empty`: said in the place of bars.
    """

    counts: NDArray
    session: NDArray
    tokens: tuple[tuple[str, float], ...]  # a colour and how much of it
    value: float
    words: str
    empty: str = ""
    own: tuple[float, str] | None = None


def draw_plot(painter: QPainter, view: PaintedView, axis: Axis, box: QRect, shown: Shown) -> None:
    theme, line = view.theme, view.line()
    painter.setPen(theme.pen("border"))
    painter.drawLine(box.left(), box.bottom() + 1, box.right(), box.bottom() + 1)
    _draw_session(painter, view, axis, box, axis.folded(shown.session))
    counts = axis.folded(shown.counts)
    most = int(counts.sum(axis=0).max()) if counts.size else 0
    if most:
        _draw_bars(painter, view, axis, box, counts, most, shown.tokens)
    if shown.own is not None:
        _draw_own(painter, view, axis, box, *shown.own)
    if math.isfinite(shown.value):
        _draw_middle(painter, view, axis.x_of(shown.value), box, shown.words, skyline(axis, box, shown))
    elif shown.empty and box.height() >= line:
        room = box.adjusted(theme.px(4), 0, -theme.px(4), 0)
        write(painter, room, shown.empty, theme.font("small"), theme.color("text_faint"), CENTER)


def skyline(axis: Axis, box: QRect, shown: Shown) -> NDArray[np.int64]:
    """How high the drawing stands at each pixel across the box."""
    heights = np.zeros(axis.high - axis.low)
    for counts in (axis.folded(shown.session), axis.folded(shown.counts).sum(axis=0)):
        if counts.any():
            heights = np.maximum(heights, counts / counts.max() * box.height())
    places = (np.arange(box.width()) * len(heights)) // box.width()
    return np.ceil(heights).astype(np.int64)[places]


def _draw_bars(painter: QPainter, view: PaintedView, axis: Axis, box: QRect, counts: NDArray, most: int,
               tokens: tuple[tuple[str, float], ...]) -> None:  # fmt: skip
    colors = [view.theme.mix(token, share) for token, share in tokens]
    gap = 1 if axis.width >= 3 * counts.shape[1] else 0
    for index in np.flatnonzero(counts.sum(axis=0)).tolist():
        left, right = axis.x(axis.low + index), axis.x(axis.low + index + 1)
        level = total = 0
        for part, color in zip(counts[:, index].tolist(), colors, strict=True):
            if not part:
                continue
            total += part
            top = max(level + 2, round(total / most * box.height()))  # what is there is seen
            high = top - level
            painter.fillRect(QRect(left, box.bottom() + 1 - top, max(1, right - left - gap), high), color)
            level = top


def _draw_session(painter: QPainter, view: PaintedView, axis: Axis, box: QRect, counts: NDArray) -> None:
    """The outline of everything seen, to a height of its own."""
    most = int(counts.max()) if counts.size else 0
    if not most:
        return
    points = [QPoint(axis.left, box.bottom())]
    for index, count in enumerate(counts.tolist()):
        y = box.bottom() - round(count / most * (box.height() - 1))
        points += [QPoint(axis.x(axis.low + index), y), QPoint(axis.x(axis.low + index + 1) - 1, y)]
    painter.setPen(view.theme.pen("text_faint"))
    painter.drawPolyline(QPolygon(points))


def _draw_middle(
    painter: QPainter, view: PaintedView, x: int, box: QRect, words: str, heights: NDArray[np.int64]
) -> None:
    """The median: a line with its value beside it, on the side where it hides less."""
    theme, line, gap = view.theme, view.line(), view.theme.px(5)
    x = min(x, box.right())
    painter.setPen(theme.pen("target"))
    painter.drawLine(x, box.top(), x, box.bottom())
    wide = view.advance(words, "strong")
    sides = [left for left in (x + gap, x - gap - wide) if box.left() <= left and left + wide <= box.right()]
    if not sides or box.height() < line:
        return
    left = min(sides, key=lambda side: int(heights[side - box.left() : side - box.left() + wide].max()))
    spot = QRect(left, box.top(), wide, line)
    painter.fillRect(spot.adjusted(-theme.px(2), 0, theme.px(2), 0), theme.color("panel"))
    write(painter, spot.adjusted(0, 0, 2, 0), words, theme.font("strong"), theme.color("text"))


def _draw_own(painter: QPainter, view: PaintedView, axis: Axis, box: QRect, seconds: float, words: str) -> None:
    """Where the selected block stands, at the foot."""
    theme, line, wide = view.theme, view.line(), view.theme.px(2)
    x = min(axis.x_of(seconds), box.right() - wide)
    painter.fillRect(QRect(x - wide // 2, box.top(), wide, box.height()), theme.color("selection"))
    if box.height() >= 2 * line:
        room = view.advance(words)
        left = x + theme.px(5) if x + theme.px(5) + room <= box.right() else x - theme.px(5) - room
        spot = QRect(left, box.bottom() - line, room + 2, line)
        painter.fillRect(spot, theme.color("panel"))
        write(painter, spot, words, theme.font("small"), theme.color("text_dim"))


def head(painter: QPainter, view: PaintedView, row: QRect, title: str, name: str, told: str) -> None:
    """The figure's words and its name at the left, what was counted at the right; the name gives way first."""
    theme, gap = view.theme, view.theme.px(10)
    used = write(painter, row, title, theme.font("body"), theme.color("text"))
    right = view.advance(told)
    if used + gap + right <= row.width():
        write(painter, row, told, theme.font("small"), theme.color("text_dim"), RIGHT)
    rest = row.adjusted(used + gap, 0, -right - gap, 0)
    if view.advance(name, "mono_small") <= rest.width():
        write(painter, rest, name, theme.font("mono_small"), theme.color("text_faint"))
