"""One number that can be dragged or typed: name, value box, slider, how it works out now, and its range. Some numbers
the engine can find itself: these have a button 'auto' beside the box, and then show what was found.

Knows nothing of engines: whoever owns it listens to `moved` and tells it values, limits, hints and refusals. Values
set from outside are never echoed.
"""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QMouseEvent, QWheelEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QLineEdit, QPushButton, QSlider, QStyle, QVBoxLayout, QWidget

from engine.config import Limit
from ui.controls.reasons import limit_line, limit_story
from ui.controls.scale import Scale
from ui.labels import Elided
from ui.theme import Theme


class SettingSlider(QWidget):
    """Name, value box, slider, hint, limit.

    Signals:
        moved: the user wants this value.

    Attributes:
        auto: the button, None for a number that is always the user's.
        key: the setting's name.
        dragging: the user holds the slider.
    """

    moved = Signal(str, float)

    def __init__(
        self,
        theme: Theme,
        key: str,
        title: str,
        whole: bool = True,
        auto: float | None = None,
        parent: QWidget | None = None,
    ):
        """`auto`: the value that stands for 'the engine finds it', if there is one."""
        super().__init__(parent)
        self.key = key
        self._theme = theme
        self._whole = whole
        self._value = 0.0
        self._told = 0.0  # by the owner, last
        self._scale = Scale([0.0])
        self._title = QLabel(title)
        self.box = QLineEdit()
        self.box.setProperty("kind", "value")
        self.box.setAlignment(Qt.AlignmentFlag.AlignRight)
        self.box.setTextMargins(0, 0, -3, 0)  # past Qt's own margin, so that figures end where the slider ends
        self.box.setAccessibleName(title)
        self.slider = _Slider()
        self.slider.setAccessibleName(title)
        self._hint, self._refusal = _label("hint"), _label("warning")
        self._limit = Elided(theme, "small", "text_faint")
        for label in (self._hint, self._refusal):
            label.setWordWrap(True)
            label.setTextFormat(Qt.TextFormat.PlainText)  # what was typed is quoted there
        self._refusal.hide()
        self._column = QVBoxLayout(self)
        self._head = QHBoxLayout()
        self._head.addWidget(self._title, 1)
        self._finds = auto
        self._box_width = 76 if auto is None else 56  # pixels at text scale 1
        self.auto: QPushButton | None = None
        if auto is not None:
            self.auto = QPushButton("auto")
            self.auto.setCheckable(True)
            self.auto.setProperty("kind", "toggle")
            self.auto.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            self.auto.setAccessibleName(f"{title}: auto")
            self.auto.clicked.connect(self._auto_clicked)
            self._head.addWidget(self.auto)
        self._head.addWidget(self.box)
        self._column.addLayout(self._head)
        for widget in (self.slider, self._hint, self._limit, self._refusal):
            self._column.addWidget(widget)
        self.slider.valueChanged.connect(self._dragged)
        self.slider.sliderReleased.connect(self._released)
        self.box.editingFinished.connect(self._typed)
        self.restyle()

    @property
    def dragging(self) -> bool:
        return self.slider.isSliderDown()

    @property
    def value(self) -> float:
        """What the control shows, whether or not the engine obeys it yet."""
        return self._value

    def set_title(self, text: str) -> None:
        self._title.setText(text)

    def add_beside(self, widget: QWidget) -> None:
        """Between name and value: a button that says how the number is meant."""
        self._head.insertWidget(1, widget)
        self._box_width = 40

    def fold(self, folded: bool) -> None:
        """Only name, buttons and value: where the number means nothing now."""
        for widget in (self.box, self.slider, self._hint, self._limit):
            widget.setVisible(not folded)

    def restyle(self) -> None:
        px = self._theme.px
        # tight: all sliders of engine and workload stand on the first screen at 1600 × 1000
        self._column.setContentsMargins(0, 0, 0, px(7))
        self._column.setSpacing(0)
        self._head.setSpacing(px(4))
        self.box.setFixedWidth(px(self._box_width))

    def set_limit(self, limit: Limit, scale: Scale, told: bool = True) -> None:
        """`told` False: nobody knows the real range yet."""
        self._limit.set_text(limit_line(self.key, limit) if told else "the range is known once the engine is up")
        self._limit.setToolTip(limit_story(limit) if told else "")
        self._scale = scale
        self.slider.blockSignals(True)
        self.slider.setRange(0, len(scale) - 1)
        self.slider.setPageStep(max(1, len(scale) // 10))
        self.slider.setValue(scale.position(self._value))
        self.slider.blockSignals(False)

    def set_value(self, value: float) -> None:
        """From outside: shown, not echoed. Left alone while the user types or drags."""
        self._told = value
        if self.dragging or self.box.isModified():
            return
        self._show(value)

    @property
    def is_auto(self) -> bool:
        return self.auto is not None and self.auto.isChecked()

    def set_auto(self, on: bool, story: str = "") -> None:
        """From outside: whether the engine finds the value, which `set_value` tells, and how it came to it."""
        assert self.auto is not None
        if not self.dragging and not self.box.isModified():
            self.auto.setChecked(on)
        more = "Click to keep this number; drag for another" if on else "Click: the engine finds it from measured times"
        tip = f"{story}.\n{more}" if story else more
        if tip != self.auto.toolTip():
            self.auto.setToolTip(tip)
            self.slider.setToolTip(story)

    def set_hint(self, text: str) -> None:
        if text != self._hint.text():
            self._hint.setText(text)

    def set_pending(self, pending: bool) -> None:
        if self.box.property("pending") != pending:
            self.box.setProperty("pending", pending)
            self.box.style().polish(self.box)
            self.box.setToolTip("Sent; the engine answers before its next step" if pending else "")

    def refuse(self, message: str) -> None:
        """Why the last wish was not granted; an empty message takes the words away."""
        self._refusal.setText(message)
        self._refusal.setVisible(bool(message))

    @property
    def hint_text(self) -> str:
        return self._hint.text()

    @property
    def limit_text(self) -> str:
        return self._limit.text()

    @property
    def refusal(self) -> str:
        return self._refusal.text() if self._refusal.isVisibleTo(self) else ""

    def _show(self, value: float) -> None:
        self._value = value
        self.slider.blockSignals(True)
        self.slider.setValue(self._scale.position(value))
        self.slider.blockSignals(False)
        text = "auto" if value == self._finds else f"{value:,.0f}" if self._whole else f"{value:g}"
        if text != self.box.text():
            self.box.setText(text)

    def _dragged(self, position: int) -> None:
        self._wish(self._scale.value(position))

    def _released(self) -> None:
        """A value that was refused while the handle was held gives way once it is let go."""
        if self._refusal.text():
            self._show(self._told)

    def _typed(self) -> None:
        if not self.box.isModified():
            return
        self.box.setModified(False)
        text = self.box.text().replace(",", "").replace("\u2009", "").strip()
        if text == "auto" and self.auto is not None:
            self._show(self._told)
            self.auto.setChecked(True)
            self._auto_clicked(True)
            return
        try:
            value = float(text)
        except ValueError:
            self._show(self._value)
            self.refuse(f"“{text}” is not a number")
            return
        if value != value or value in (float("inf"), float("-inf")):
            self._show(self._value)
            self.refuse(f"“{text}” is not a number to set")
            return
        self._wish(float(round(value)) if self._whole else value)

    def _wish(self, value: float) -> None:
        self.refuse("")
        changed = value != self._value or self.is_auto
        if self.auto is not None:
            self.auto.setChecked(False)
        self._show(value)
        if changed:
            self.moved.emit(self.key, value)


    def _auto_clicked(self, on: bool) -> None:
        """On: let the engine find it. Off: keep what it found."""
        self.refuse("")
        assert self._finds is not None
        self.moved.emit(self.key, self._finds if on else self._value)


class _Slider(QSlider):
    """Jumps to where it is pressed, leaves the wheel to the panel, and takes the focus from Tab only, so that
    dragging it doesn't turn the window's keys off."""

    def __init__(self) -> None:
        super().__init__(Qt.Orientation.Horizontal)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton:
            handle = self.style().pixelMetric(QStyle.PixelMetric.PM_SliderLength, None, self)
            room = max(1, self.width() - handle)
            at = round(event.position().x()) - handle // 2
            near = QStyle.sliderPositionFromValue(self.minimum(), self.maximum(), self.value(), room)
            if abs(at - near) > handle // 2:
                self.setValue(QStyle.sliderValueFromPosition(self.minimum(), self.maximum(), at, room))
        super().mousePressEvent(event)

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()


def _label(role: str) -> QLabel:
    label = QLabel()
    label.setProperty("role", role)
    return label
