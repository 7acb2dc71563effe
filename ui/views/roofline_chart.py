"""The roofline itself: FLOP a byte to the right, FLOP/s upwards, both logarithmic; the slope of the bandwidth, the flat
top of the products, the ridge between them, and under it the steps. A dashed roof is what good programs reach."""

from __future__ import annotations

from math import atan2, ceil, degrees, floor

import numpy as np
from PySide6.QtCore import QLineF, QPoint, QPointF, QRect, Qt
from PySide6.QtGui import QPainter, QPen, QPolygonF

from engine.roof import Roof
from ui.paint.labels import CENTER, LEFT, RIGHT, write
from ui.roofline import Axes, Shown, few, si
from ui.views.painted import PaintedView
from ui.views.roofline_marks import Marks, outline

TITLED = 150  # pixels at text scale 1, of height, from which on the axis says what it is
PRESENT, LARGE = 15, 340  # pixels at text scale 1: of the present batch's mark; of height, from which on it is larger
REACH = 12  # pixels from a mark at which the mouse is on it


class RooflineChart:
    """
    Attributes:
        plot: where the steps are. axes: of it. x, y: pixels of every point (S).
    """

    def __init__(self, view: PaintedView):
        self._view, self.marks = view, Marks(view)
        self.plot, self.axes = QRect(), Axes(0, 1, 0, 1)
        self.x = self.y = np.zeros(0, np.int64)
        self._titled = False

    def draw(self, painter: QPainter, area: QRect, shown: Shown, hovered: int | None) -> None:
        view, theme, line = self._view, self._view.theme, self._view.line()
        roof, found = shown.roof, shown.points
        assert roof is not None and found is not None
        self.axes = Axes.around(roof, found)
        gutter = max(view.advance(_tick(power, "FLOP/s")) for power in _decades(self.axes.bottom, self.axes.top))
        self.plot = QRect(area.left() + gutter + theme.px(8), area.top() + line // 2, 0, 0)
        self.plot.setRight(area.right() - theme.px(6))
        self._titled = area.height() >= theme.px(TITLED)
        self.plot.setBottom(area.bottom() - (2 if self._titled else 1) * line - theme.px(6))
        self.x = self.y = np.zeros(0, np.int64)
        if self.plot.width() < theme.px(80) or self.plot.height() < 2 * line:
            self.plot = QRect()
            return
        view.kept(painter, area, "ground", (roof, self.axes), lambda inside, box: self._ground(inside, area, roof))
        self.x, self.y = self._place(found.intensity, found.rate)
        painter.setClipRect(self.plot.adjusted(-theme.px(6), -theme.px(6), theme.px(6), theme.px(6)))
        self.marks.scatter(painter, self.x, self.y, found.kind)
        painter.setClipping(False)
        if shown.here is not None:
            self._here(painter, shown, roof)
        if hovered is not None and hovered < len(found):
            middle = QPointF(float(self.x[hovered]) + 0.5, float(self.y[hovered]) + 0.5)
            outline(painter, view, int(found.kind[hovered]), middle, theme.px(11), "text_dim")

    def nearest(self, at: QPoint) -> int | None:
        """The point under the mouse, the newest of those equally near."""
        if not len(self.x):
            return None
        away = (self.x - at.x()) ** 2 + (self.y - at.y()) ** 2
        best = len(away) - 1 - int(np.argmin(away[::-1]))
        return best if away[best] <= self._view.theme.px(REACH) ** 2 else None

    def _place(self, intensity, rate):
        x = self.plot.left() + np.rint(np.clip(self.axes.x(intensity), 0, 1) * (self.plot.width() - 1))
        y = self.plot.bottom() - np.rint(np.clip(self.axes.y(rate), 0, 1) * (self.plot.height() - 1))
        return np.asarray(x, np.int64), np.asarray(y, np.int64)

    def _at(self, intensity: float, rate: float) -> QPointF:
        x, y = self._place(intensity, rate)
        return QPointF(float(x) + 0.5, float(y) + 0.5)

    # --- what stands still ---

    def _ground(self, painter: QPainter, area: QRect, roof: Roof) -> None:
        """Painted into a picture of its own, whose corner is the area's."""
        painter.translate(-area.topLeft())
        theme = self._view.theme
        if roof.known:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(theme.color("free"))
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            left, right = QPointF(self.plot.bottomLeft()), QPointF(self.plot.bottomRight())
            painter.drawPolygon(QPolygonF([left, *self._line(roof), right]))
            painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        else:
            painter.fillRect(self.plot, theme.color("free"))
        self._grid(painter, area, roof)
        if roof.known:
            self._roof(painter, roof)

    def _line(self, roof: Roof, bandwidth: float = 1.0, flops: float = 1.0) -> list[QPointF]:
        """The roof from end to end, at these shares of it."""
        slope, top = roof.bandwidth * bandwidth, roof.flops * flops
        left = max(10.0**self.axes.left, 10.0**self.axes.bottom / slope)
        ends = ((left, slope * left), (top / slope, top), (10.0**self.axes.right, top))
        return [self._at(intensity, rate) for intensity, rate in ends]

    def _roof(self, painter: QPainter, roof: Roof) -> None:
        view, theme, line = self._view, self._view.theme, self._view.line()
        low, knee, high = self._line(roof)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        if roof.bandwidth_share < 1 or roof.flops_share < 1:
            pen = QPen(theme.color("limit"), max(1, theme.px(1.2)))
            pen.setDashPattern([5, 4])
            painter.setPen(pen)
            painter.drawPolyline(QPolygonF(self._line(roof, roof.bandwidth_share, roof.flops_share)))
        painter.setPen(QPen(theme.color("limit"), theme.px(2)))
        painter.drawPolyline(QPolygonF([low, knee, high]))
        drop = QPen(theme.color("limit"), max(1, theme.px(1)))
        drop.setDashPattern([1, 3])
        painter.setPen(drop)
        painter.drawLine(QLineF(knee.x(), knee.y(), knee.x(), self.plot.bottom()))
        painter.setPen(QPen(theme.color("panel"), 2))
        painter.setBrush(theme.color("limit"))
        painter.drawEllipse(knee, theme.px(5), theme.px(5))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        words = si(roof.flops, "FLOP/s")
        spot = QRect(round(knee.x()), round(knee.y()) - line - theme.px(5), self.plot.right() - round(knee.x()), line)
        write(painter, spot, words, theme.font("strong"), theme.color("limit"), RIGHT)
        self._along(painter, low, knee, si(roof.bandwidth, "B/s"))
        floor_row = QRect(self.plot.left(), self.plot.bottom() - line - theme.px(3), 0, line)
        gap, x = theme.px(10), round(knee.x())
        faint, small = theme.color("text_faint"), theme.font("small")
        for words, left, right, side in (
            ("bound by bandwidth", self.plot.left() + gap, x - gap, RIGHT),
            ("bound by arithmetic", x + gap, self.plot.right() - gap, LEFT),
        ):
            if view.advance(words) <= right - left:
                write(painter, QRect(left, floor_row.top(), right - left, line), words, small, faint, side)

    def _along(self, painter: QPainter, low: QPointF, knee: QPointF, words: str) -> None:
        """Words along the slope, above its middle."""
        view, theme = self._view, self._view.theme
        wide, line = view.advance(words, "strong"), view.line("strong")
        way = QLineF(low, knee)
        if way.length() < wide + theme.px(24):
            return
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.translate(way.pointAt(0.5))
        painter.rotate(degrees(atan2(knee.y() - low.y(), knee.x() - low.x())))
        painter.setFont(theme.font("strong"))
        painter.setPen(theme.color("limit"))
        spot = QRect(-wide // 2 - 2, -line - theme.px(5), wide + 4, line)
        painter.drawText(spot, Qt.AlignmentFlag.AlignCenter, words)
        painter.restore()

    def _grid(self, painter: QPainter, area: QRect, roof: Roof) -> None:
        view, theme, line, plot = self._view, self._view.theme, self._view.line(), self.plot
        small, faint = theme.font("small"), theme.color("text_faint")
        ridge = None
        if roof.known:
            words = few(roof.ridge)
            ridge = self._under(self._at(roof.ridge, roof.flops), view.advance(words, "strong") + theme.px(4))
            write(painter, ridge, words, theme.font("strong"), theme.color("limit"), CENTER)
        for power in _decades(self.axes.left, self.axes.right):
            at = self._at(10.0**power, 1.0)
            painter.setPen(theme.pen("border"))
            painter.drawLine(round(at.x()), plot.top(), round(at.x()), plot.bottom() + theme.px(3))
            words = f"{10.0**power:,g}"
            box = self._under(at, view.advance(words) + 4)
            if ridge is None or not box.adjusted(-theme.px(6), 0, theme.px(6), 0).intersects(ridge):
                write(painter, box, words, small, faint, CENTER)
        for power in _decades(self.axes.bottom, self.axes.top):
            y = round(self._at(1.0, 10.0**power).y())
            painter.setPen(theme.pen("border"))
            painter.drawLine(plot.left() - theme.px(3), y, plot.right(), y)
            words = _tick(power, "FLOP/s")
            spot = QRect(area.left(), y - line // 2, plot.left() - theme.px(6) - area.left(), line)
            write(painter, spot, words, small, faint, RIGHT)
        if self._titled:
            title = QRect(plot.left(), plot.bottom() + theme.px(4) + line, plot.width(), line)
            write(painter, title, "FLOP a byte moved (arithmetic intensity)", small, faint, CENTER)

    def _under(self, at: QPointF, wide: int) -> QRect:
        """The place for words so wide on the axis below a point."""
        left = min(max(self.plot.left(), round(at.x()) - wide // 2), self.plot.right() - wide)
        return QRect(left, self.plot.bottom() + self._view.theme.px(4), wide, self._view.line())

    # --- what stands out ---

    def _here(self, painter: QPainter, shown: Shown, roof: Roof) -> None:
        """The present batch, and how far the roof is above it."""
        view, theme, here = self._view, self._view.theme, shown.here
        assert here is not None
        middle = self._at(here.intensity, here.rate)
        size = PRESENT * (1.4 if self.plot.height() >= theme.px(LARGE) else 1.0)
        if roof.known:
            above = self._at(here.intensity, roof.allows(here.intensity))
            painter.setPen(theme.pen("selection", theme.px(1)))
            painter.drawLine(QLineF(middle.x(), middle.y(), middle.x(), above.y()))
            cap = theme.px(5)
            painter.drawLine(QLineF(above.x() - cap, above.y(), above.x() + cap, above.y()))
            words = f"{100 * here.rate / roof.allows(here.intensity):.0f} %"
            role = "brand" if size > PRESENT else "strong"
            wide, high = view.advance(words, role), view.line(role)
            top = round((middle.y() + above.y()) / 2) - high // 2
            beside = theme.px(size * 0.8)
            left = round(middle.x()) + beside
            if abs(middle.y() - above.y()) < high + theme.px(6):  # no room between: beside the mark, off the roof
                top = min(round(middle.y()) + theme.px(3), self.plot.bottom() - high)
            if left + wide > self.plot.right():
                left = round(middle.x()) - beside - wide
            spot = QRect(left, top, wide, high)
            painter.fillRect(spot.adjusted(-theme.px(4), 0, theme.px(4), 0), theme.color("panel"))
            write(painter, spot.adjusted(0, 0, 2, 0), words, theme.font(role), theme.color("text"))
        outline(painter, view, here.kind, middle, theme.px(size), "selection")


def _decades(low: float, high: float) -> range:
    return range(ceil(low - 1e-9), floor(high + 1e-9) + 1)


def _tick(power: int, unit: str) -> str:
    """'10 GFLOP/s'."""
    scale = min(5, max(0, power // 3))
    return f"{10 ** (power - 3 * scale):g} {' kMGTP'[scale].strip()}{unit}"
