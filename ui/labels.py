"""Small painted words: a line that gives way, and the pill that says where figures come from."""

from __future__ import annotations

from html import escape

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from ui.theme import Theme

PART = " · "  # between the parts of a line, the most important first


def fitted(text: str, metrics: QFontMetrics, width: int) -> str:
    """As many whole parts of a line as fit; a first part that is too long by itself ends in an ellipsis."""
    while metrics.horizontalAdvance(text) > width and PART in text:
        text = text.rpartition(PART)[0]
    return metrics.elidedText(text, Qt.TextElideMode.ElideRight, width)


def as_plain(text: str) -> str:
    """For tooltips, which have no plain mode: text that looks like HTML is shown as it is, not obeyed."""
    return f'<p style="white-space: pre-wrap">{escape(text)}</p>' if "<" in text else text


class Elided(QWidget):
    """One line of text that gives way part by part, never clipped, and told whole as a tooltip."""

    def __init__(self, theme: Theme, role: str, token: str, right: bool = False, parent: QWidget | None = None):
        super().__init__(parent)
        self._theme, self._role, self._token, self._right = theme, role, token, right
        self._text = ""
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    def text(self) -> str:
        return self._text

    def set_text(self, text: str) -> None:
        if text != self._text:
            self._text = text
            if self.sizePolicy().horizontalPolicy() != QSizePolicy.Policy.Ignored:
                self.updateGeometry()
            self.setToolTip(as_plain(text))
            self.update()

    def set_right(self, right: bool) -> None:
        if right != self._right:
            self._right = right
            self.update()

    def sizeHint(self) -> QSize:
        metrics = self._metrics()
        return QSize(metrics.horizontalAdvance(self._text) + 2, metrics.height())

    def minimumSizeHint(self) -> QSize:
        return QSize(0, self._metrics().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setFont(self._theme.font(self._role))
        painter.setPen(self._theme.color(self._token))
        shown = fitted(self._text, self._metrics(), self.width())
        side = Qt.AlignmentFlag.AlignRight if self._right else Qt.AlignmentFlag.AlignLeft
        painter.drawText(self.rect(), side | Qt.AlignmentFlag.AlignVCenter, shown)
        painter.end()

    def _metrics(self) -> QFontMetrics:
        return QFontMetrics(self._theme.font(self._role))


class Pill(QWidget):
    """A rounded label in one of the theme's colours."""

    def __init__(self, theme: Theme, token: str, role: str = "mono_small", parent: QWidget | None = None):
        super().__init__(parent)
        self._theme, self._token, self._role = theme, token, role
        self._text = ""
        self._compact = self._solid = False
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def text(self) -> str:
        return self._text

    def content(self) -> tuple[str, str, str, bool]:
        """Text, token and tooltip, as `set` takes them."""
        return self._text, self._token, self.toolTip(), self._solid

    def set(self, text: str, token: str, tip: str = "", solid: bool = False) -> None:
        """`solid`: dark on the full colour, for what must not be overlooked."""
        if (text, token, tip, solid) != self.content():
            self._text, self._token, self._solid = text, token, solid
            self.setToolTip(tip)
            self.updateGeometry()
            self.update()

    def set_compact(self, compact: bool) -> None:
        """Only a dot of the colour; the tooltip says the rest."""
        if compact != self._compact:
            self._compact = compact
            self.updateGeometry()
            self.update()

    def full_width(self) -> int:
        return QFontMetrics(self._theme.font(self._role)).horizontalAdvance(self._text) + self._theme.px(16)

    def sizeHint(self) -> QSize:
        if self._compact:
            return QSize(self._theme.px(12), self._theme.px(12))
        metrics = QFontMetrics(self._theme.font(self._role))
        return QSize(self.full_width(), metrics.height() + self._theme.px(4))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(self._theme.mix(self._token, 0.45))
        painter.setBrush(self._theme.mix(self._token, 1.0 if self._compact or self._solid else 0.10))
        box = self.rect().adjusted(0, 0, -1, -1)
        painter.drawRoundedRect(box, box.height() / 2, box.height() / 2)
        if not self._compact:
            painter.setFont(self._theme.font(self._role))
            color = self._theme.color(self._token)
            painter.setPen(self._theme.ink_on(color) if self._solid else color)
            painter.drawText(self.rect(), Qt.AlignmentFlag.AlignCenter, self._text)
        painter.end()


MEANING = {
    "measured": "Measured: these figures were taken from the running engine.",
    "derived": "Derived: computed from measured figures by a formula.",
    "simulated": "Simulated: a cost model stands in for the forward pass, or drafts are accepted at given rates.",
    "unavailable": "Unavailable: this machine doesn't tell.",
}
