"""The top of the window: what runs, where, how it stands, the transport, and the big numbers.

One row where it fits; else the figures go to a second one, and the least important are left out. In a short window
there is one row of buttons and figures, and the badge sits in the menu's row. Nothing is cut: the model's name is the
only text that is shortened, and its tooltip says it whole.
"""

from __future__ import annotations

from PySide6.QtCore import QPoint, QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QMenu, QSizePolicy, QToolButton, QWidget

from ui import figures, simulated
from ui.context import ViewContext
from ui.contracts import SILENT
from ui.glyphs import Glyph, icon
from ui.headline import HeadlineNumbers
from ui.labels import MEANING, Elided, Pill
from ui.transport import SPEEDS, Transport

_FEWEST = 4  # figures that one row must have room for; with less room they get a row of their own


class TopBar(QFrame):
    """Name, model, badge, transport, figures.

    Attributes:
        pause, step, speed: the buttons. numbers: the figures. badge: provenance and state.
    """

    def __init__(self, context: ViewContext, transport: Transport, parent: QWidget | None = None):
        super().__init__(parent)
        self.setObjectName("panel")
        self._context, self._transport = context, transport
        theme = self._theme = context.theme
        self._name = Elided(theme, "brand", "text", parent=self)
        self._name.set_text("Servescope")
        self.model = Elided(theme, "small", "text_dim", parent=self)
        self.badge = Pill(theme, "measured", "mono_small", self)
        self.pause = self._button("Pause or resume the engine (Space)")
        self.step = self._button("One step (→)")
        self.speed = self._button("Slow motion: a pause before each step")
        self.speed.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.speed.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextOnly)
        self.speed.setMenu(self._speeds())
        self.numbers = HeadlineNumbers(theme, self)
        self.pause.clicked.connect(transport.toggle)
        self.step.clicked.connect(transport.step)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self._glyph: Glyph | None = None
        self.short = False
        self.restyle()

    def set_short(self, short: bool) -> None:
        """There is no height to spare: one row, without name and badge."""
        if short != self.short:
            self.short = short
            self._arrange()

    def restyle(self) -> None:
        px = self._theme.px
        for button in (self.pause, self.step, self.speed):
            button.setIconSize(QSize(px(16), px(16)))
            button.setFixedSize(px(48 if button is self.speed else 36), px(36))
        self.step.setIcon(icon(self._theme, Glyph.STEP))
        self._glyph = None
        self.refresh(True)
        self._arrange()

    def refresh(self, numbers: bool) -> None:
        """States at once; figures only when `numbers`: read at 60 Hz they would flicker."""
        mirror, source, transport = self._context.mirror, self._context.source, self._transport
        state, token = self._state()
        up = source.state != "starting" or len(mirror.history)
        badge = f"{source.provenance.upper()} · {state}" if up else state.upper()
        tip, what_if = MEANING[source.provenance], simulated.rates(self._context.cursor.state)
        if what_if and up:
            badge, token, tip = f"SIMULATED α {simulated.words(what_if)} · {state}", "simulated", simulated.MEANING
        if badge != self.badge.text():
            loud = bool(what_if) or source.provenance == "simulated"
            self.badge.set(badge, token, f"{source.title}\n{tip}", solid=loud)
            self._arrange()
        ready = source.state == "ready"
        for button in (self.pause, self.step, self.speed):
            if button.isEnabled() != ready:
                button.setEnabled(ready)
        glyph = Glyph.PLAY if transport.paused else Glyph.PAUSE
        if glyph is not self._glyph:
            self._glyph = glyph
            self.pause.setIcon(icon(self._theme, glyph, "warning" if transport.paused else "text"))
        if self.speed.text() != transport.label:
            self.speed.setText(transport.label)
        told = mirror.ready
        words = f"{told.model.name} · {told.model.dtype} · {told.device}" if told else source.title
        if words != self.model.text():
            self.model.set_text(words)
            self._arrange()
        if numbers:
            shown = figures.headline(mirror, self._context.cursor) if len(mirror.history) else None
            self.numbers.show_figures(shown, simulated=bool(what_if), all_of_it=source.provenance == "simulated")

    def sizeHint(self) -> QSize:
        return QSize(640, self.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._arrange()

    def _state(self) -> tuple[str, str]:
        """How the source stands, in a word, and the colour of that."""
        source, mirror = self._context.source, self._context.mirror
        if not self._context.cursor.is_live:
            return "past", "mark"
        if source.state in ("dead", "ended"):
            return {"dead": "stopped", "ended": "ended"}[source.state], "danger"
        if source.state == "starting":
            return "starting", "unavailable"
        if self._transport.paused:
            return "paused", "warning"
        if self._transport.slowed:
            return "slow motion", "warning"
        if source.silence > SILENT:
            return "no answer", "warning"
        return "idle" if mirror.status.idle and not mirror.live.running else "running", source.provenance

    def _arrange(self) -> None:
        """Place the children; pixels, a grid of 4."""
        px, width = self._theme.px, self.width()
        pad, gap, row = px(16), px(12), px(60)
        name = self._name.sizeHint().width()
        badge = self.badge.sizeHint()
        buttons = (self.pause, self.step, self.speed)
        transport = sum(button.width() for button in buttons) + px(4) * (len(buttons) - 1)
        model = self.model.sizeHint().width()
        fixed = pad + name + gap + badge.width() + gap + transport + pad
        shortest = min(model, px(120))
        single = fixed + gap + shortest + px(24) + self.numbers.needed(_FEWEST) <= width
        room = width - fixed - gap
        if single:
            spare = room - px(24) - self.numbers.needed()
            model_width = max(shortest, min(model, spare))
            if spare < shortest:  # too little for all figures: keep the name short, and drop figures
                model_width = shortest
        else:
            row = px(48)
            model_width = max(0, min(model, room))
        left = pad
        if self.short:
            row, model_width, single = px(56), 0, True
        for widget in (self._name, self.badge):
            widget.setVisible(not self.short)
        for widget, wide, high in (
            (self._name, name, row),
            (self.model, model_width, row),
            (self.badge, badge.width(), badge.height()),
            *((button, button.width(), button.height()) for button in buttons),
        ):
            if self.short and widget not in buttons:
                continue
            widget.move(QPoint(left, (row - high) // 2))
            widget.resize(wide, high)
            left += wide + (px(4) if widget in buttons[:-1] else gap if wide else 0)
        self.model.setVisible(model_width >= px(60))
        if single:
            self.numbers.setGeometry(left + px(12), 0, max(1, width - left - px(12) - pad // 2), row)
            self.setFixedHeight(row)
        else:
            self.numbers.setGeometry(pad, row, max(1, width - 2 * pad), px(56))
            self.setFixedHeight(row + px(60))

    def _button(self, tip: str) -> QToolButton:
        button = QToolButton(self)
        button.setToolTip(tip)
        button.setAccessibleName(tip)
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        return button

    def _speeds(self) -> QMenu:
        menu = QMenu(self)
        for speed in SPEEDS:
            action = menu.addAction(f"{speed.label}   {speed.meaning}")
            action.triggered.connect(lambda _=False, speed=speed: self._transport.slow(speed))
        return menu
