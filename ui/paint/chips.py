"""Small rounded labels in a row. What they say and which colours they have is the caller's matter."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QColor, QFont, QPainter, QPen

from ui.paint.labels import advance, metrics, put


@dataclass(frozen=True)
class Chip:
    """`note` is a second, smaller line under the text; `dashed` and `struck` are shapes beside the colour."""

    symbol: str
    text: str
    color: QColor
    note: str = ""
    dashed: bool = False
    struck: bool = False


@dataclass(frozen=True)
class ChipStyle:
    font: QFont  # of text and note
    text: QColor
    dim: QColor
    height: int  # of the rounded box, pixels
    note_height: int  # of the line under it; 0 = no notes
    pad: int
    gap: int
    longest: int  # widest box, pixels; longer text is elided
    key: str  # of `font`


def widths(chips: list[Chip], style: ChipStyle) -> list[int]:
    """Pixels of each chip's box."""
    found = []
    for chip in chips:
        width = advance(style.font, _label(chip), style.key) + 2 * style.pad
        if style.note_height and chip.note:
            width = max(width, advance(style.font, chip.note, style.key) + 2)
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
    fill = QColor(chip.color)
    fill.setAlphaF(0.14)
    pen = QPen(chip.color, 1)
    if chip.dashed:
        pen.setStyle(Qt.PenStyle.DashLine)
    painter.setPen(pen)
    painter.setBrush(fill)
    painter.drawRoundedRect(box.adjusted(0, 0, -1, -1), box.height() / 2, box.height() / 2)
    x, room = box.left() + style.pad, box.width() - 2 * style.pad
    if chip.symbol:
        used = put(painter, x, box.top(), box.height(), chip.symbol, style.font, chip.color, style.key)
        used += advance(style.font, " ", style.key)
        x, room = x + used, room - used
    text = chip.text
    if advance(style.font, text, style.key) > room + 1:
        text = metrics(style.font, style.key).elidedText(text, Qt.TextElideMode.ElideRight, room + 1)
    ink = style.dim if chip.dashed else style.text
    used = put(painter, x, box.top(), box.height(), text, style.font, ink, style.key)
    if chip.struck:
        middle = box.center().y() + 1
        painter.setPen(QPen(chip.color, 1))
        painter.drawLine(x, middle, x + used, middle)
    if style.note_height and chip.note:
        spare = box.width() - advance(style.font, chip.note, style.key)
        put(painter, box.left() + spare // 2, box.bottom() + 1, style.note_height, chip.note, style.font,
            style.dim, style.key)  # fmt: skip


def _label(chip: Chip) -> str:
    return f"{chip.symbol} {chip.text}".strip()
