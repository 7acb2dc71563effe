"""The window as a whole: frames, views in sight, failures, layout, filling, themes, the past."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
from PySide6.QtCore import QPoint, Qt, QTimer
from PySide6.QtWidgets import QApplication, QTabBar, QToolButton

from tests.ui.views_for_window import KEYS
from tests.ui.window_harness import Harness
from ui import layout
from ui.changes import Kinds
from ui.deck import NOTHING


def test_records_reach_every_view_in_sight(qtbot):
    h = Harness(qtbot)
    assert h.window.mirror.last_step == 40
    for key in KEYS:
        h.view(key).seen.clear()
    h.run(3)
    assert all(h.view(key).seen for key in KEYS)
    assert h.window.deck.docks["pool"].bar.summary.text() == "step 43"


def test_a_view_out_of_sight_costs_nothing_and_catches_up(qtbot):
    h = Harness(qtbot)
    h.window.deck.docks["memory"].close()
    h.view("memory").seen.clear()
    h.run(5)
    assert h.view("memory").seen == []
    h.window.deck.docks["memory"].show()
    QApplication.processEvents()
    assert h.view("memory").seen[0] == Kinds.ALL


def test_a_tab_behind_another_costs_nothing(qtbot):
    h = Harness(qtbot, size=(1280, 720))
    assert h.window.deck.docks["batch"].shown and not h.window.deck.docks["latency"].shown
    h.view("latency").seen.clear()
    h.run(5)
    assert h.view("latency").seen == []
    h.window.deck.docks["latency"].raise_()
    QApplication.processEvents()
    assert h.view("latency").seen[0] == Kinds.ALL and not h.window.deck.docks["batch"].shown


def test_a_view_that_fails_is_named_once_and_the_others_go_on(qtbot, caplog):
    h = Harness(qtbot)
    h.view("pool").fails = True
    h.view("tables").seen.clear()
    h.run(3)
    h.run(3)
    assert "Pool could not be drawn (RuntimeError: no paint left)" in h.window.banner.text
    assert h.view("tables").seen
    h.window.banner.dismiss.click()
    assert h.window.banner.text == ""


def test_views_of_words_take_turns_and_answer_the_user_at_once(qtbot):
    h = Harness(qtbot)
    slow = ("memory", "latency", "requests")
    for key in slow:
        type(h.view(key)).rate = 2.0
    h.run(2)
    for key in slow:
        h.window.deck.docks[key]._next = 0.0  # its turn has come
        h.view(key).seen.clear()
    h.source.advance(1)
    h.frame()
    assert sum(len(h.view(key).seen) for key in slow) == 1
    h.frame(2)
    assert [len(h.view(key).seen) for key in slow] == [1, 1, 1]  # and nothing that was due is lost
    h.source.advance(1)
    h.frame(3)
    assert [len(h.view(key).seen) for key in slow] == [1, 1, 1]
    h.window.selection.choose(seq=1)
    h.frame()
    assert [len(h.view(key).seen) for key in slow] == [2, 2, 2]


def test_time_for_applying_is_capped(qtbot, monkeypatch):
    h = Harness(qtbot)
    monkeypatch.setattr("ui.frame.APPLY_NS", 0)
    h.source.advance(200)
    h.window.frame.run()
    assert 40 < h.window.mirror.last_step < 240  # a batch, and the rest next time
    for _ in range(60):
        h.window.frame.run()
    assert h.window.mirror.last_step == 240


@pytest.mark.parametrize(
    ("size", "scale", "visible"),
    [((1600, 1000), 1.0, 7), ((1280, 720), 1.0, 4), ((3840, 2160), 1.0, 7), ((3840, 2160), 2.0, 7)],
)
def test_default_layout_follows_the_size(qtbot, size, scale, visible):
    h = Harness(qtbot, size=size, scale=scale)
    shown = [key for key, dock in h.window.deck.docks.items() if dock.shown]
    assert len(shown) == visible
    assert "requests" in shown and "pool" in shown


@pytest.mark.parametrize("size", [(1280, 720), (1600, 1000), (1920, 1080), (3840, 2160)])
@pytest.mark.parametrize("scale", [1.0, 1.5, 2.0])
def test_nothing_overlaps_or_leaves_the_window(qtbot, size, scale):
    h = Harness(qtbot, size=size, scale=scale, steps=5)
    window = h.window
    assert (window.width(), window.height()) == size
    docks = [d for d in window.deck.docks.values() if d.shown]
    parts = [window.topbar, window.timeline, window.controls, *docks]
    boxes = [part.rect().translated(part.mapTo(window, part.rect().topLeft())) for part in parts]
    for i, box in enumerate(boxes):
        assert window.rect().contains(box), parts[i]
        for j in range(i):
            assert not box.intersects(boxes[j]), (parts[i], parts[j])


def test_the_default_layout_follows_the_window_until_the_user_makes_one(qtbot):
    h = Harness(qtbot)
    deck = h.window.deck
    qtbot.mouseClick(h.view("pool"), Qt.MouseButton.LeftButton)  # a click that a view ignores changes nothing
    h.window.resize(1280, 720)
    QApplication.processEvents()
    assert not deck.docks["latency"].shown  # now a tab
    h.window.resize(1600, 1000)
    QApplication.processEvents()
    assert deck.docks["latency"].shown
    gap = deck.docks["pool"].geometry().topRight() + QPoint(4, 50)
    qtbot.mousePress(deck, Qt.MouseButton.LeftButton, pos=gap)
    qtbot.mouseRelease(deck, Qt.MouseButton.LeftButton, pos=gap)
    assert deck.state() != ""
    h.window.resize(1280, 720)
    QApplication.processEvents()
    assert deck.docks["latency"].shown


def test_pool_and_tables_dominate(qtbot):
    h = Harness(qtbot)
    area = {key: dock.width() * dock.height() for key, dock in h.window.deck.docks.items()}
    assert area["pool"] == max(area.values())
    assert h.window.deck.docks["tables"].height() > h.window.deck.docks["batch"].height()


def test_filling_hides_the_others_and_gives_them_back(qtbot):
    h = Harness(qtbot)
    before = {key: dock.geometry() for key, dock in h.window.deck.docks.items()}
    h.window.deck.docks["batch"].bar.fill.click()
    QApplication.processEvents()
    assert [k for k, d in h.window.deck.docks.items() if d.isVisible()] == ["batch"]
    assert h.window.controls.isHidden()
    h.window.escape()
    QApplication.processEvents()
    assert {key: dock.geometry() for key, dock in h.window.deck.docks.items()} == before
    assert h.window.controls.isVisible()


@pytest.mark.qt_log_ignore("This plugin does not support")  # offscreen windows have no order and no hints
def test_a_view_that_floats_from_behind_a_tab_is_kept_up_to_date(qtbot):
    h = Harness(qtbot, size=(1280, 720), steps=5, views=None)
    deck, dock = h.window.deck, h.window.deck.docks["memory"]
    deck.open("memory")
    deck.open("lives")
    qtbot.waitUntil(lambda: not dock.shown)
    dock.setFloating(True)
    qtbot.waitUntil(lambda: dock.shown)
    dock.close()
    qtbot.waitUntil(lambda: not dock.shown)
    deck.open("memory")
    qtbot.waitUntil(lambda: dock.shown)
    dock.setFloating(False)
    deck.open("lives")
    qtbot.waitUntil(lambda: not dock.shown)


@pytest.mark.qt_log_ignore("This plugin does not support")  # offscreen windows have no order and no hints
def test_layout_is_remembered(qtbot):
    store = layout.NoStore()
    h = Harness(qtbot, settings=store)
    h.window.theme.set_name("light")
    h.window.theme.set_scale(1.25)
    h.window.deck.docks["memory"].close()
    h.window.deck.docks["latency"].setFloating(True)
    h.window.close()
    again = Harness(qtbot, settings=store, theme=None, scale=None, size=None)
    assert again.window.theme.name == "light" and again.window.theme.scale == 1.25
    assert again.window.deck.docks["memory"].isHidden()
    assert again.window.deck.docks["latency"].isFloating()
    again.window.reset_layout()
    QApplication.processEvents()
    assert all(not dock.isFloating() and not dock.isHidden() for dock in again.window.deck.docks.values())


@pytest.mark.parametrize("saved", [None, 3, {}, {"version": 0}, {"version": 1, "theme": 5, "scale": "x", "docks": "!"}])
def test_damaged_memory_gives_the_defaults(qtbot, saved):
    store = layout.NoStore()
    store.set("window", saved)
    h = Harness(qtbot, settings=store, theme=None, scale=None, size=None)
    assert h.window.theme.name == "dark" and h.window.theme.scale == 1.0
    assert all(dock.shown for dock in h.window.deck.docks.values())


@pytest.mark.parametrize(("height", "scale"), [(720, 1.0), (1080, 1.0), (1440, 1.25), (2160, 1.75)])
def test_text_begins_as_large_as_the_screen_asks(height, scale):
    assert layout.fitting_scale(height) == scale


def test_theme_change_reaches_the_views(qtbot):
    h = Harness(qtbot)
    h.view("pool").seen.clear()
    h.window.theme.set_name("light")
    h.frame()
    assert any(k & Kinds.THEME for k in h.view("pool").seen)


def test_the_past_is_unmistakable(qtbot):
    h = Harness(qtbot)
    h.window.cursor.pin(20)
    h.frame()
    assert h.window._root.past and h.window.past.isVisible()
    assert "step 20" in h.window.past.text() and "ago" in h.window.past.text()
    assert "past" in h.window.topbar.badge.text()
    assert not h.window.controls.sliders["max_batch"].isEnabled()
    corner = h.window._root.grab().toImage().pixelColor(1, 300)
    assert abs(corner.hue() - h.window.theme.color("mark").hue()) < 12
    h.window.escape()
    h.frame()
    assert h.window.cursor.is_live and not h.window._root.past and not h.window.past.isVisible()
    assert h.window.controls.sliders["max_batch"].isEnabled()


def test_serving_only_at_full_speed(qtbot):
    h = Harness(qtbot)
    assert h.window.serving
    h.window.transport.toggle()
    assert not h.window.serving
    h.frame()
    assert not h.window.serving
    h.window.transport.toggle()
    h.frame()
    assert h.window.serving
    h.source.state = "dead"
    assert not h.window.serving


def test_closing_stops_every_timer(qtbot):
    h = Harness(qtbot)
    h.window.clock.start()
    h.window.close()
    assert not any(timer.isActive() for timer in h.window.findChildren(QTimer))


def test_frames_are_measured(qtbot):
    h = Harness(qtbot)
    h.window.frames.clear()
    for _ in range(5):
        h.source.advance(1)
        h.window.clock.tick()
        h.window._root.update()
        QApplication.processEvents()
    assert h.window.frames.count >= 1
    assert h.window.frames.percentile_ms(99) > 0


def test_the_window_loads_neither_torch_nor_the_program():
    code = "import sys, ui.window; print(sorted({'torch', 'app', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.qt_log_ignore("This plugin does not support")
def test_a_dock_floats_and_comes_back(qtbot):
    h = Harness(qtbot)
    dock = h.window.deck.docks["latency"]
    dock.bar.float_wanted.emit()
    QApplication.processEvents()
    assert dock.isFloating() and dock.shown
    h.view("latency").seen.clear()
    h.run(1)
    assert h.view("latency").seen
    dock.bar.float_wanted.emit()
    QApplication.processEvents()
    assert not dock.isFloating() and dock.shown


@pytest.mark.qt_log_ignore("This plugin does not support")
def test_where_no_view_is_open_it_says_how_they_come_back(qtbot, monkeypatch):
    said = []
    monkeypatch.setattr("ui.deck.empty", lambda painter, area, theme, *words: said.append((area.size(), *words)))
    h = Harness(qtbot)
    deck = h.window.deck
    assert said == []
    first, *others = deck.docks.values()
    for dock in others:
        dock.close()
    h.frame()
    assert said == []
    first.setFloating(True)
    h.frame(2)
    deck.grab()
    assert said and said[-1][:2] == (deck.size(), NOTHING) and "Default layout" in said[-1][2]
    h.window.reset_layout()
    h.frame(2)
    said.clear()
    deck.grab()
    assert said == []


def test_views_that_are_filled_and_left_again_leave_no_tab_bars_behind(qtbot):
    """Qt makes new tab bars each time, and Python must not hold on to the old ones."""
    h = Harness(qtbot, steps=5, views=None)

    def bars() -> int:
        gc.collect()
        return sum(type(each) is QTabBar for each in gc.get_objects())

    before = bars()
    for key in list(h.window.deck.docks) * 2:
        h.window.fill(key)
        h.frame()
        h.window.fill(key)
        h.frame()
    assert bars() <= before + 2


def test_layouts_may_follow_each_other_closely(qtbot):
    h = Harness(qtbot, steps=5, views=None)
    for size in ((1280, 720), (1600, 1000), (1920, 1080), (3840, 2160)) * 2:
        for scale in (1.0, 2.0):
            h.window.theme.set_scale(scale)
            h.window.resize(*size)
            h.frame()
    assert [dock for dock in h.window.deck.docks.values() if dock.shown]


def test_tabs_that_do_not_fit_have_short_names(qtbot):
    h = Harness(qtbot, size=(1280, 720), scale=2.0, views=None)
    deck = h.window.deck
    bar = next(bar for bar in deck.findChildren(QTabBar) if bar.isVisible() and bar.count())
    names = [bar.tabText(index) for index in range(bar.count())]
    views = [deck.docks[key].view for key in layout.placed(layout.ONE)]
    assert names == [view.short or view.title for view in views] and {"Pool", "Drafts", "Lives"} < set(names)
    arrows = sum(button.width() for button in bar.findChildren(QToolButton) if button.isVisible())
    assert bar.tabRect(names.index("Memory")).right() <= bar.width() - arrows
    h.window.theme.set_scale(1.0)
    h.window.resize(1600, 1000)
    for _ in range(3):
        QApplication.processEvents()
    assert {dock.windowTitle() for dock in deck.docks.values()} == {dock.view.title for dock in deck.docks.values()}
