"""Text and legends in rectangles: elided, dropped when there is no room, never overlapping."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPen, QPixmap
from PySide6.QtWidgets import QWidget

LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
CENTER = Qt.AlignmentFlag.AlignCenter


def write(painter: QPainter, rect: QRect, text: str, font: QFont, color: QColor, where=LEFT) -> int:
    """One line in `rect`, elided at its end; returns its width in pixels. Nothing when the height is too small."""
    metrics = QFontMetrics(font)
    if rect.height() < metrics.ascent() or rect.width() < metrics.averageCharWidth():
        return 0
    shown = metrics.elidedText(text, Qt.TextElideMode.ElideRight, rect.width())
    painter.setFont(font)
    painter.setPen(color)
    painter.drawText(rect, where | Qt.TextFlag.TextSingleLine, shown)
    return metrics.horizontalAdvance(shown)


def paragraph(painter: QPainter, rect: QRect, text: str, font: QFont, color: QColor, where=None) -> int:
    """Wrapped text in `rect`; whole lines only, the last elided; returns its height in pixels."""
    lines = wrap(text, font, rect.width())
    metrics = QFontMetrics(font)
    step = metrics.lineSpacing()
    room = max(0, rect.height() // step)
    if len(lines) > room > 0:
        lines = [*lines[: room - 1], metrics.elidedText(" ".join(lines[room - 1 :]), Qt.TextElideMode.ElideRight, rect.width())]
    for index, line in enumerate(lines[:room]):
        spot = QRect(rect.left(), rect.top() + index * step, rect.width(), step)
        write(painter, spot, line, font, color, LEFT if where is None else where)
    return min(len(lines), room) * step


def wrap(text: str, font: QFont, width: int) -> list[str]:
    metrics = QFontMetrics(font)
    lines: list[str] = []
    line = ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if line and metrics.horizontalAdvance(longer) > width:
            lines.append(line)
            line = word
        else:
            line = longer
    return [*lines, line] if line else lines


@dataclass(frozen=True)
class Key:
    """An entry of a legend: a swatch and its words."""

    color: QColor
    text: str
    symbol: str = ""


def legend(painter: QPainter, rect: QRect, keys: list[Key], font: QFont, color: QColor, gap: int) -> int:
    """Entries from left to right, the last ones left out when there is no room; returns the width used."""
    metrics = QFontMetrics(font)
    swatch = max(6, metrics.ascent() * 3 // 4)
    x = rect.left()
    for key in keys:
        words = f"{key.text} {key.symbol}".strip()
        width = swatch + swatch // 2 + metrics.horizontalAdvance(words)
        if x + width > rect.right() or rect.height() < metrics.ascent():
            break
        painter.fillRect(QRect(x, rect.center().y() - swatch // 2, swatch, swatch), key.color)
        painter.setFont(font)
        painter.setPen(color)
        start = x + swatch + swatch // 2
        painter.drawText(QRect(start, rect.top(), width, rect.height()), LEFT, words)
        x += width + gap
    return x - rect.left()


def badge(painter: QPainter, right: int, y: int, height: int, text: str, font: QFont, color: QColor) -> int:
    """A small outlined word ending at `right`; returns its width."""
    metrics = QFontMetrics(font)
    width = metrics.horizontalAdvance(text) + height * 2 // 3
    box = QRect(right - width, y, width, height)
    painter.setPen(QPen(color))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawRoundedRect(box.adjusted(0, 0, -1, -1), height / 2, height / 2)
    painter.setFont(font)
    painter.drawText(box, CENTER, text)
    return width


def layer(widget: QWidget, size: QSize) -> QPixmap:
    """A transparent picture of `size` logical pixels at the widget's resolution, to paint once and copy often."""
    ratio = widget.devicePixelRatioF()
    picture = QPixmap(size * ratio)
    picture.setDevicePixelRatio(ratio)
    picture.fill(Qt.GlobalColor.transparent)
    return picture
