"""Fonts, lengths and textures of a view that is read from the back row: they grow with the view, not only with the
text scale."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtGui import QColor, QFont, QPainter, QPen

from engine.records import ACCEPTED, BONUS, DISCARDED, REJECTED, RESAMPLED
from ui import fonts
from ui.paint.labels import advance, metrics
from ui.theme import Theme

_WIDE, _HIGH = 1000, 500  # pixels that are filled at size 1
_LEAST, _MOST = 0.72, 6.0  # of size 1
_SMALL = ("small", "body", "strong")  # roles that the text scale keeps readable however small the view
# what a number is of: the target, the draft, what is left of the target over the draft
TARGET, DRAFT, LEFT = "decode", "run_a", "bonus"
VERDICTS = {ACCEPTED: "accepted", REJECTED: "rejected", DISCARDED: "text_faint", RESAMPLED: LEFT, BONUS: LEFT}


class Look:
    """For a view of so many pixels."""

    def __init__(self, theme: Theme, width: int, height: int):
        self.theme = theme
        self.size = max(_LEAST * theme.scale, min(_MOST, width / _WIDE, height / _HIGH))
        self._fonts: dict[str, QFont] = {}

    def px(self, n: float) -> int:
        return max(1, round(n * self.size))

    def font(self, role: str) -> QFont:
        if role not in self._fonts:
            size = max(self.size, self.theme.scale) if role in _SMALL else self.size
            self._fonts[role] = fonts.make(role, size)
        return self._fonts[role]

    def line(self, role: str) -> int:
        return metrics(self.font(role)).height()

    def advance(self, role: str, text: str) -> int:
        return advance(self.font(role), text)

    def color(self, token: str) -> QColor:
        return self.theme.color(token)


def hatch(painter: QPainter, box: QRect, color: QColor, pitch: int, thick: float, up: bool = True) -> None:
    """Diagonal lines in a box: a texture that is told apart without colour."""
    painter.save()
    painter.setClipRect(box)
    painter.setPen(QPen(color, thick, Qt.PenStyle.SolidLine, Qt.PenCapStyle.FlatCap))
    # lines stand at multiples of the pitch, so that boxes side by side continue each other
    for x in range((box.left() - box.height()) // pitch * pitch, box.right() + box.height(), pitch):
        low, high = QPoint(x, box.bottom() + 1), QPoint(x + box.height(), box.top() - 1)
        if not up:
            low, high = QPoint(x, box.top() - 1), QPoint(x + box.height(), box.bottom() + 1)
        painter.drawLine(low, high)
    painter.restore()
