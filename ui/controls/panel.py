"""The controls, top to bottom: drafting, engine, workload, policies, sampling. Sends changes, shows answers, owns no
settings: what it shows between two wishes is what the mirror says is in force at the moment shown."""

from __future__ import annotations

import math
from time import monotonic

import msgspec
import numpy as np
from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QScrollArea, QVBoxLayout, QWidget

from engine.config import AUTO, EngineConfig, Limit, LiveSettings, Model, limits
from ui import explain, figures
from ui.changes import Kinds
from ui.context import ViewContext
from ui.controls import drafting, flags, policies, reasons
from ui.controls.choice_list import ChoiceList
from ui.controls.scale import Scale, doubling, even, whole
from ui.controls.segments import Segments
from ui.controls.sender import ChangeSender
from ui.controls.slider import SettingSlider
from ui.controls.toggle import Toggle
from ui.controls.weights import Held, WeightsControl
from ui.controls.workload import WorkloadControls
from ui.history import BOUNDS, Columns

_ENGINE = {
    "max_batch": "Max batch",
    "max_context": "Max context",
    "kv_blocks": "KV pool",
    "token_budget": "Token budget",
}
_SAMPLING = {
    "temperature": "Temperature",
    "top_k": "Top-k",
    "top_p": "Top-p",
    "min_p": "Min-p",
    "repetition_penalty": "Repetition penalty",
    "presence_penalty": "Presence penalty",
    "frequency_penalty": "Frequency penalty",
}
_WHOLE = {*_ENGINE, *drafting.SLIDERS, *policies.SLIDERS, "top_k"} - {"watermark"}
_ON_OFF: list[tuple[str, bool | str]] = [("on", True), ("off", False)]
_COPY = "Copy settings"
_COPIED_STAYS = 3.0  # s that the button says that it worked
_WIDTH = 272  # pixels at text scale 1: the longest hint takes two lines
_SHARE = 0.36  # of the window's width, at most
# ranges while no engine has told its own
_UNKNOWN = Model(
    name="", architecture="", layers=1, heads=1, kv_heads=1, head_dim=1, hidden=1, vocabulary=1024, max_positions=8192,
    parameters=0, weight_bytes=0, dtype="", kv_bytes_per_token=1,
)  # fmt: skip


class ControlsPanel(QFrame):
    """Everything that changes while the engine runs, and the one thing that it is started again for.

    Signals:
        rebuild_wanted: start the engine again with the weights in this form.

    Attributes:
        sliders, segments: the controls by setting.
        workload: the controls of the built-in workload. weights: the form of the weights.
        sender: what was asked for and not yet answered.
    """

    rebuild_wanted = Signal(str)

    def __init__(self, context: ViewContext, parent: QWidget | None = None):
        super().__init__(parent)
        self.setObjectName("panel")
        self._context = context
        theme = context.theme
        self.sender = ChangeSender(context.source)
        self.sender.on_pending = self._pending
        self.sender.on_refused = self._refused
        self.sender.on_accepted = self._accepted
        self.sliders = {
            key: SettingSlider(theme, key, title, key in _WHOLE, AUTO if key == "token_budget" else None)
            for key, title in (_ENGINE | policies.SLIDERS | _SAMPLING).items()
        }
        self.drafting = drafting.DraftingControls(theme)
        self.sliders |= self.drafting.sliders
        self._switches = {
            "chunked_prefill": Segments(theme, "chunked_prefill", "Chunked prefill", _ON_OFF,
                                        "Compute a long prompt over several steps, beside the decodes"),
            "prefix_cache": Segments(theme, "prefix_cache", "Prefix cache", _ON_OFF,
                                     "Keep the blocks of what ended, and share equal beginnings"),
        }  # fmt: skip
        self._policies = policies.segments(theme)
        self.segments = self._switches | self._policies | self.drafting.choices
        self.workload = WorkloadControls(theme, context.workload)
        self.weights = WeightsControl(theme, _label("Engine", "section"))
        self._past = _label("", "warning")
        self._past.hide()
        self.copy = QPushButton(_COPY)
        self.copy.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.copy.setToolTip("As Servescope's and as vLLM's command line")
        self._build()
        for slider in self.sliders.values():
            slider.moved.connect(self._moved)
        for segments in self.segments.values():
            segments.chosen.connect(self._chosen)
        self.drafting.model_wanted.connect(self._model_wanted)
        self.drafting.rates_wanted.connect(lambda rates: self.sender.wish("simulated_acceptance", rates))
        self.weights.wanted.connect(self.rebuild_wanted)
        self.copy.clicked.connect(self.copy_settings)
        self._copied_at = 0.0
        self._limits: dict[str, Limit] = {}
        self._ready_seen: object = None
        self._take_limits()
        self.restyle()
        self.refresh(Kinds.ALL)

    def sizeHint(self) -> QSize:
        return QSize(self._context.theme.px(_WIDTH), 400)

    def restyle(self) -> None:
        px = self._context.theme.px
        self.fit(self.window().width())
        self._column.setContentsMargins(px(12), px(4), px(8), px(4))
        self._column.setSpacing(px(2))
        self._outer.setContentsMargins(1, px(4), px(2), px(4))
        for widget in (*self.sliders.values(), *self.segments.values(), self.drafting, self.weights,
                       self.workload):  # fmt: skip
            widget.restyle()

    def fit(self, window_width: int) -> None:
        """Take no more than a share of the window, however large the text."""
        self.setFixedWidth(min(self._context.theme.px(_WIDTH), max(240, round(window_width * _SHARE))))

    def refresh(self, kinds: Kinds) -> None:
        """Answers, settings in force and hints; the caller sees to it that hints aren't asked for too often."""
        mirror = self._context.mirror
        self.sender.settle(mirror.acks)
        if kinds & Kinds.SOURCE:
            self._take_limits()
            if mirror.died is not None or mirror.ended:
                self.sender.forget()
        if kinds & (Kinds.SETTINGS | Kinds.CURSOR | Kinds.SOURCE):
            self._show_settings()
        self._show_hints()
        self._show_weights()
        if self._copied_at and monotonic() - self._copied_at > _COPIED_STAYS:
            self._copied_at = 0.0
            self.copy.setText(_COPY)

    def settings(self) -> LiveSettings:
        """In force at the moment shown."""
        settings = self._context.cursor.state.settings or self._context.mirror.settings or LiveSettings()
        if not self._context.cursor.is_live:
            return settings
        meant = self._context.mirror.alternation.meant(settings.draft_length)
        return msgspec.structs.replace(settings, draft_length=meant)

    def copy_settings(self) -> str:
        """Put both command lines on the clipboard; returns the text."""
        ready = self._context.mirror.ready
        config = ready.config if ready else EngineConfig()
        name = ready.model.name if ready else config.model
        block_size = ready.block_size if ready else config.block_size
        text = flags.both(self.settings(), block_size, config.model, name, config.dtype)
        QGuiApplication.clipboard().setText(text)
        self.copy.setText("Copied: ours and vLLM's")
        self._copied_at = monotonic()
        return text

    def _build(self) -> None:
        page = QWidget()
        page.setObjectName("page")
        self._column = QVBoxLayout(page)
        self._column.addWidget(self._past)
        self._column.addWidget(self.drafting)
        self._column.addSpacing(4)
        self._column.addWidget(self.weights)
        for key in _ENGINE:
            self._column.addWidget(self.sliders[key])
        for segments in self._switches.values():
            self._column.addWidget(segments)
        self._column.addSpacing(4)
        self._column.addWidget(self.workload)
        self._section(policies.TITLE)
        for segments in self._policies.values():
            self._column.addWidget(segments)
        for key in policies.SLIDERS:
            self._column.addWidget(self.sliders[key])
        self._section("Sampling, where a request sets none")
        for key in _SAMPLING:
            self._column.addWidget(self.sliders[key])
        row = QHBoxLayout()
        row.addWidget(self.copy)
        self._column.addLayout(row)
        self._column.addStretch(1)
        area = QScrollArea()
        area.setWidgetResizable(True)
        area.setFrameShape(QFrame.Shape.NoFrame)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        area.setWidget(page)
        self.area = area
        self._outer = QVBoxLayout(self)
        self._outer.addWidget(area)

    def _section(self, title: str) -> None:
        self._column.addSpacing(8)
        self._column.addWidget(_label(title, "section"))

    def _take_limits(self) -> None:
        """The engine's own limits once it is up; before that, the widest that could come."""
        ready = self._context.mirror.ready
        if ready is self._ready_seen and self._limits:
            return
        self._ready_seen = ready
        self._limits = ready.limits if ready else limits(_UNKNOWN, 16, 4096)
        for key, slider in self.sliders.items():
            if key in self._limits:
                slider.set_limit(self._limits[key], _scale(key, self._limits[key]), told=ready is not None)
        self.drafting.set_absent(ready.absent_drafts if ready else {})

    def _show_settings(self) -> None:
        live = self._context.cursor.is_live
        settings = self.settings()
        for key in (*self.sliders, *self.segments):
            if not self.sender.pending(key) or not live:
                self._tell(key, settings)
        self.drafting.show_settings(settings)
        up = self._context.mirror.ready is not None and self._context.source.state == "ready"
        for widget in (*self.sliders.values(), *self.segments.values(), self.drafting):
            widget.setEnabled(live and up)
        self._past.setVisible(not live)
        if not live:
            self._past.setText(f"As of step {self._context.cursor.step:,}. Esc returns to now, to change them.")
        self.workload.show_settings(self._context.workload.settings)

    def _tell(self, key: str, settings: LiveSettings) -> None:
        """Tell a control what is in force: of a budget that the engine finds itself, the one of the moment shown."""
        value = getattr(settings, key)
        if key == "token_budget":
            found, story = self._context.cursor.state.budget, ""
            if value == AUTO and found is not None and found.tokens:
                value, story = found.tokens, explain.budget(found, settings.chunked_prefill)
            self.sliders[key].set_auto(settings.token_budget == AUTO, story)
        control = self.sliders.get(key) or self.segments[key]
        control.set_value(value)

    def _show_hints(self) -> None:
        if not self.sender.pending("token_budget") or not self._context.cursor.is_live:
            self._tell("token_budget", self.settings())
        now = self._situation()
        for key, slider in self.sliders.items():
            slider.set_hint(reasons.hint(key, now))
        self.workload.show_hints(now)

    def _show_weights(self) -> None:
        source, mirror, cursor = self._context.source, self._context.mirror, self._context.cursor
        ready = mirror.ready
        held = Held(
            form=source.form,
            model=ready.model if ready else None,
            absent=ready.absent if ready else {},
            unfinished=len(mirror.live.running) + len(mirror.live.waiting),
            fixed=source.fixed,
        )
        self.weights.show_held(held, cursor.is_live and source.state != "starting")

    def _situation(self) -> reasons.Situation:
        mirror, state = self._context.mirror, self._context.cursor.state
        columns = mirror.history.slice(max(0, state.step - reasons.RECENT_STEPS + 1), state.step)
        counts = np.bincount(columns.bound, minlength=len(BOUNDS))
        return reasons.Situation(
            settings=self.settings(),
            workload=self._context.workload.settings,
            block_size=mirror.ready.block_size if mirror.ready else state.block_size,
            model=mirror.ready.model if mirror.ready else None,
            running=len(state.running),
            waiting=len(state.waiting),
            used=state.used,
            cached=state.cached,
            on_host=state.host.used,
            acceptance=figures.acceptance(mirror.history, state.step) if len(mirror.history) else math.nan,
            drafted=_mean_drafted(columns),
            bound=dict(zip(BOUNDS, counts.tolist(), strict=True)),
            recent=len(columns),
            budget=state.budget,
        )

    def _moved(self, key: str, value: float) -> None:
        if key == "draft_length":
            self._context.mirror.alternation.leave()
        self.sender.wish(key, int(value) if key in _WHOLE else value)

    def _model_wanted(self, path: str) -> None:
        self.drafting.method.refuse("")
        self.sender.wish("draft_method", "model", {"draft_model": path})

    def _chosen(self, key: str, value: bool | int | str) -> None:
        if key == "draft_method" and self.drafting.needs_model(value):
            return  # it says which in a moment
        self.sender.wish(key, value, policies.along(key, value, self.settings(), self._limits))

    def _control(self, key: str) -> SettingSlider | Segments | ChoiceList | Toggle | None:
        simulated = self.drafting.simulated if key == "simulated_acceptance" else None
        return self.sliders.get(key) or self.segments.get(key) or simulated

    def _accepted(self, key: str, step: int) -> None:
        if key == "draft_method":
            self.drafting.model_accepted()

    def _pending(self, key: str, pending: bool) -> None:
        if key == "draft_method":
            self.drafting.model.set_pending(pending)
        control = self._control(key)
        if control is not None:
            control.set_pending(pending)

    def _refused(self, key: str, message: str) -> None:
        control, settings = self._control(key), self._context.mirror.settings or LiveSettings()
        if control is not None:
            self.drafting.show_settings(settings)
            if control is not self.drafting.simulated:
                self._tell(key, settings)
            control.refuse(message)


def _mean_drafted(columns: Columns) -> float:
    """Tokens drafted for a decode row."""
    rows = int(columns.decode.sum())
    return int(columns.accepted.sum() + columns.rejected.sum()) / rows if rows else math.nan


def _scale(key: str, limit: Limit) -> Scale:
    if key in drafting.SLIDERS:
        return whole(int(limit.low), int(limit.high))
    if key in ("temperature", "top_p", "min_p", "watermark"):
        return even(limit.low, min(limit.high, 2.0), 0.05 if key == "temperature" else 0.01)
    if key.endswith("_penalty"):
        low, high = (1.0, 2.0) if key == "repetition_penalty" else (limit.low, limit.high)
        return even(low, high, 0.05 if low else 0.1)
    if key == "top_k":
        return doubling(int(limit.low), min(1024, int(limit.high)))
    return doubling(int(limit.low), int(limit.high))


def _label(text: str, role: str) -> QLabel:
    label = QLabel(text)
    label.setProperty("role", role)
    label.setWordWrap(True)
    return label
