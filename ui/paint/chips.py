"""Small rounded labels in a row. What they say and which colours they have is the caller's matter."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPen


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
    font: QFont
    note_font: QFont
    text: QColor
    dim: QColor
    height: int  # of the rounded box, pixels
    note_height: int  # of the line under it; 0 = no notes
    pad: int
    gap: int
    longest: int  # widest box, pixels; longer text is elided


def widths(chips: list[Chip], style: ChipStyle) -> list[int]:
    """Pixels of each chip's box."""
    metrics, notes = QFontMetrics(style.font), QFontMetrics(style.note_font)
    found = []
    for chip in chips:
        width = metrics.horizontalAdvance(_label(chip)) + 2 * style.pad
        if style.note_height and chip.note:
            width = max(width, notes.horizontalAdvance(chip.note) + 2)
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


def draw(painter: QPainter, chip: Chip, box: QRect, style: ChipStyle, lit: bool = False) -> None:
    fill = QColor(chip.color)
    fill.setAlphaF(0.34 if lit else 0.14)
    pen = QPen(chip.color, 1)
    if chip.dashed:
        pen.setStyle(Qt.PenStyle.DashLine)
    painter.setPen(pen)
    painter.setBrush(fill)
    radius = box.height() / 2
    painter.drawRoundedRect(box.adjusted(0, 0, -1, -1), radius, radius)
    painter.setFont(style.font)
    inner = box.adjusted(style.pad, 0, -style.pad, 0)
    metrics = QFontMetrics(style.font)
    left = metrics.horizontalAdvance(chip.symbol + " ") if chip.symbol else 0
    painter.setPen(chip.color)
    painter.drawText(inner, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, chip.symbol)
    text = metrics.elidedText(chip.text, Qt.TextElideMode.ElideRight, inner.width() - left + 1)
    where = inner.adjusted(left, 0, 2, 0)
    painter.setPen(style.dim if chip.dashed else style.text)
    painter.drawText(where, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, text)
    if chip.struck:
        middle = box.center().y() + 1
        painter.setPen(QPen(chip.color, 1))
        painter.drawLine(where.left(), middle, where.left() + metrics.horizontalAdvance(text), middle)
    if style.note_height and chip.note:
        painter.setPen(style.dim)
        painter.setFont(style.note_font)
        under = QRect(box.left() - style.gap, box.bottom() + 1, box.width() + 2 * style.gap, style.note_height)
        painter.drawText(under, Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop, chip.note)


def _label(chip: Chip) -> str:
    return f"{chip.symbol} {chip.text}" if chip.symbol else chip.text
