"""The card under a request's status: how its tokens compare with a run without drafts, and how fast each was.

One line where it fits; else the speeds stand under the verdict. A thin bar says how far the comparison is. Shapes say
what the colours say: ✓ equal, ✕ differs, … under way.
"""

from __future__ import annotations

from PySide6.QtCore import QRect, QSize
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from ui.labels import as_plain
from ui.paint.labels import RIGHT, advance, metrics, write
from ui.shadow_words import Told
from ui.theme import Theme

PART = " · "


class CheckLine(QWidget):
    """Hidden while there is nothing to say.

    Attributes:
        told: what it says; None for nothing.
    """

    def __init__(self, theme: Theme, parent: QWidget | None = None):
        super().__init__(parent)
        self._theme = theme
        self.told: Told | None = None
        self._large = False
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.hide()

    def show_told(self, told: Told | None) -> None:
        if told == self.told:
            return
        self.told = told
        self.setVisible(told is not None)
        self.setToolTip(as_plain(told.story) if told else "")
        self.setAccessibleName(f"{told.headline}, {PART.join(told.speeds)}" if told else "")
        self.updateGeometry()
        self.update()

    def set_large(self, large: bool) -> None:
        if large != self._large:
            self._large = large
            self.updateGeometry()

    def sizeHint(self) -> QSize:
        lines = 1 if self._single() else 2
        return QSize(0, lines * self._line() + self._theme.px(14))

    def minimumSizeHint(self) -> QSize:
        return self.sizeHint()

    def resizeEvent(self, event) -> None:
        self.updateGeometry()

    def paintEvent(self, event: QPaintEvent) -> None:
        if self.told is None:
            return
        theme, told, line = self._theme, self.told, self._line()
        px, color = theme.px, theme.color(told.token)
        strong, small = self._font("strong"), self._font("small")
        painter = QPainter(self)
        painter.fillRect(self.rect(), theme.color("raised"))
        painter.fillRect(QRect(0, 0, px(3), self.height()), color)
        inner = self.rect().adjusted(px(12), px(5), -px(12), -px(9))
        first = QRect(inner.left(), inner.top(), inner.width(), line)
        used = write(painter, first, told.symbol, strong, color) + px(8)
        speeds = self._speeds()
        if self._single():
            room = advance(small, speeds)
            write(painter, first, speeds, small, theme.color("text"), RIGHT)
            words = first.adjusted(used, 0, -room - px(16) if speeds else 0, 0)
            write(painter, words, told.headline, strong, theme.color("text"))
        else:
            write(painter, first.adjusted(used, 0, 0, 0), told.headline, strong, theme.color("text"))
            write(painter, first.translated(0, line).adjusted(used, 0, 0, 0), speeds, small, theme.color("text_dim"))
        track = QRect(0, self.height() - px(3), self.width(), px(3))
        painter.fillRect(track, theme.color("free"))
        painter.fillRect(QRect(track.left(), track.top(), round(track.width() * told.share), track.height()), color)
        painter.end()

    def _speeds(self) -> str:
        return PART.join(self.told.speeds) if self.told else ""

    def _single(self) -> bool:
        if self.told is None or not self.told.speeds:
            return True
        words = advance(self._font("strong"), f"{self.told.symbol} {self.told.headline}")
        return words + advance(self._font("small"), self._speeds()) + self._theme.px(60) <= self.width()

    def _font(self, role: str):
        """Where the text is large, so is what is said of it."""
        return self._theme.font({"strong": "title", "small": "body"}[role] if self._large else role)

    def _line(self) -> int:
        return metrics(self._font("strong")).height()
