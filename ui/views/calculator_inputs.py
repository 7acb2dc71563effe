"""What is typed and chosen in the calculator: numbers in their shortest form, and lists that leave the wheel alone."""

from __future__ import annotations

from PySide6.QtCore import QLocale, QPoint, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent, QPen, QWheelEvent
from PySide6.QtWidgets import QComboBox, QWidget

from ui.theme import Theme
from ui.views.number_box import NumberBox


class FactorBox(NumberBox):
    """'8,192' and '0.5': thousands apart, no zeros that say nothing. As wide as `widest`."""

    def __init__(
        self, theme: Theme, low: float, high: float, step: float, digits: int, widest: str, tip: str, unit: str = "",
        parent: QWidget | None = None,
    ):  # fmt: skip
        self._widest = widest
        super().__init__(theme, low, low, high, step, digits, unit=unit, tip=tip, parent=parent)
        self.setLocale(QLocale(QLocale.Language.English, QLocale.Country.UnitedStates))
        self.setGroupSeparatorShown(True)
        self.setAlignment(Qt.AlignmentFlag.AlignHCenter)

    def restyle(self) -> None:
        super().restyle()
        metrics = QFontMetrics(self._theme.font("body"))
        self.setFixedWidth(metrics.horizontalAdvance(self._widest + self.suffix()) + self._theme.px(18))

    def show_value(self, value: float) -> None:
        """From outside: shown, not echoed; not while it is typed in."""
        if value != self.value() and not (self.hasFocus() and self.lineEdit().isModified()):
            self.blockSignals(True)
            self.setValue(value)
            self.blockSignals(False)

    def textFromValue(self, value: float) -> str:
        text = f"{value:,.{self.decimals()}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text


class Choice(QComboBox):
    """Leaves the wheel to the panel, and takes the focus from Tab only, so that the window's keys go on working."""

    def __init__(self, theme: Theme, name: str, width: int, parent: QWidget | None = None):
        super().__init__(parent)
        self._theme, self._width = theme, width
        self.setAccessibleName(name)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setMaxVisibleItems(24)
        self.restyle()

    def restyle(self) -> None:
        self.setFixedWidth(self._theme.px(self._width))
        self.setFixedHeight(QFontMetrics(self._theme.font("body")).height() + self._theme.px(8))
        px = self._theme.px
        self.setStyleSheet(
            f"QComboBox {{ padding: 0 {px(6)}px; }} QComboBox::down-arrow {{ image: none; }}"
            f"QComboBox::drop-down {{ border: none; background: transparent; width: {px(18)}px; }}"
        )

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        px, painter = self._theme.px, QPainter(self)  # the style's own arrow is of no theme
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        pen = QPen(self._theme.color("text_dim"), 1.5 * self._theme.scale)
        painter.setPen(pen)
        x, y = self.width() - px(13), self.height() // 2
        painter.drawPolyline([QPoint(x - px(4), y - px(2)), QPoint(x, y + px(2)), QPoint(x + px(4), y - px(2))])
        painter.end()

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()
