"""Small boxes with a word in a row. What they say and which colours they have is the caller's matter.

Shape and weight tell kinds apart where colour can't: solid, hollow and struck out, outlined, dashed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from PySide6.QtCore import QPoint, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QPainter, QPen, QPixmap

from ui.paint.labels import advance, metrics, put

Look = Literal["solid", "struck", "outlined", "dashed"]

_KEPT = 400  # boxes remembered: the widths that texts have, in each look
_boxes: dict[tuple, QPixmap] = {}


@dataclass(frozen=True)
class Chip:
    """`note` is a second, smaller line under the box; `ink` the colour of the text."""

    symbol: str
    text: str
    color: QColor
    ink: QColor
    look: Look = "outlined"
    note: str = ""


@dataclass(frozen=True)
class ChipStyle:
    font: QFont
    note: QFont
    dim: QColor  # of notes
    height: int  # of the box, pixels
    note_height: int  # of the line under it; 0 = no notes
    pad: int
    gap: int
    line: int  # thickness of outlines and of what strikes out
    longest: int  # widest box, pixels; longer text is elided
    key: str  # of `font`
    note_key: str


def widths(chips: list[Chip], style: ChipStyle) -> list[int]:
    """Pixels of each chip's box."""
    found = []
    for chip in chips:
        width = advance(style.font, _label(chip), style.key) + 2 * style.pad
        if style.note_height and chip.note:
            width = max(width, advance(style.note, chip.note, style.note_key) + 2)
        found.append(min(style.longest, max(width, style.height)))
    return found


def place(chips: list[Chip], style: ChipStyle, x: int, y: int, right: int) -> tuple[list[QRect], int]:
    """Rectangles of the chips that fit before `right`, and how many did not."""
    places = []
    for index, width in enumerate(widths(chips, style)):
        if x + width > right:
            return places, len(chips) - index
        places.append(QRect(x, y, width, style.height))
        x += width + style.gap
    return places, 0


def draw(painter: QPainter, chip: Chip, box: QRect, style: ChipStyle) -> None:
    painter.drawPixmap(box.topLeft(), _box(chip, box.size(), style, painter.device().devicePixelRatioF()))
    x, room = box.left() + style.pad, box.width() - 2 * style.pad
    spare = max(0, room - advance(style.font, _label(chip), style.key)) // 2  # a wide note makes a wide box
    x, room = x + spare, room - spare
    if chip.symbol:
        color = chip.ink if chip.look == "solid" else chip.color
        used = put(painter, x, box.top(), box.height(), chip.symbol, style.font, color, style.key)
        used += advance(style.font, " ", style.key)
        x, room = x + used, room - used
    text = chip.text
    if advance(style.font, text, style.key) > room + 1:
        text = metrics(style.font, style.key).elidedText(text, Qt.TextElideMode.ElideRight, room + 1)
    used = put(painter, x, box.top(), box.height(), text, style.font, chip.ink, style.key)
    if chip.look == "struck" and used:
        over = style.pad // 2
        middle = box.top() + (box.height() - style.line) // 2
        painter.fillRect(QRect(x - over, middle, used + 2 * over, style.line), chip.color)
    if style.note_height and chip.note:
        spare = box.width() - advance(style.note, chip.note, style.note_key)
        put(painter, box.left() + spare // 2, box.bottom() + 1, style.note_height, chip.note, style.note, style.dim,
            style.note_key)  # fmt: skip


def _box(chip: Chip, size: QSize, style: ChipStyle, ratio: float) -> QPixmap:
    """Round corners cost more than all else in a chip, and boxes of one size and look are alike: painted once."""
    place = (chip.look, chip.color.rgba(), size.width(), size.height(), style.line, ratio)
    found = _boxes.get(place)
    if found is None:
        if len(_boxes) >= _KEPT:
            _boxes.clear()
        found = QPixmap(size * ratio)
        found.setDevicePixelRatio(ratio)
        found.fill(Qt.GlobalColor.transparent)
        painter = QPainter(found)
        try:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            _outline(painter, chip, QRect(QPoint(0, 0), size), style)
        finally:
            painter.end()
        _boxes[place] = found
    return found


def _outline(painter: QPainter, chip: Chip, box: QRect, style: ChipStyle) -> None:
    radius = box.height() / 5
    if chip.look == "solid":
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(chip.color)
        painter.drawRoundedRect(box, radius, radius)
        return
    thick = style.line if chip.look == "struck" else max(1, style.line // 2)
    pen = QPen(chip.color, thick)
    if chip.look == "dashed":
        pen.setStyle(Qt.PenStyle.DashLine)
    fill = QColor(chip.color)
    fill.setAlphaF(0.18)
    painter.setPen(pen)
    painter.setBrush(fill if chip.look == "outlined" else Qt.BrushStyle.NoBrush)
    half = thick / 2
    painter.drawRoundedRect(QRectF(box).adjusted(half, half, -half, -half), radius, radius)


def _label(chip: Chip) -> str:
    return f"{chip.symbol} {chip.text}".strip()
