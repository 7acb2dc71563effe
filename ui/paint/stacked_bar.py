"""One horizontal bar divided into parts whose pixels sum to its width exactly."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QColor, QPainter, QPen


def split(values: Sequence[float], width: int) -> list[int]:
    """Whole pixels per value, summing to `width` (largest remainder); a value over 0 gets at least one pixel
    where there is room."""
    total = sum(values)
    if total <= 0 or width <= 0:
        return [0] * len(values)
    exact = [value * width / total for value in values]
    pixels = [int(share) for share in exact]
    for index, value in enumerate(values):
        if value > 0 and pixels[index] == 0:
            pixels[index] = 1
    order = sorted(range(len(values)), key=lambda i: exact[i] - pixels[i], reverse=True)
    missing = width - sum(pixels)
    for index in order[: max(0, missing)]:
        pixels[index] += 1
    while sum(pixels) > width:
        pixels[pixels.index(max(pixels))] -= 1
    return pixels


def draw(
    painter: QPainter, rect: QRect, values: Sequence[float], colors: Sequence[QColor], border: QColor, lit: int = -1
) -> list[QRect]:
    """Draw the bar; returns each part's rectangle. The part `lit` gets an outline in the border colour."""
    places, x = [], rect.left()
    for width, color in zip(split(values, rect.width()), colors, strict=True):
        part = QRect(x, rect.top(), width, rect.height())
        if width:
            painter.fillRect(part, color)
        places.append(part)
        x += width
    painter.setPen(QPen(border))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    for part in places[1:]:
        if part.width() > 2:
            painter.drawLine(part.topLeft(), part.bottomLeft())
    if 0 <= lit < len(places) and places[lit].width():
        painter.drawRect(places[lit].adjusted(0, 0, -1, -1))
    return places
