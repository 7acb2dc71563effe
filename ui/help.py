"""The overlay that shows the keys, over the whole window. Any click or key takes it away."""

from __future__ import annotations

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QFontMetrics, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from ui.shortcuts import KEYS
from ui.theme import Theme

_MORE = (
    ("Click", "Choose a sequence or block; it lights up in every view"),
    ("Drag the timeline", "Look at any moment that is kept"),
    ("Drag a title", "Move a view, or pull it out of the window"),
    ("View menu", "Text size, theme, closed views, default layout"),
)


class HelpOverlay(QWidget):
    """Hidden until `toggle`."""

    def __init__(self, theme: Theme, parent: QWidget):
        super().__init__(parent)
        self._theme = theme
        self.setAccessibleName("Keys")
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.hide()

    def toggle(self) -> None:
        self.setGeometry(self.parentWidget().rect())
        self.setVisible(not self.isVisible())
        self.raise_()

    def cover(self) -> None:
        """The window's size changed."""
        if self.isVisible():
            self.setGeometry(self.parentWidget().rect())

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self.hide()

    def paintEvent(self, event: QPaintEvent) -> None:
        theme = self._theme
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.fillRect(self.rect(), theme.color("bg", 0.82))
        rows = [(key.shown, key.meaning) for key in KEYS] + list(_MORE)
        strong, body = theme.font("strong"), theme.font("body")
        key_width = max(QFontMetrics(strong).horizontalAdvance(shown) for shown, _ in rows) + theme.px(32)
        width = key_width + max(QFontMetrics(body).horizontalAdvance(text) for _, text in rows) + theme.px(48)
        line = min(theme.px(28), (self.height() - theme.px(96)) // (len(rows) + 1))
        height = line * len(rows) + theme.px(80)
        width = min(width, self.width() - theme.px(16))
        card = QRect((self.width() - width) // 2, max(0, (self.height() - height) // 2), width, height)
        painter.setPen(theme.color("border"))
        painter.setBrush(theme.color("raised"))
        painter.drawRoundedRect(card, theme.px(8), theme.px(8))
        painter.setFont(theme.font("title"))
        painter.setPen(theme.color("text"))
        left, top = card.left() + theme.px(24), card.top() + theme.px(16)
        painter.drawText(QRect(left, top, width, theme.px(28)), Qt.AlignmentFlag.AlignVCenter, "Keys and mouse")
        top += theme.px(40)
        metrics = QFontMetrics(body)
        for shown, meaning in rows:
            painter.setFont(strong)
            painter.setPen(theme.color("accent"))
            painter.drawText(QRect(left, top, key_width, line), Qt.AlignmentFlag.AlignVCenter, shown)
            painter.setFont(body)
            painter.setPen(theme.color("text"))
            room = card.right() - theme.px(16) - left - key_width
            text = metrics.elidedText(meaning, Qt.TextElideMode.ElideRight, room)
            painter.drawText(QRect(left + key_width, top, room, line), Qt.AlignmentFlag.AlignVCenter, text)
            top += line
        painter.end()
