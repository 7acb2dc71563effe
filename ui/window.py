"""The window: puts the parts together and runs the frame. It owns no engine data; the mirror does.

Once a frame: take the messages that came, apply them to the mirror, and let every view in sight redraw what changed.
A view that fails is named in a notice, and the others go on.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Sequence
from time import monotonic, perf_counter_ns
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QCloseEvent, QKeyEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QApplication, QHBoxLayout, QMainWindow, QMenuBar, QVBoxLayout, QWidget

from engine.records import Abort
from ui import layout, menus
from ui.banner import Banner
from ui.changes import Kinds
from ui.clock import FrameClock, FrameStats
from ui.context import ViewContext
from ui.contracts import DeviceProbe, Source, Workload
from ui.controls.panel import ControlsPanel
from ui.cursor import Cursor
from ui.deck import Deck
from ui.dock import ViewDock
from ui.help import HelpOverlay
from ui.labels import Pill
from ui.mirror import Mirror
from ui.root import Root
from ui.selection import Selection
from ui.shortcuts import Keyboard, is_input
from ui.theme import SCALES, Name, Theme
from ui.timeline import Timeline
from ui.topbar import TopBar
from ui.transport import Transport

if TYPE_CHECKING:
    from ui.views.base import View

log = logging.getLogger(__name__)

_APPLY_NS = 6_000_000  # of a frame's 16.7 ms; what is left over waits for the next frame
_BATCH = 4  # messages taken at a time, so that the clock is looked at between them
_NUMBERS_EVERY = 0.25  # s: figures that change faster can't be read
_HINTS_EVERY = 0.5  # s
_SHORT = 480  # pixels of height at text scale 1, below which bars give up their second rows
_SMALLEST = (960, 600)  # pixels, whatever the text scale


class Window(QMainWindow):
    """The main window.

    Attributes:
        mirror, cursor, selection, theme: what the views read. frames: what frames cost.
        deck: the docks. controls, topbar, timeline, banner, help: the parts around it.
    """

    def __init__(
        self,
        source: Source,
        workload: Workload,
        probe: DeviceProbe,
        settings: layout.Store | None = None,
        theme: Name | None = None,
        scale: float | None = None,
        size: tuple[int, int] | None = None,
        views: Sequence[type[View]] | None = None,
    ):
        super().__init__()
        self.setWindowTitle("Servescope")
        self._store = settings or layout.NoStore()
        remembered = layout.load(self._store)
        screen = QApplication.primaryScreen().availableGeometry().height()
        scale = scale or remembered.scale or layout.fitting_scale(screen)
        self.theme = Theme(theme or remembered.theme, scale, self)
        self.mirror = Mirror()
        self.cursor = Cursor(self.mirror)
        self.selection = Selection(self)
        self.context = ViewContext(self.mirror, self.cursor, self.selection, self.theme, source, workload, probe)
        self.transport = Transport(source, self.mirror)
        self._dress()
        self._build(views)
        self._connect()
        self._due = Kinds.ALL
        self._broken: set[str] = set()  # views whose failure was told
        self._numbers_at = self._hints_at = 0.0
        self.clock = FrameClock(self._on_frame, self)
        self._place(remembered, size)
        self.clock.start()

    @property
    def frames(self) -> FrameStats:
        return self.clock.stats

    @property
    def serving(self) -> bool:
        """The engine is up, and runs neither paused nor in slow motion."""
        return self.context.source.state == "ready" and self.mirror.ready is not None \
            and not self.transport.paused and not self.transport.slowed  # fmt: skip

    # --- actions ---

    def fill(self, key: str) -> None:
        """Fill the window with one view, or bring the others back."""
        self.deck.fill(key)
        self.controls.setVisible(self.deck.filled is None and self._controls_wanted)

    def fill_under_mouse(self) -> None:
        key = self.deck.filled or self.deck.under_mouse()
        if key is not None:
            self.fill(key)

    def escape(self) -> None:
        """Out of the help, back to live, out of a filled view: whichever comes first."""
        if self.help.isVisible():
            self.help.hide()
        elif not self.cursor.is_live:
            self.cursor.live()
        elif self.deck.filled is not None:
            self.fill(self.deck.filled)

    def zoom_text(self, direction: int) -> None:
        near = min(range(len(SCALES)), key=lambda i: abs(SCALES[i] - self.theme.scale))
        self.theme.set_scale(SCALES[min(len(SCALES) - 1, max(0, near + direction))])

    def toggle_full_screen(self) -> None:
        self.setWindowState(self.windowState() ^ Qt.WindowState.WindowFullScreen)

    def reset_layout(self) -> None:
        self.deck.reset()
        self.controls.show()

    def abort_all(self) -> None:
        self.context.source.send(Abort(id=self.context.source.next_id()))

    def restart(self) -> None:
        self.context.source.restart()
        self._due |= Kinds.SOURCE

    # --- building ---

    def _build(self, views: Sequence[type[View]] | None) -> None:
        if views is None:
            from ui.views.catalog import VIEWS as views
        self.setMinimumSize(*_SMALLEST)
        self._root = Root(self.theme)
        self.topbar = TopBar(self.context, self.transport)
        self.banner = Banner(self.theme, self.mirror, self.context.source)
        self.controls = ControlsPanel(self.context)
        self.deck = Deck(self.theme, [view(self.context) for view in views])
        self.timeline = Timeline(self.context)
        self.past = Pill(self.theme, "mark", "strong")
        self._middle = QHBoxLayout()
        self._middle.addWidget(self.controls)
        self._middle.addWidget(self.deck, 1)
        self._column = QVBoxLayout(self._root)
        self._column.addWidget(self.topbar)
        self._column.addWidget(self.banner)
        self._column.addLayout(self._middle, 1)
        self._column.addWidget(self.timeline)
        self.setCentralWidget(self._root)
        self.help = HelpOverlay(self.theme, self._root)
        self.setMenuWidget(self._menu_row())
        self._space()

    def _menu_row(self) -> QWidget:
        """The menus, and at their right the sign of the past and, in a short window, the top bar's badge."""
        row = QWidget()
        row.setObjectName("menu_row")
        across = QHBoxLayout(row)
        across.setContentsMargins(0, 0, 12, 0)
        across.setSpacing(8)
        self.menu_bar = QMenuBar()
        self.badge = Pill(self.theme, "measured")
        menus.build(self.menu_bar, self)
        across.addWidget(self.menu_bar, 1)
        for pill in (self.past, self.badge):
            across.addWidget(pill, 0, Qt.AlignmentFlag.AlignVCenter)
            pill.hide()
        return row

    def _connect(self) -> None:
        self.theme.changed.connect(self._restyle)
        self.selection.changed.connect(lambda: self._mark_due(Kinds.SELECTION))
        self.cursor.listeners.append(self._cursor_moved)
        self.banner.restart_wanted.connect(self.restart)
        self.timeline.live_wanted.connect(self.cursor.live)
        self.controls.workload.changed.connect(lambda: self._mark_due(Kinds.SETTINGS))
        for dock in self.deck.docks.values():
            dock.fill_wanted.connect(self.fill)
            dock.shown_changed.connect(self._shown)
        self._keyboard = Keyboard(
            self,
            {
                "pause": self.transport.toggle,
                "step": self._step,
                "back": lambda: self.cursor.move(-1),
                "forward": lambda: self.cursor.move(1),
                "live": self.escape,
                "larger": lambda: self.zoom_text(1),
                "smaller": lambda: self.zoom_text(-1),
                "fill": self.fill_under_mouse,
                "full_screen": self.toggle_full_screen,
                "help": self.help.toggle,
            },
        )

    def _place(self, remembered: layout.Remembered, size: tuple[int, int] | None) -> None:
        self._controls_wanted = remembered.controls
        self.controls.setVisible(remembered.controls)
        if size is not None:
            self.resize(*size)
            return
        self.resize(1600, 1000)
        try:
            geometry = base64.b64decode(remembered.geometry, validate=True)
        except (binascii.Error, ValueError):
            geometry = b""
        if geometry:
            self.restoreGeometry(geometry)
        self.deck.restore(remembered.docks)

    def _dress(self) -> None:
        application = QApplication.instance()
        application.setFont(self.theme.font("body"))
        application.setPalette(self.theme.qpalette())
        self.setStyleSheet(self.theme.qss())

    def _space(self) -> None:
        short = self.height() / self.theme.scale < _SHORT
        self.topbar.set_short(short)
        self.timeline.set_short(short)
        self.badge.setVisible(short)
        self.controls.fit(self.width())
        gap = self.theme.px(4 if short else 8)
        self._column.setContentsMargins(gap, gap, gap, gap)
        self._column.setSpacing(gap)
        self._middle.setSpacing(gap)

    def _restyle(self) -> None:
        self._dress()
        for part in (self.topbar, self.banner, self.controls, self.timeline, self.deck):
            part.restyle()
        self._space()
        self._root.update()
        self._mark_due(Kinds.THEME)

    # --- the frame ---

    def _on_frame(self, draw: bool) -> tuple[int, int] | None:
        start = perf_counter_ns()
        self._collect(start)
        collected = perf_counter_ns()
        if not draw:
            return None
        self._draw()
        return collected - start, perf_counter_ns() - collected

    def _collect(self, start: int) -> None:
        """Take and apply what came, as long as the frame's share of time lasts."""
        while messages := self.context.source.poll(_BATCH):
            self._due |= self.mirror.apply_all(messages)
            if perf_counter_ns() - start > _APPLY_NS:
                break

    def _draw(self) -> None:
        kinds, self._due = self._due, Kinds.NONE
        self.timeline.refresh()  # may move the cursor, which is due with the next frame
        now = monotonic()
        numbers = now - self._numbers_at >= _NUMBERS_EVERY
        if numbers:
            self._numbers_at = now
        if self.topbar.short:
            self.badge.set(*self.topbar.badge.content())
        numbers = numbers or bool(kinds & (Kinds.CURSOR | Kinds.THEME))
        self.topbar.refresh(numbers)
        if self._in_sight():
            self._draw_views(kinds, now)
        if numbers:
            for dock in self.deck.docks.values():
                dock.show_summary()
        if now - self._hints_at >= _HINTS_EVERY or kinds & (Kinds.SETTINGS | Kinds.SOURCE | Kinds.CURSOR):
            self._hints_at = now
            self.controls.refresh(kinds)
            self.banner.refresh()
            for dock in self.deck.docks.values():
                dock.refresh_mark()
        if not self.cursor.is_live:
            self._say_past()

    def _draw_views(self, kinds: Kinds, now: float) -> None:
        """Views in sight, each at its own rate; those that aren't drawn every frame take turns."""
        turn_taken = False
        for dock in self.deck.docks.values():
            if not dock.shown:
                continue
            dock.due |= kinds & dock.view.kinds
            if not dock.wants(now) or (turn_taken and dock.leisurely and not dock.urgent):
                continue
            turn_taken |= dock.leisurely
            self._refresh(dock, dock.take(now))

    def _refresh(self, dock: ViewDock, kinds: Kinds) -> None:
        view = dock.view
        try:
            view.refresh(kinds)
        except Exception as error:  # one view's fault must not take the window
            log.exception("%s could not be drawn", view.key)
            if view.key not in self._broken:
                self._broken.add(view.key)
                self.banner.say(f"{view.title} could not be drawn ({type(error).__name__}: {error})", "danger")

    def _in_sight(self) -> bool:
        return self.isVisible() and not self.isMinimized()

    def _shown(self, key: str, shown: bool) -> None:
        if shown:
            self.deck.docks[key].due = Kinds.NONE
            self._refresh(self.deck.docks[key], Kinds.ALL)

    def _mark_due(self, kinds: Kinds) -> None:
        self._due |= kinds

    def _cursor_moved(self) -> None:
        self._mark_due(Kinds.CURSOR)
        self._root.set_past(not self.cursor.is_live)
        self.timeline.cursor_moved()
        self.past.setVisible(not self.cursor.is_live)
        if not self.cursor.is_live:
            self._say_past()

    def _say_past(self) -> None:
        words = f"In the past: {self.timeline.moment()} · Esc for live"
        if words != self.past.text():
            self.past.set(words, "mark")

    def _step(self) -> None:
        self.cursor.live()
        self.transport.step()

    # --- Qt ---

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._space()
        self.help.cover()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        # Esc that an input left alone: give the keys back to the window.
        focus = QApplication.focusWidget()
        if event.key() == Qt.Key.Key_Escape and is_input(focus):
            self._root.setFocus()
        else:
            super().keyPressEvent(event)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._root.setFocus()  # else the first button would have it, and the keys with it

    def event(self, event: QEvent) -> bool:
        if event.type() != QEvent.Type.UpdateRequest:
            return super().event(event)
        start = perf_counter_ns()
        done = super().event(event)
        self.clock.painted(perf_counter_ns() - start)
        return done

    def closeEvent(self, event: QCloseEvent) -> None:
        self.clock.stop()
        self._keyboard.close()
        layout.save(
            self._store,
            layout.Remembered(
                theme=self.theme.name,
                scale=self.theme.scale,
                geometry=base64.b64encode(bytes(self.saveGeometry().data())).decode("ascii"),
                docks=self.deck.state(),
                controls=not self.controls.isHidden() or self.deck.filled is not None,
            ),
        )
        super().closeEvent(event)
