"""The key to streamed text: each kind of token, written the way its tokens are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QRect, QSize
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from ui.paint.labels import advance, metrics, put
from ui.paint.text_flow import Under
from ui.theme import Theme


class Kind(NamedTuple):
    """`words` from the most telling to the shortest."""

    words: tuple[str, ...]
    color: QColor
    tint: QColor | None = None
    under: Under = ""


class StyleKey(QWidget):
    """One line; where it is narrow its words are shorter, and what has no room is left out, last first."""

    def __init__(self, theme: Theme, parent: QWidget | None = None):
        super().__init__(parent)
        self._theme = theme
        self._kinds: Sequence[Kind] = ()
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def set_kinds(self, kinds: Sequence[Kind]) -> None:
        self._kinds = kinds
        self.setToolTip(" · ".join(kind.words[0] for kind in kinds))
        self.updateGeometry()
        self.update()

    def shown(self) -> list[str]:
        """The words that fit, of the kinds that fit."""
        most = max((len(kind.words) for kind in self._kinds), default=0)
        for length in range(most):
            words = [kind.words[min(length, len(kind.words) - 1)] for kind in self._kinds]
            if self._width(words) <= self.width():
                return words
        words = [kind.words[-1] for kind in self._kinds]
        while words and self._width(words) > self.width():
            words.pop()
        return words

    def sizeHint(self) -> QSize:
        return QSize(0, self._line() + self._theme.px(2))

    def minimumSizeHint(self) -> QSize:
        return self.sizeHint()

    def paintEvent(self, event: QPaintEvent) -> None:
        theme, font = self._theme, self._theme.font("small")
        painter, x, line = QPainter(self), 0, self._line()
        for text, kind in zip(self.shown(), self._kinds, strict=False):
            width = advance(font, text)
            box = QRect(x, (self.height() - line) // 2, width + self._pad(), line)
            if kind.tint is not None:
                painter.fillRect(box, kind.tint)
            put(painter, x + self._pad() // 2, box.top(), line, text, font, kind.color)
            if kind.under == "line":
                painter.fillRect(QRect(x, box.bottom() - theme.px(1), box.width(), max(1, theme.px(1))), kind.color)
            elif kind.under == "dots":
                _dots(painter, box, theme, kind.color)
            x += box.width() + theme.px(10)
        painter.end()

    def _line(self) -> int:
        return metrics(self._theme.font("small")).height()

    def _pad(self) -> int:
        return self._theme.px(6)

    def _width(self, words: Sequence[str]) -> int:
        font = self._theme.font("small")
        return sum(advance(font, text) + self._pad() for text in words) + self._theme.px(10) * (len(words) - 1)


def _dots(painter: QPainter, box: QRect, theme: Theme, color: QColor) -> None:
    """Along the lower edge, as the text itself has them."""
    size = max(1, theme.px(1))
    for x in range(box.left(), box.right(), 2 * size + 1):
        painter.fillRect(QRect(x, box.bottom() - theme.px(1), size, size), color)
