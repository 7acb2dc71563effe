"""The built-in workload under its own title: run or pause it, send one request, send a burst, and its pace and
lengths. Steers the `Workload` directly; nothing here waits for the engine."""

from __future__ import annotations

import msgspec
from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QIntValidator
from PySide6.QtWidgets import QHBoxLayout, QLabel, QLineEdit, QPushButton, QVBoxLayout, QWidget

from ui.contracts import Workload, WorkloadSettings
from ui.controls import reasons, scale
from ui.controls.slider import SettingSlider
from ui.theme import Theme

_TITLES = {"rate": "Arrival rate", "prompt_tokens": "Prompt", "output_tokens": "Output"}
BURST = 8  # requests; enough to fill half the default batch at once
MOST = 256  # requests in one burst; more only makes a longer queue


class WorkloadControls(QWidget):
    """Three sliders, and buttons to run, send one, send a burst.

    Signals:
        changed: the workload's settings are other ones.
    """

    changed = Signal()

    def __init__(self, theme: Theme, workload: Workload, parent: QWidget | None = None):
        super().__init__(parent)
        self._theme = theme
        self._workload = workload
        self.run = _button("Pause arrivals")
        self.one = _button("Send 1", "Send one request of the built-in set now")
        self.burst = _button("Burst of", "Send that many requests at once")
        self.count = QLineEdit(str(BURST))
        self.count.setValidator(QIntValidator(1, MOST, self))
        self.count.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.count.setAccessibleName("Requests in a burst")
        self._send = QHBoxLayout()
        self._send.addWidget(self.one, 1)
        self._send.addWidget(self.burst, 1)
        self._send.addWidget(self.count)
        title = QLabel("Workload")
        title.setProperty("role", "section")
        self._head = QHBoxLayout()
        self._head.addWidget(title, 1)
        self._head.addWidget(self.run)
        self._column = QVBoxLayout(self)
        self._column.addLayout(self._head)
        self._column.addLayout(self._send)
        limits = reasons.workload_limits()
        self.sliders = {key: SettingSlider(theme, key, title, key != "rate") for key, title in _TITLES.items()}
        for key, slider in self.sliders.items():
            limit = limits[key]
            values = scale.rate(limit.high) if key == "rate" else scale.doubling(int(limit.low), int(limit.high))
            slider.set_limit(limit, values)
            slider.moved.connect(self._moved)
            self._column.addWidget(slider)
        self._limits = limits
        self.run.clicked.connect(self._toggle)
        self.one.clicked.connect(lambda: self._workload.send(1))
        self.burst.clicked.connect(lambda: self._workload.send(min(MOST, max(1, int(self.count.text() or 1)))))
        self.restyle()
        self.show_settings(workload.settings)

    def restyle(self) -> None:
        px = self._theme.px
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(px(4))
        self._send.setSpacing(px(4))
        self.count.setFixedWidth(px(44))
        for slider in self.sliders.values():
            slider.restyle()

    def show_settings(self, settings: WorkloadSettings) -> None:
        for key, slider in self.sliders.items():
            slider.set_value(getattr(settings, key))
        self.run.setText("Pause arrivals" if settings.running else "Resume arrivals")
        self.run.setToolTip("Stop or restart the built-in requests; the engine itself goes on")

    def show_hints(self, now: reasons.Situation) -> None:
        for key, slider in self.sliders.items():
            slider.set_hint(reasons.hint(key, now))

    def _toggle(self) -> None:
        settings = self._workload.settings
        self._change(msgspec.structs.replace(settings, running=not settings.running))

    def _moved(self, key: str, value: float) -> None:
        limit, slider = self._limits[key], self.sliders[key]
        if not limit.low <= value <= limit.high:
            slider.set_value(getattr(self._workload.settings, key))
            slider.refuse(f"{value:g} is outside {limit.low:g} to {limit.high:g} {limit.unit}: {limit.reason}")
            return
        self._change(msgspec.structs.replace(self._workload.settings, **{key: value if key == "rate" else int(value)}))

    def _change(self, settings: WorkloadSettings) -> None:
        self._workload.change(settings)
        self.show_settings(settings)
        self.changed.emit()


def _button(text: str, tip: str = "") -> QPushButton:
    button = QPushButton(text)
    button.setToolTip(tip)
    button.setProperty("kind", "tight")
    button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
    return button
