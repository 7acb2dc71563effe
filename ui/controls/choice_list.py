"""A choice among many of which only the chosen one is in sight. What can't be had stays in the list, with the reason.

Speaks as `Segments` does, so that an owner need not know which of the two a setting has.
"""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QPoint, Qt, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QPalette, QPen, QWheelEvent
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from ui.labels import as_plain
from ui.theme import Theme


class PlainList(QComboBox):
    """Leaves the wheel to the panel, and takes the focus from Tab only, so that the window's keys go on working."""

    def __init__(self) -> None:
        super().__init__()
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)

    def paintEvent(self, event: QPaintEvent) -> None:
        """With an arrow of its own: the style's stays as small as it is however large the text."""
        super().paintEvent(event)
        half = self.fontMetrics().height() // 5
        middle = QPoint(self.width() - 2 * half - 4, self.height() // 2)
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        group = QPalette.ColorGroup.Active if self.isEnabled() else QPalette.ColorGroup.Disabled
        painter.setPen(QPen(self.palette().color(group, QPalette.ColorRole.Text), max(1.5, half / 2.5)))
        corners = (-half, -half // 2), (0, half // 2), (half, -half // 2)
        painter.drawPolyline([middle + QPoint(x, y) for x, y in corners])
        painter.end()

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()


class ChoiceList(QWidget):
    """Title at the left, list at the right, a refusal below.

    Signals:
        chosen: (key, value), by the user only.

    Attributes:
        combo: the list. head: its row, to which an owner may add.
    """

    chosen = Signal(str, object)

    def __init__(
        self, theme: Theme, key: str, title: QLabel, choices: Mapping[str, tuple[str, str]],
        parent: QWidget | None = None,
    ):  # fmt: skip
        """`choices`: what the list says and what it means, by value."""
        super().__init__(parent)
        self.key = key
        self._theme = theme
        self._choices = dict(choices)
        self._told = next(iter(self._choices))
        self.combo = PlainList()
        self.combo.setAccessibleName(title.text())
        for value, (text, meaning) in self._choices.items():
            self.combo.addItem(text, value)
            self.combo.setItemData(self.combo.count() - 1, meaning, Qt.ItemDataRole.ToolTipRole)
        self._refusal = QLabel()
        self._refusal.setProperty("role", "warning")
        self._refusal.setWordWrap(True)
        self._refusal.setTextFormat(Qt.TextFormat.PlainText)  # what was typed is quoted there
        self._refusal.hide()
        self.head = QHBoxLayout()
        self.head.addWidget(title, 1)
        self.head.addWidget(self.combo)
        self._column = QVBoxLayout(self)
        self._column.addLayout(self.head)
        self._column.addWidget(self._refusal)
        self.combo.activated.connect(lambda _: self._activated())
        self.restyle()
        self._tell_meaning()

    @property
    def value(self) -> str:
        """What it shows."""
        return self.combo.currentData()

    @property
    def told(self) -> str:
        """What is in force."""
        return self._told

    @property
    def refusal(self) -> str:
        return self._refusal.text() if self._refusal.isVisibleTo(self) else ""

    def restyle(self) -> None:
        px = self._theme.px
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(px(2))
        self.head.setSpacing(px(6))

    def choose(self, value: str) -> None:
        """As a click would."""
        self.combo.setCurrentIndex(self.combo.findData(value))
        self._activated()

    def set_value(self, value: str) -> None:
        """From outside: shown, not echoed."""
        self._told = value
        if not self.combo.view().isVisible():  # left alone while the user looks for another
            self.combo.setCurrentIndex(self.combo.findData(value))
            self._tell_meaning()

    def set_absent(self, absent: Mapping[str, str]) -> None:
        """Choices that can't be had, and why."""
        for index, (value, (_, meaning)) in enumerate(self._choices.items()):
            why = absent.get(value)
            self.combo.model().item(index).setEnabled(why is None)
            tip = meaning if why is None else f"Not to be had: {why}"
            self.combo.setItemData(index, as_plain(tip), Qt.ItemDataRole.ToolTipRole)

    def set_pending(self, pending: bool) -> None:
        if bool(self.combo.property("pending")) != pending:
            self.combo.setProperty("pending", pending)
            self.combo.style().polish(self.combo)

    def refuse(self, message: str) -> None:
        self._refusal.setText(message)
        self._refusal.setVisible(bool(message))

    def _activated(self) -> None:
        self.refuse("")
        self._tell_meaning()
        self.chosen.emit(self.key, self.value)

    def _tell_meaning(self) -> None:
        self.combo.setToolTip(self._choices[self.value][1] if self.value in self._choices else "")
