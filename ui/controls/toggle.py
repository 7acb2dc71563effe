"""A button that stands for one of two values of a setting, beside a control that it belongs to. Speaks as `Segments`
does."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QPushButton, QWidget


class Toggle(QPushButton):
    """On is `on`, which is also what it says.

    Signals:
        chosen: (key, value), by the user only.
    """

    chosen = Signal(str, object)

    def __init__(self, key: str, on: str, off: str, refused: Callable[[str], None], parent: QWidget | None = None):
        """`refused`: where to say why a wish was not granted."""
        super().__init__(on, parent)
        self.key, self._on, self._off, self._refused = key, on, off, refused
        self.setCheckable(True)
        self.setProperty("kind", "toggle")
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setAccessibleName(f"{key}: {on}")
        self.clicked.connect(lambda checked: self.chosen.emit(self.key, self._on if checked else self._off))

    @property
    def value(self) -> str:
        return self._on if self.isChecked() else self._off

    def set_value(self, value: str) -> None:
        """From outside: shown, not echoed."""
        self.setChecked(value == self._on)

    def set_pending(self, pending: bool) -> None:
        return None  # it shows the wish at once; there is no other sign on so small a button

    def refuse(self, message: str) -> None:
        self._refused(message)

    def restyle(self) -> None:
        return None  # the window's style sheet does
