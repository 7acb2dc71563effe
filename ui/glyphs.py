"""The few signs on buttons, drawn as paths, so that they look the same on every machine and at every scale."""

from __future__ import annotations

from enum import Enum, auto

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPainterPath, QPen, QPixmap

from ui.theme import Theme

_PIXELS = 64  # drawn large once, scaled down by Qt for the screen at hand


class Glyph(Enum):
    PLAY = auto()
    PAUSE = auto()
    STEP = auto()
    FILL = auto()
    UNFILL = auto()
    CLOSE = auto()
    COPY = auto()
    MENU = auto()


def icon(theme: Theme, glyph: Glyph, token: str = "text") -> QIcon:
    """The sign in a token's colour; on a button that can't be pressed it is faint."""
    made = QIcon(_picture(glyph, theme.color(token)))
    made.addPixmap(_picture(glyph, theme.mix("text_faint", 0.5)), QIcon.Mode.Disabled)
    return made


def _picture(glyph: Glyph, colour: QColor) -> QPixmap:
    pixmap = QPixmap(_PIXELS, _PIXELS)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.scale(_PIXELS / 16, _PIXELS / 16)
    painter.setPen(QPen(colour, 1.6, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap, Qt.PenJoinStyle.RoundJoin))
    if glyph in _FILLED:
        painter.setBrush(colour)
    painter.drawPath(_path(glyph))
    painter.end()
    return pixmap


def window_icon(theme: Theme) -> QIcon:
    """Nine blocks of three sequences, one of them free: what the window is about."""
    pixmap = QPixmap(_PIXELS, _PIXELS)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    owners = (1, 1, 3, 1, 5, 3, 5, 5, None)
    for index, owner in enumerate(owners):
        painter.setBrush(theme.color("text_faint", 0.4) if owner is None else theme.sequence_color(owner))
        painter.drawRoundedRect(QRectF(2 + index % 3 * 21, 2 + index // 3 * 21, 18, 18), 4, 4)
    painter.end()
    return QIcon(pixmap)


_FILLED = {Glyph.PLAY, Glyph.PAUSE, Glyph.STEP}


def _path(glyph: Glyph) -> QPainterPath:
    """On a grid of 16 × 16."""
    path = QPainterPath()
    match glyph:
        case Glyph.PLAY:
            _line(path, (5, 3), (13, 8), (5, 13), (5, 3))
        case Glyph.PAUSE:
            path.addRect(QRectF(4, 3, 2.4, 10))
            path.addRect(QRectF(9.6, 3, 2.4, 10))
        case Glyph.STEP:
            _line(path, (3.5, 3), (10, 8), (3.5, 13), (3.5, 3))
            path.addRect(QRectF(12, 3, 1.2, 10))
        case Glyph.FILL:
            _line(path, (9.5, 2.5), (13.5, 2.5), (13.5, 6.5))
            _line(path, (6.5, 13.5), (2.5, 13.5), (2.5, 9.5))
            _line(path, (13.5, 2.5), (9.5, 6.5))
            _line(path, (2.5, 13.5), (6.5, 9.5))
        case Glyph.UNFILL:
            _line(path, (9.5, 2.5), (9.5, 6.5), (13.5, 6.5))
            _line(path, (6.5, 13.5), (6.5, 9.5), (2.5, 9.5))
            _line(path, (9.5, 6.5), (13.5, 2.5))
            _line(path, (6.5, 9.5), (2.5, 13.5))
        case Glyph.CLOSE:
            _line(path, (3.5, 3.5), (12.5, 12.5))
            _line(path, (12.5, 3.5), (3.5, 12.5))
        case Glyph.COPY:
            path.addRoundedRect(QRectF(5.5, 5.5, 8, 8), 1.5, 1.5)
            _line(path, (3, 10.5), (2.5, 10.5), (2.5, 2.5), (10.5, 2.5), (10.5, 3))
        case Glyph.MENU:
            for y in (4, 8, 12):
                _line(path, (3, y), (13, y))
    return path


def _line(path: QPainterPath, *points: tuple[float, float]) -> None:
    path.moveTo(QPointF(*points[0]))
    for point in points[1:]:
        path.lineTo(QPointF(*point))
