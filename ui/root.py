"""What lies behind everything: the window's ground, and the frame that says that the past is shown."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from ui.theme import Theme

_FRAME = 4  # pixels at text scale 1


class Root(QWidget):
    """Paints the gaps between panels, tinted and framed while the cursor is pinned.

    Attributes:
        past: whether a past moment is shown.
    """

    def __init__(self, theme: Theme, parent: QWidget | None = None):
        super().__init__(parent)
        self._theme = theme
        self.past = False
        # takes the focus from an input when the ground is clicked, so that the window's keys work again
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)

    def set_past(self, past: bool) -> None:
        if past != self.past:
            self.past = past
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        theme, painter = self._theme, QPainter(self)
        if not self.past:
            painter.fillRect(event.rect(), theme.color("bg"))
        else:
            painter.fillRect(self.rect(), theme.mix("mark", 0.85, "bg"))
            width = theme.px(_FRAME)
            painter.fillRect(self.rect().adjusted(width, width, -width, -width), theme.mix("mark", 0.22, "bg"))
        painter.end()
