"""The window: puts the parts together and carries out what menus and keys ask for. It owns no engine data; the
mirror does. What happens in a frame is `frame`'s."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from functools import partial
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, Qt, QTimer
from PySide6.QtGui import QCloseEvent, QKeyEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QApplication, QHBoxLayout, QMainWindow, QMenuBar, QVBoxLayout

from engine.records import Abort
from ui import cores, layout, menus, simulated, story_menu
from ui.banner import Banner
from ui.changes import Kinds
from ui.clock import FrameClock, FrameStats
from ui.context import ViewContext
from ui.contracts import DeviceProbe, NoStories, Source, Stories, Workload
from ui.controls.panel import ControlsPanel
from ui.cursor import Cursor
from ui.deck import Deck
from ui.frame import Frame
from ui.glyphs import window_icon
from ui.help import HelpOverlay
from ui.labels import Pill
from ui.lifecycle import Lifecycle
from ui.mirror import Mirror
from ui.root import Root
from ui.selection import Selection
from ui.shortcuts import Keyboard, is_input
from ui.story_strip import StoryStrip
from ui.telling import CURVES, Telling
from ui.theme import SCALES, Name, Theme
from ui.timeline import Timeline
from ui.topbar import TopBar
from ui.transport import Transport

if TYPE_CHECKING:
    from ui.views.base import View

_SHORT = 480  # pixels of height at text scale 1, below which bars give up their second rows
_SMALLEST = (960, 600)  # pixels, whatever the text scale


class Window(QMainWindow):
    """The main window.

    Attributes:
        mirror, cursor, selection, theme: what the views read. frame: runs once a frame. frames: what frames cost.
        deck: the docks. controls, topbar, timeline, banner, story, help: the parts around it.
        lifecycle: ends and starts the engine. telling: begins and ends stories.
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
        stories: Stories | None = None,
    ):
        super().__init__()
        self.setWindowTitle(simulated.title(source.provenance))
        self._store = settings or layout.NoStore()
        remembered = layout.load(self._store)
        screen = QApplication.primaryScreen().availableGeometry().height()
        scale = scale or remembered.scale or layout.fitting_scale(screen)
        self.theme = Theme(theme or remembered.theme, scale, self)
        self.mirror = Mirror()
        self.cursor = Cursor(self.mirror)
        self.selection = Selection(self)
        stories = stories or NoStories()
        self.context = ViewContext(
            self.mirror, self.cursor, self.selection, self.theme, source, workload, probe, stories=stories
        )
        self.transport = Transport(source, self.mirror)
        self._dress()
        self._build(views)
        self.clock = FrameClock(self.frame.run, self)
        self._cores = cores.cores()
        self._connect()
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
        if key not in self.deck.docks:
            return
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

    def check_request(self) -> None:
        """Of the request that the view of requests shows: run it again without drafts."""
        if (dock := self.deck.docks.get("requests")) is not None:
            dock.view.check()

    # --- building ---

    def _build(self, views: Sequence[type[View]] | None) -> None:
        if views is None:
            from ui.views.catalog import VIEWS as views
        self.setMinimumSize(*_SMALLEST)
        self._root = Root(self.theme, self)
        self.topbar = TopBar(self.context, self.transport, self._root)
        self.banner = Banner(self.theme, self.mirror, self.context.source, self.context.unload, self._root)
        self.controls = ControlsPanel(self.context, self._root)
        self.story = StoryStrip(self.theme, self.context.stories, self.transport, self._root)
        # without a parent: a QMainWindow that is given one makes itself a window of its own
        self.deck = Deck(self.theme, [view(self.context) for view in views])
        self.frame = Frame(self.context, self.deck, self)
        self.lifecycle = Lifecycle(self.context, self.frame.mark)
        self.telling = Telling(self.context, self.deck, self)
        self.timeline = Timeline(self.context, self._root)
        self.past, self.badge = Pill(self.theme, "mark", "strong"), Pill(self.theme, "measured")
        self._middle = QHBoxLayout()
        self._middle.addWidget(self.controls)
        self._middle.addWidget(self.deck, 1)
        self._column = QVBoxLayout(self._root)
        self._column.addWidget(self.topbar)
        self._column.addWidget(self.banner)
        self._column.addWidget(self.story)
        self._column.addLayout(self._middle, 1)
        self._column.addWidget(self.timeline)
        self.setCentralWidget(self._root)
        self.help = HelpOverlay(self.theme, self._root)
        self.menu_bar = QMenuBar()
        self.setMenuWidget(menus.row(self.menu_bar, self, [self.past, self.badge]))
        self._space()
        for problem in self.context.stories.problems:
            self.banner.say(f"A story can't be told: {problem}")

    def _connect(self) -> None:
        self.theme.changed.connect(self._restyle)
        self.selection.changed.connect(lambda: self.frame.mark(Kinds.SELECTION))
        self.cursor.listeners.append(self._cursor_moved)
        self.banner.restart_wanted.connect(self.lifecycle.restart)
        self.controls.rebuild_wanted.connect(self.lifecycle.rebuild)
        for teller in (self.story, self.telling):
            teller.curves_wanted.connect(lambda: self.fill(CURVES))
        self.story.close_wanted.connect(self.telling.close)
        self.timeline.live_wanted.connect(self.cursor.live)
        self.controls.workload.changed.connect(lambda: self.frame.mark(Kinds.SETTINGS))
        for dock in self.deck.docks.values():
            dock.fill_wanted.connect(self.fill)
            dock.shown_changed.connect(self._shown)
            dock.view.failed.connect(partial(self._failed, dock.view))
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
                "check": self.check_request,
                "verification": lambda: self.fill("verification"),
                "beams": lambda: self.fill("beams"),
                "roofline": lambda: self.fill("roofline"),
                "calculator": lambda: self.fill("calculator"),
                "story": self.telling.begin,
                "stories": lambda: story_menu.popup(self),
                "next": self.context.stories.skip,
                "leave": self.context.stories.leave,
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
        self.setWindowIcon(window_icon(self.theme))

    def _space(self) -> None:
        short = self.height() / self.theme.scale < _SHORT
        self.topbar.set_short(short)
        self.timeline.set_short(short)
        self.story.set_short(short)
        self.badge.setVisible(short)
        self.controls.fit(self.width())
        gap = self.theme.px(4 if short else 8)
        self._column.setContentsMargins(gap, gap, gap, gap)
        self._column.setSpacing(gap)
        self._middle.setSpacing(gap)

    def _restyle(self) -> None:
        self._dress()
        for part in (self.topbar, self.banner, self.story, self.controls, self.timeline, self.deck):
            part.restyle()
        self._space()
        self._root.update()
        self.frame.mark(Kinds.THEME)

    # --- what changed ---

    def _shown(self, key: str, shown: bool) -> None:
        if shown:
            self.frame.show(self.deck.docks[key])

    def _cursor_moved(self) -> None:
        self.frame.mark(Kinds.CURSOR)
        self._root.set_past(not self.cursor.is_live)
        self.timeline.cursor_moved()
        self.past.setVisible(not self.cursor.is_live)
        if not self.cursor.is_live:
            self._say_past()

    def tend(self) -> None:
        """What goes on whether or not it is seen, with every frame that collects."""
        mirror = self.mirror
        mirror.alternation.tick(self.context.source, mirror.settings, mirror.last_step, mirror.acks)
        self.lifecycle.tend()
        share = cores.frame_share(mirror.ready, mirror.status, self._cores)
        self.clock.pace(share, self.isVisible() and not self.isMinimized())

    def show_parts(self, kinds: Kinds, numbers: bool, hints: bool) -> None:
        """What stands around the views, once a frame: figures and hints only when they are due."""
        self.timeline.refresh()  # may move the cursor, which is due with the next frame
        if self.topbar.short:
            self.badge.set(*self.topbar.badge.content())
        self.topbar.refresh(numbers)
        if self.story.refresh():
            self.frame.mark(Kinds.SOURCE)  # its curves are drawn again
            self.telling.look()
        if hints:
            self.controls.refresh(kinds)
            self.banner.refresh()
            for dock in self.deck.docks.values():
                dock.refresh_mark()
        if not self.cursor.is_live:
            self._say_past()

    def _failed(self, view: View, error: Exception) -> None:
        # not from within the paint event: the notice changes the layout
        QTimer.singleShot(0, self, lambda: self.frame.failed(view, error))

    def tell_failure(self, view: View, error: Exception) -> None:
        self.banner.say(f"{view.title} could not be drawn ({type(error).__name__}: {error})", "danger")

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
        start, busy = perf_counter_ns(), thread_time_ns()
        done = super().event(event)
        self.clock.painted(perf_counter_ns() - start, thread_time_ns() - busy)
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
