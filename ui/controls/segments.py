"""A choice between a few words, all of them in sight: on/off, off/n-gram, 8/16/32."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFont, QFontMetrics
from PySide6.QtWidgets import QButtonGroup, QFrame, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from ui.theme import Theme

MANY = 3  # from more choices on they stand closer
Choice = tuple[str, bool | int | str]  # what the button says, the value it stands for


class Segments(QWidget):
    """Name at the left, choices at the right, a refusal below.

    Signals:
        chosen: (key, value), by the user only.
    """

    chosen = Signal(str, object)

    def __init__(
        self, theme: Theme, key: str, title: str, choices: list[Choice], tip: str = "", parent: QWidget | None = None
    ):
        super().__init__(parent)
        self.key = key
        self._theme = theme
        self._values = [value for _, value in choices]
        self._group = QButtonGroup(self)
        self._frame = QFrame()
        self._frame.setObjectName("segments")
        self._buttons = QHBoxLayout(self._frame)
        for index, (text, _) in enumerate(choices):
            button = QPushButton(text)
            button.setCheckable(True)
            button.setProperty("kind", "segment")
            button.setProperty("many", len(choices) > MANY)
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            button.setAccessibleName(f"{title}: {text}")
            self._group.addButton(button, index)
            self._buttons.addWidget(button)
        self._refusal = QLabel()
        self._refusal.setProperty("role", "warning")
        self._refusal.setWordWrap(True)
        self._refusal.hide()
        label = QLabel(title)
        self.setToolTip(tip)
        self._row = QHBoxLayout()
        self._row.addWidget(label, 1)
        self._row.addWidget(self._frame)
        self._column = QVBoxLayout(self)
        self._column.addLayout(self._row)
        self._column.addWidget(self._refusal)
        self._group.idClicked.connect(self._clicked)
        self.restyle()

    @property
    def value(self) -> bool | int | str | None:
        index = self._group.checkedId()
        return self._values[index] if index >= 0 else None

    @property
    def refusal(self) -> str:
        return self._refusal.text() if self._refusal.isVisibleTo(self) else ""

    def button(self, value: bool | int | str) -> QPushButton:
        return self._group.button(self._values.index(value))

    def restyle(self) -> None:
        px = self._theme.px
        self._column.setContentsMargins(0, 0, 0, px(3))
        self._column.setSpacing(px(2))
        self._buttons.setContentsMargins(px(2), px(2), px(2), px(2))
        self._buttons.setSpacing(px(2))
        bold = QFont(self._theme.font("small"))  # a button's own size knows nothing of its bold text once checked
        bold.setWeight(QFont.Weight.DemiBold)
        pad = 4 if len(self._values) > MANY else 6  # as the style sheet has it
        for button in self._group.buttons():
            button.setMinimumWidth(QFontMetrics(bold).horizontalAdvance(button.text()) + 2 * px(pad) + 1)

    def set_value(self, value: bool | int | str) -> None:
        """From outside: shown, not echoed."""
        if value in self._values:
            self._group.button(self._values.index(value)).setChecked(True)

    def set_pending(self, pending: bool) -> None:
        self._frame.setToolTip("Sent; the engine answers before its next step" if pending else "")

    def refuse(self, message: str) -> None:
        self._refusal.setText(message)
        self._refusal.setVisible(bool(message))

    def _clicked(self, index: int) -> None:
        self.refuse("")
        self.chosen.emit(self.key, self._values[index])
