"""A small box for a number: typed, or changed with the wheel and the arrow keys; no buttons."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QFontMetrics, QKeyEvent, QWheelEvent
from PySide6.QtWidgets import QDoubleSpinBox, QWidget

from ui.theme import Theme

# NoButtons leaves the edit field one pixel wide under a style sheet (Qt 6.11): buttons of no width do what it says
_SHEET = (
    "QDoubleSpinBox { padding: 0; }"
    "QDoubleSpinBox::up-button, QDoubleSpinBox::down-button { width: 0; height: 0; border: none; }"
    "QDoubleSpinBox QLineEdit { padding: 0; border: none; background: transparent; }"
)


class NumberBox(QDoubleSpinBox):
    """`unit` follows the number, `name` goes before it."""

    def __init__(
        self,
        theme: Theme,
        value: float,
        low: float,
        high: float,
        step: float,
        digits: int,
        name: str = "",
        unit: str = "",
        tip: str = "",
        parent: QWidget | None = None,
    ):
        super().__init__(parent)
        self._theme = theme
        self.setDecimals(digits)
        self.setRange(low, high)
        self.setSingleStep(step)
        self.setPrefix(name)
        self.setSuffix(unit)
        self.setValue(value)
        self.setKeyboardTracking(False)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)  # not the wheel: a panel scrolled over must not be changed
        self.lineEdit().returnPressed.connect(self.clearFocus)  # so that the window's keys act again
        self.setToolTip(tip)
        self.setAccessibleName(tip or name)
        self.setStyleSheet(_SHEET)
        self.restyle()

    def restyle(self) -> None:
        """Another text scale: as wide as its longest value."""
        widest = f"{self.prefix()}{self.textFromValue(self.maximum())}{self.suffix()}"
        metrics = QFontMetrics(self._theme.font("body"))
        self.lineEdit().setTextMargins(self._theme.px(6), 0, self._theme.px(4), 0)
        self.setFixedWidth(metrics.horizontalAdvance(widest) + self._theme.px(18))
        self.setFixedHeight(metrics.height() + self._theme.px(8))

    # --- Qt ---

    def wheelEvent(self, event: QWheelEvent) -> None:
        if self.hasFocus():
            super().wheelEvent(event)
        else:
            event.ignore()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.clearFocus()
        else:
            super().keyPressEvent(event)
