"""The strip below the top bar: a dead engine with its reason and Restart, loading with its progress, notices and
refused requests. One at a time, the gravest first; empty, it takes no room."""

from __future__ import annotations

from time import monotonic

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QProgressBar, QPushButton, QSizePolicy, QToolButton, QWidget

from engine.records import Loading, Notice, Refused
from ui.contracts import SILENT, Source
from ui.explain import size
from ui.glyphs import Glyph, icon
from ui.labels import as_plain
from ui.mirror import Mirror
from ui.theme import Theme
from ui.unload import Unload

_INFO_STAYS = 12.0  # s: long enough to read twice; warnings stay until they are dismissed


class Banner(QFrame):
    """Says what the user must know.

    Signals:
        restart_wanted: the Restart button.

    Attributes:
        restart: the button. text: what is shown, "" for nothing.
    """

    restart_wanted = Signal()

    def __init__(
        self, theme: Theme, mirror: Mirror, source: Source, unload: Unload | None = None, parent: QWidget | None = None
    ):
        super().__init__(parent)
        self.setObjectName("banner")
        self._theme, self._mirror, self._source = theme, mirror, source
        self._unload = unload or Unload()
        self._last: object = None
        self._newest: object = None
        self._since = 0.0
        self._own: list[tuple[str, str]] = []  # (text, token) from the window itself
        self._label = QLabel()
        self._label.setWordWrap(True)
        self._label.setTextFormat(Qt.TextFormat.PlainText)  # reasons quote files and prompts of strangers
        self._label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self._label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._bar = QProgressBar()
        self._bar.setTextVisible(False)
        self.restart = QPushButton("Restart engine")
        self.restart.setProperty("kind", "primary")
        self.restart.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.restart.clicked.connect(self.restart_wanted)
        self.dismiss = QToolButton()
        self.dismiss.setProperty("kind", "quiet")
        self.dismiss.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.dismiss.setToolTip("Dismiss")
        self.dismiss.setAccessibleName("Dismiss")
        self.dismiss.clicked.connect(self._dismissed)
        self._row = QHBoxLayout(self)
        self._row.addWidget(self._label, 1)
        for widget in (self._bar, self.restart, self.dismiss):
            self._row.addWidget(widget)
        self._token = ""
        self.restyle()
        self.refresh()

    @property
    def text(self) -> str:
        return self._label.text() if not self.isHidden() else ""

    def restyle(self) -> None:
        px = self._theme.px
        self._row.setContentsMargins(px(12), px(8), px(8), px(8))
        self._row.setSpacing(px(12))
        self._bar.setFixedWidth(px(240))
        self.dismiss.setIcon(icon(self._theme, Glyph.CLOSE, "text_dim"))
        self.dismiss.setIconSize(QSize(px(12), px(12)))
        self._paint(self._token or "accent", force=True)

    def say(self, text: str, token: str = "warning") -> None:
        """A notice of the window's own."""
        self._own.append((text, token))
        self.refresh()

    def refresh(self) -> None:
        mirror = self._mirror
        state = self._source.state
        if self._unload.begun and (state == "ended" or (mirror.ended and state != "starting")):
            # also when a later command found nobody
            self._show(f"The engine is unloaded: {self._unload.words}.", "derived", restart=True)
        elif state == "dead" or (mirror.died is not None and state != "starting"):
            reason = mirror.died.reason if mirror.died is not None else "its process ended without a word"
            self._show(f"The engine stopped: {reason}  What was seen is kept.", "danger", restart=True)
            self._label.setToolTip(as_plain(mirror.died.detail) if mirror.died is not None else "")
        elif state == "ended" or (mirror.ended and state != "starting"):
            self._show("The engine has ended. What was seen is kept.", "warning", restart=True)
        elif mirror.loading is not None or state == "starting":
            self._load(mirror.loading)
        elif self._source.silence > SILENT:
            self._show(_silent(self._source.silence, mirror.ready.pid if mirror.ready else 0), "warning", restart=True)
        elif self._own:
            self._show(*self._own[0], dismiss=True)
        elif self._unread():
            self._notice()
        else:
            self.hide()

    def _unread(self) -> int:
        """Notices that came since the last was dismissed; the mirror keeps a bounded list."""
        notices = self._mirror.notices
        if self._last is not None and self._last in notices:
            return len(notices) - 1 - max(i for i, n in enumerate(notices) if n is self._last or n == self._last)
        return len(notices)

    def _notice(self) -> None:
        notices = self._mirror.notices
        unread = {_words(one) for one in notices[-self._unread() :]}  # what is said again counts once
        newest, more = notices[-1], len(unread) - 1
        if newest is not self._newest:
            self._newest, self._since = newest, monotonic()
        elif isinstance(newest, Notice) and newest.level == "info" and monotonic() - self._since > _INFO_STAYS:
            self._dismissed()
            return
        text = _words(newest)
        token = "derived" if isinstance(newest, Notice) and newest.level != "warning" else "warning"
        if more > 0:
            text += f"  (and {more} more)"
        self._show(text, token, dismiss=True)
        self._label.setToolTip(as_plain("\n".join(n.message for n in notices[-10:])))

    def _load(self, loading: Loading | None) -> None:
        if loading is None:
            self._show("Starting the engine…", "derived")
            self._bar.setRange(0, 0)
        elif loading.total:
            done = size(loading.done) if loading.unit == "bytes" else f"{loading.done:,}"
            self._show(f"{loading.stage}: {done} of {_amount(loading.total, loading.unit)}", "derived")
            self._bar.setRange(0, 1000)
            self._bar.setValue(round(1000 * min(1.0, loading.done / loading.total)))
        else:
            self._show(f"{loading.stage}…", "derived")
            self._bar.setRange(0, 0)
        self._bar.show()

    def _show(self, text: str, token: str, restart: bool = False, dismiss: bool = False) -> None:
        if self._label.text() != text:
            self._label.setText(text)
        self._bar.hide()
        self.restart.setVisible(restart)
        self.dismiss.setVisible(dismiss)
        self._paint(token)
        self.show()

    def _paint(self, token: str, force: bool = False) -> None:
        if token == self._token and not force:
            return
        self._token = token
        theme = self._theme
        fill, edge = theme.mix(token, 0.14).name(), theme.mix(token, 0.55).name()
        self.setStyleSheet(
            f"QFrame#banner {{ background: {fill}; border: 1px solid {edge}; border-radius: {theme.px(8)}px; }}"
        )

    def _dismissed(self) -> None:
        if self._own:
            self._own.pop(0)
        elif self._mirror.notices:
            self._last = self._mirror.notices[-1]
        self.refresh()


def _words(told: Notice | Refused) -> str:
    return f"Request {told.number} was not taken: {told.message}" if isinstance(told, Refused) else told.message


def _silent(seconds: float, pid: int) -> str:
    """It may come back by itself, so this neither calls it dead nor ends it."""
    return (
        f"The engine has not answered for {seconds:.0f} s. A very long step or a large change of the pool takes that "
        f"long, and so does a process that was stopped (kill -CONT {pid} lets it go on). Restart drops what it runs."
    )


def _amount(count: int, unit: str) -> str:
    return size(count) if unit == "bytes" else f"{count:,} {unit}"
