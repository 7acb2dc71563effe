"""The marks of steps on the roofline: a colour and a shape for what a step mostly did, paler the older it is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPen, QPixmap, QPolygonF

from ui.paint.labels import layer
from ui.roofline import DECODES, PREFILLS, VERIFIES
from ui.views.painted import PaintedView

TOKENS = {DECODES: "decode", VERIFIES: "accent", PREFILLS: "prefill"}
WORDS = {DECODES: "decode", VERIFIES: "decode with drafts", PREFILLS: "prefill"}
SIZE = 9  # pixels at text scale 1
FOLD = 3  # pixels: marks that near are one, the newest
# steps back from the shown one up to which a mark has so much of its colour
AGES = ((24, 1.0), (120, 0.68), (500, 0.46), (1 << 30, 0.30))


def shape(painter: QPainter, kind: int, middle: QPointF, size: float) -> None:
    """A disc, a diamond or a square of about the same weight, with the painter's pen and brush."""
    if kind == DECODES:
        painter.drawEllipse(middle, size / 2, size / 2)
    elif kind == PREFILLS:
        half = size * 0.44
        painter.drawRect(QRectF(middle.x() - half, middle.y() - half, 2 * half, 2 * half))
    else:
        half, x, y = size * 0.62, middle.x(), middle.y()
        corners = (QPointF(x, y - half), QPointF(x + half, y), QPointF(x, y + half), QPointF(x - half, y))
        painter.drawPolygon(QPolygonF(corners))


class Marks:
    """Pictures of the marks, painted once for a look of the window."""

    def __init__(self, view: PaintedView):
        self._view = view
        self._look: tuple[object, ...] = ()
        self._pictures: dict[tuple[int, int], QPixmap] = {}

    def picture(self, kind: int, age: int) -> QPixmap:
        """`age`: index into AGES."""
        view = self._view
        look = (view.theme.name, view.theme.scale, view.devicePixelRatioF())
        if look != self._look:
            self._look, self._pictures = look, {}
        found = self._pictures.get((kind, age))
        if found is None:
            found = self._pictures[kind, age] = self._made(kind, color(view, kind, age))
        return found

    @property
    def side(self) -> int:
        """Of a picture, pixels; odd, so that it has a middle."""
        return self._view.theme.px(SIZE) // 2 * 2 + 5

    def _made(self, kind: int, ink: QColor) -> QPixmap:
        side = self.side
        picture = layer(self._view, QSize(side, side))
        painter = QPainter(picture)
        try:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(QPen(self._view.theme.color("free"), 1))
            painter.setBrush(ink)
            shape(painter, kind, QPointF(side / 2, side / 2), self._view.theme.px(SIZE))
        finally:
            painter.end()
        return picture

    def scatter(self, painter: QPainter, x: NDArray, y: NDArray, kind: NDArray) -> int:
        """Marks at these pixels, the oldest first; returns how many were painted."""
        half = self.side // 2
        for at in fold(x, y, kind, max(1, self._view.theme.px(FOLD))).tolist():
            age = age_of(len(x) - 1 - at)
            painter.drawPixmap(int(x[at]) - half, int(y[at]) - half, self.picture(int(kind[at]), age))
        return len(x)

    def key(self, painter: QPainter, left: int, middle: int, kind: int) -> int:
        """One mark in a row of words; returns its width."""
        painter.drawPixmap(left, middle - self.side // 2, self.picture(kind, 0))
        return self.side


def color(view: PaintedView, kind: int, age: int) -> QColor:
    return view.theme.mix(TOKENS[kind], AGES[age][1], "free")


def age_of(back: int) -> int:
    return next(index for index, (most, _) in enumerate(AGES) if back < most)


def fold(x: NDArray, y: NDArray, kind: NDArray, cell: int) -> NDArray[np.int64]:
    """Which of the marks, the oldest first, are to be painted: of those of a kind in one cell the newest."""
    if not len(x):
        return np.zeros(0, np.int64)
    across, down = x.astype(np.int64) // cell, y.astype(np.int64) // cell
    place = ((kind.astype(np.int64) << 40) + (down << 20) + across)[::-1]
    return np.sort(len(x) - 1 - np.unique(place, return_index=True)[1])


def outline(painter: QPainter, view: PaintedView, kind: int, middle: QPointF, size: float, token: str) -> None:
    """A mark that stands out: larger, ringed."""
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(QPen(view.theme.color("panel"), view.theme.px(5)))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    shape(painter, kind, middle, size)
    painter.setPen(QPen(view.theme.color(token), view.theme.px(2)))
    painter.setBrush(view.theme.color(TOKENS[kind]))
    shape(painter, kind, middle, size)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
