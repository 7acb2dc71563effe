"""The window under the built-in workload, used all the time as fast as it goes: nothing is printed, nothing leaks.

The real engine serves the default model. Everything a person can reach with mouse and keys is done at random.
"""

from __future__ import annotations

import gc
import random
import threading
from collections import Counter
from time import monotonic

import pytest
from PySide6.QtCore import QEvent, QObject, QPoint, QPointF, Qt, QTimer
from PySide6.QtGui import QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QComboBox, QMenu, QWidget

from engine.config import EngineConfig
from tests.support.live_window import LiveWindow
from ui.contracts import WorkloadSettings
from ui.transport import SPEEDS

pytestmark = [pytest.mark.slow(seconds=40), pytest.mark.timeout(400)]
ACTS = 180
STEPS, REQUESTS = 50, 4  # that must have been made and ended by then; a slow machine takes longer
MOST_BLOCKS = 1024  # more only takes time to make
SIZES = ((1600, 1000), (1280, 720), (960, 600), (1920, 1080), (1100, 800))
# Qt raises each tooltip above other windows, and a list that drops down takes the keyboard; the offscreen platform has
# no order of windows and no keyboard to give, and says so
OFFSCREEN = r"This plugin does not support (raise\(\)|grabbing the keyboard)"


class User:
    """Does one thing after the other, each of them allowed at any time."""

    def __init__(self, live: LiveWindow, seed: int):
        self._live, self._window = live, live.window
        self._rng = random.Random(seed)

    def act(self) -> None:
        """Something, and every third time back to work, for little happens while it is paused."""
        if self._rng.random() < 0.33:
            self.do_serve()
        else:
            getattr(self, self._rng.choice([name for name in dir(self) if name.startswith("do_")]))()

    def rest(self) -> None:
        """Back to how the window began."""
        window = self._window
        window.help.hide()
        window.selection.choose()
        window.cursor.live()
        if window.deck.filled:
            window.fill(window.deck.filled)
        window.theme.set_scale(1.0)
        window.theme.set_name("dark")
        window.resize(*SIZES[0])
        window.reset_layout()
        window.transport.slow(SPEEDS[0])

    # --- the engine ---

    def do_pause_or_resume(self) -> None:
        self._press(Qt.Key.Key_Space)

    def do_step(self) -> None:
        self._press(Qt.Key.Key_Right)

    def do_slow_motion(self) -> None:
        self._window.transport.slow(self._rng.choice([SPEEDS[0], SPEEDS[0], *SPEEDS[:5]]))

    def do_serve(self) -> None:
        if self._window.transport.paused:
            self._window.transport.toggle()
        self._window.transport.slow(SPEEDS[0])
        self._window.cursor.live()

    def do_burst(self) -> None:
        self._live.workload.send(self._rng.randint(1, 6))

    def do_abort_all(self) -> None:
        if self._rng.random() < 0.2:
            self._window.abort_all()

    def do_drag_a_slider(self) -> None:
        slider = self._window.controls.sliders[self._rng.choice(list(self._window.controls.sliders))]
        if slider.isVisibleTo(self._window) and slider.slider.isEnabled():
            values = [v for v in slider._scale.values if v <= MOST_BLOCKS or slider.key != "kv_blocks"]
            self._live.drag(slider, self._rng.choice(values))

    def do_default_settings(self) -> None:
        for key in ("token_budget", "kv_blocks", "max_context", "max_batch", "draft_length", "temperature"):
            self._window.controls.sender.wish(key, getattr(EngineConfig().settings, key))

    def do_type(self) -> None:
        box = self._window.deck.docks["requests"].view.composer.prompt
        if box.isVisible():
            self._live.click(box)
            QTest.keyClicks(box, "Count: 1, 2, 3 and ")
            box.insertPlainText("naïve – 🙂 数 \u200d?")
            QTest.keyClick(box, Qt.Key.Key_Return)
            QTest.keyClick(box, Qt.Key.Key_Escape)

    # --- time ---

    def do_pin(self) -> None:
        self._window.cursor.pin(self._rng.randint(0, self._window.mirror.last_step))

    def do_move(self) -> None:
        self._press(self._rng.choice([Qt.Key.Key_Left, Qt.Key.Key_Right]), Qt.KeyboardModifier.ShiftModifier)

    def do_scrub(self) -> None:
        timeline = self._window.timeline
        y = timeline.track.center().y()
        QTest.mousePress(timeline, Qt.MouseButton.LeftButton, pos=QPoint(self._x(timeline), y))
        for _ in range(3):
            QTest.mouseMove(timeline, QPoint(self._x(timeline), y))
            QTest.qWait(10)
        QTest.mouseRelease(timeline, Qt.MouseButton.LeftButton, pos=QPoint(self._x(timeline), y))

    def do_escape(self) -> None:
        self._press(Qt.Key.Key_Escape)

    # --- what is shown ---

    def do_select(self) -> None:
        state = self._window.cursor.state
        seq = self._rng.choice([None, *state.sequences, *state.recent])
        self._window.selection.choose(seq, self._rng.choice([None, self._rng.randrange(max(1, state.num_blocks))]))

    def do_click_into_a_view(self) -> None:
        widget = self._widget_of_a_view()
        if widget is not None:
            self._live.click(widget, QPoint(self._x(widget), self._y(widget)))

    def do_hover(self) -> None:
        for _ in range(4):
            widget = self._widget_of_a_view()
            if widget is not None:
                QTest.mouseMove(widget, QPoint(self._x(widget), self._y(widget)))
                QTest.qWait(15)

    def do_wheel(self) -> None:
        widget = self._widget_of_a_view()
        if widget is not None:
            at = QPointF(self._x(widget), self._y(widget))
            turn = QPoint(0, self._rng.choice([-240, -120, 120, 240]))
            QApplication.sendEvent(widget, QWheelEvent(
                at, QPointF(widget.mapToGlobal(at.toPoint())), QPoint(), turn, Qt.MouseButton.NoButton,
                Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase, False))  # fmt: skip

    def do_resize(self) -> None:
        self._window.resize(*self._rng.choice(SIZES))

    def do_scale(self) -> None:
        self._press(self._rng.choice([Qt.Key.Key_Plus, Qt.Key.Key_Minus]))

    def do_theme(self) -> None:
        self._window.theme.set_name(self._rng.choice(["dark", "light"]))

    def do_fill(self) -> None:
        self._window.fill(self._rng.choice(list(self._window.deck.docks)))

    def do_close_and_reset(self) -> None:
        self._window.deck.docks[self._rng.choice(list(self._window.deck.docks))].close()
        QTest.qWait(30)
        self._window.reset_layout()

    def do_raise_a_tab(self) -> None:
        self._rng.choice(list(self._window.deck.docks.values())).raise_()

    def do_help(self) -> None:
        self._press(Qt.Key.Key_Question)

    def do_copy_settings(self) -> None:
        self._window.controls.copy_settings()

    # --- how ---

    def _press(self, key: Qt.Key, modifier: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> None:
        self._window._root.setFocus()
        QTest.keyClick(self._window, key, modifier)

    def _widget_of_a_view(self) -> QWidget | None:
        """The innermost widget at a random spot of a view in sight."""
        views = [dock.view for dock in self._window.deck.docks.values() if dock.shown]
        shown = [view for view in views if view.isVisible() and min(view.width(), view.height()) > 9]
        if not shown:
            return None
        view = self._rng.choice(shown)
        found = view.childAt(QPoint(self._x(view), self._y(view))) or view
        page = self._window.deck.docks["calculator"].view.page
        return found if page is None or found is not page.open else None  # that opens Qt's own dialog for files

    def _x(self, widget: QWidget) -> int:
        return self._rng.randrange(max(1, widget.width()))

    def _y(self, widget: QWidget) -> int:
        return self._rng.randrange(max(1, widget.height()))


class Holdings:
    """What the program holds at a moment of rest."""

    def __init__(self, live: LiveWindow):
        QApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
        gc.collect()
        objects = live.window.findChildren(QObject)
        self.objects = Counter(type(o).__name__ for o in objects)
        self.widgets = Counter(type(w).__name__ for w in QApplication.allWidgets())
        self.timers = sum(isinstance(o, QTimer) and o.isActive() for o in objects)
        self.threads = threading.active_count()


@pytest.mark.qt_log_ignore(OFFSCREEN)
def test_steady_use_prints_nothing_and_leaks_nothing(qapp, qtlog) -> None:
    before = set(QApplication.topLevelWidgets())
    live = LiveWindow(EngineConfig(), workload=WorkloadSettings(rate=3.0, output_tokens=48))
    window, user = live.window, User(live, seed=4)
    try:
        # once each, so that what is made when it is first needed is there, such as the menu of a narrow menu bar
        for key in window.deck.docks:
            window.fill(key)
            live.run(0.05)
            window.fill(key)
        for box in window.findChildren(QComboBox):
            box.showPopup()
            box.hidePopup()
        for name in dir(user):
            if name.startswith("do_"):
                getattr(user, name)()
                live.run(0.05, arrivals=True)
        user.rest()
        window.theme.set_scale(2.0)
        for size in SIZES:
            window.resize(*size)
            live.run(0.1)
        at_rest(live, user)
        first = Holdings(live)
        frames, steps, end = window.frames.count, window.mirror.last_step, monotonic() + 200
        acts = 0
        while acts < ACTS or (not served(live, steps) and monotonic() < end):
            user.act()
            acts += 1
            live.run(0.03 + 0.1 * user._rng.random(), arrivals=True)
        at_rest(live, user)
        last = Holdings(live)
        assert window.mirror.died is None and window.mirror.drift == 0 and not window.mirror.gaps
        assert served(live, steps)
        assert not window.frame._broken, "every view could be drawn all the time"
        assert window.frames.count > frames + ACTS // 2
        assert last.objects - first.objects == last.widgets - first.widgets == Counter()
        assert (last.timers, last.threads) == (first.timers, first.threads)
    finally:
        live.close()
    del live, window, user
    gc.collect()
    left = {type(w).__name__ for w in set(QApplication.topLevelWidgets()) - before if not _of_a_plot(w)}
    assert left <= {"QLabel"}, "nothing is left of the window, but perhaps a tooltip of Qt's"
    assert [record.message for record in qtlog.records if not record.ignored] == []


def served(live: LiveWindow, before: int) -> bool:
    mirror = live.window.mirror
    return mirror.last_step >= before + STEPS and len(mirror.history.requests) >= REQUESTS


def at_rest(live: LiveWindow, user: User) -> None:
    """Paused, idle, as it began, and a few frames later."""
    user.rest()
    live.window.abort_all()
    if live.window.transport.paused:
        live.window.transport.toggle()
    live.pump(lambda: live.idle)
    live.run(1.0)


def _of_a_plot(widget: QWidget) -> bool:
    """A menu of pyqtgraph's: a PlotItem is never given back under PySide6, which is why plots are built once."""
    while widget.parentWidget() is not None:
        widget = widget.parentWidget()
    return isinstance(widget, QMenu) and widget.title() == "Plot Options"
