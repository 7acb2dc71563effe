"""The strip of a story, its keys and menu, and the plot that it leaves."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import msgspec
import numpy as np
import pytest
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtGui import QColor, QImage, QPainter
from PySide6.QtWidgets import QMenu

from engine.records import Died, Pause
from tests.support.told import FakeStories, panels
from tests.ui.scenes import scene, show
from tests.ui.window_harness import Harness
from ui import palette
from ui.paint import labels, two_runs
from ui.story_strip import RUNS
from ui.theme import Theme, token_rgb
from ui.views.story import StoryView


@pytest.fixture
def stories() -> FakeStories:
    return FakeStories()


@pytest.fixture
def h(qtbot, stories):
    harness = Harness(qtbot, stories=stories, views=None)
    harness.window.activateWindow()
    qtbot.waitActive(harness.window)
    return harness


def press(qtbot, h, key):
    qtbot.keyClick(h.window, key)
    h.frame()


def test_a_digit_starts_the_story_of_that_place(qtbot, h, stories):
    assert h.window.story.isHidden()
    press(qtbot, h, Qt.Key.Key_3)
    assert stories.asked == ["close", "start story-2"]
    assert h.window.story.isVisible() and h.window.story.caption.text() == "Eight requests come at once."
    press(qtbot, h, Qt.Key.Key_4)  # not while one goes on
    assert stories.asked == ["close", "start story-2"]


def test_keys_go_on_and_leave(qtbot, h, stories):
    press(qtbot, h, Qt.Key.Key_1)
    press(qtbot, h, Qt.Key.Key_N)
    press(qtbot, h, Qt.Key.Key_L)
    assert stories.asked[2:] == ["skip", "leave"] and h.window.story.isHidden()


def test_a_key_without_a_story_does_nothing(qtbot):
    h = Harness(qtbot, stories=FakeStories(count=2), views=None)
    h.window.activateWindow()
    qtbot.waitActive(h.window)
    press(qtbot, h, Qt.Key.Key_7)
    assert h.window.context.stories.asked == []


def test_buttons_do_what_the_keys_do(qtbot, h, stories):
    press(qtbot, h, Qt.Key.Key_1)
    strip = h.window.story
    qtbot.mouseClick(strip.pause, Qt.MouseButton.LeftButton)
    assert len(h.sent(Pause)) == 1
    h.frame()
    assert strip.pause.text() == "Resume" and not strip.next.isEnabled()
    qtbot.mouseClick(strip.pause, Qt.MouseButton.LeftButton)
    h.frame()
    qtbot.mouseClick(strip.next, Qt.MouseButton.LeftButton)
    stories.show(stage="running")
    h.frame()
    assert not strip.next.isEnabled()
    qtbot.mouseClick(strip.leave, Qt.MouseButton.LeftButton)
    assert stories.asked[2:] == ["skip", "leave"]


def test_a_story_whose_engine_died_while_paused_offers_nothing_to_go_on_with(qtbot, h, stories):
    press(qtbot, h, Qt.Key.Key_1)
    strip = h.window.story
    qtbot.mouseClick(strip.pause, Qt.MouseButton.LeftButton)
    h.frame()
    assert h.window.transport.paused
    h.window.mirror.apply(Died(reason="The engine was killed."))
    h.frame()
    assert not h.window.transport.paused
    assert strip.pause.isHidden() and strip.next.isHidden()
    assert strip._head._state(stories.shown)[0].startswith("once the engine runs again")


def test_while_the_settings_come_back_it_can_be_put_away(qtbot, h, stories):
    press(qtbot, h, Qt.Key.Key_1)
    h.window.mirror.apply(Died(reason="The engine was killed."))
    stories.show(panels=panels(1), stage="restoring", caption="The engine stopped, and the story with it.")
    h.frame()
    strip = h.window.story
    assert strip.leave.isEnabled() and strip.leave.text() == "Close" and strip.curves.isVisible()
    assert "come back all the same" in strip.leave.toolTip()
    qtbot.mouseClick(strip.curves, Qt.MouseButton.LeftButton)
    h.frame(2)
    assert h.window.deck.filled == "story"
    qtbot.mouseClick(strip.leave, Qt.MouseButton.LeftButton)
    h.frame(3)
    assert "leave" in stories.asked and strip.isHidden() and h.window.deck.filled is None


def test_the_end_brings_the_curves_once_and_close_puts_them_away(qtbot, h, stories):
    press(qtbot, h, Qt.Key.Key_1)
    assert not h.window.story.curves.isVisible()
    stories.show(panels=panels(1), stage="running", caption="Running.")
    h.frame()
    assert h.window.deck.filled is None and h.window.story.curves.isVisible()
    stories.show(panels=panels(), stage="over", verdict="Paging gave 2.4×.", caption="Paging gave 2.4×.", part=1)
    h.frame(3)
    assert h.window.deck.filled == "story" and h.view("story").isVisible()
    press(qtbot, h, Qt.Key.Key_Escape)
    assert h.window.deck.filled is None
    h.frame(3)
    assert h.window.deck.filled is None  # once
    qtbot.mouseClick(h.window.story.curves, Qt.MouseButton.LeftButton)
    h.frame(2)
    assert h.window.deck.filled == "story"
    qtbot.mouseClick(h.window.story.leave, Qt.MouseButton.LeftButton)
    h.frame(2)
    assert stories.asked[-1] == "close" and h.window.story.isHidden() and h.window.deck.filled is None


def test_another_story_may_follow_a_result(qtbot, h, stories):
    press(qtbot, h, Qt.Key.Key_1)
    stories.show(panels=panels(), stage="over", verdict="v", caption="v", part=1)
    h.frame(3)
    press(qtbot, h, Qt.Key.Key_2)
    assert stories.asked[-2:] == ["close", "start story-1"] and h.window.deck.filled is None


def test_the_menu_lists_them_with_a_line_each(qtbot, h, stories, monkeypatch):
    popped = []
    monkeypatch.setattr(QMenu, "popup", lambda menu, at: popped.append((menu, at)))  # offscreen has no popups
    menu = next(action.menu() for action in h.window.menu_bar.actions() if action.text() == "&Stories")
    texts = [action.text() for action in menu.actions()]
    assert texts[1] == "Story 1: what story 1 is about\t2"
    menu.aboutToShow.emit()
    by_text = {action.text(): action for action in menu.actions()}
    assert not by_text["Leave the story\tL"].isEnabled()
    menu.actions()[1].trigger()
    menu.aboutToShow.emit()
    assert stories.asked[-1] == "start story-1" and by_text["Leave the story\tL"].isEnabled()
    assert not menu.actions()[0].isEnabled()
    press(qtbot, h, Qt.Key.Key_S)
    assert [one for one, _ in popped] == [menu]


def test_a_story_that_can_not_be_told_is_named(qtbot):
    h = Harness(qtbot, stories=FakeStories(problems=("bad.toml: title: missing",)), views=None)
    h.frame()
    assert h.window.banner.text == "A story can't be told: bad.toml: title: missing"


@pytest.mark.parametrize("size", [(1600, 1000), (1280, 720), (960, 600)])
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_it_is_drawn_at_every_size(qtbot, stories, size, theme):
    h = Harness(qtbot, size=size, theme=theme, stories=stories, views=None)
    for runs, stage in ((0, "telling"), (1, "running"), (2, "over")):
        stories.start("story-0")
        stories.show(panels=panels(runs) if runs else (), stage=stage, verdict="Twice." if runs == 2 else "")
        h.window.fill("story") if h.window.deck.filled != "story" else None
        h.frame(2)
        view = h.view("story")
        assert not view.grab().toImage().isNull() and h.window.banner.text == ""
    strip = h.window.story
    assert strip.caption.height() > 0 and strip.leave.geometry().right() <= strip.width()


def test_a_long_caption_takes_smaller_letters_before_it_loses_words(qtbot, h, stories):
    press(qtbot, h, Qt.Key.Key_1)
    caption, sizes = h.window.story.caption, []
    for times in (1, 24, 34, 300):
        stories.show(caption="Reserved: four ran. " * times)
        h.frame()
        sizes.append(caption._font().pixelSize())
    assert sizes[0] == h.window.theme.font("brand").pixelSize() and sizes[1] <= sizes[0]
    assert sizes[2] < sizes[0] and sizes[3] == h.window.theme.font("title").pixelSize()


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("size", [(940, 260), (500, 200), (1900, 800), (300, 700)])
def test_words_over_the_curves_overlap_nowhere(qtbot, stories, monkeypatch, size, scale):
    context = replace(scene(steps=5), stories=stories)
    context.theme.set_scale(scale)
    stories.start("story-0")
    facts = ("208 ms on average", "4.47 ms on average")
    stories.show(panels=tuple(msgspec.structs.replace(panel, facts=facts) for panel in panels()), stage="over")
    view = show(qtbot, StoryView(context), round(size[0] * scale), round(size[1] * scale))
    drawn = []

    def noted(painter, rect, text, font, color, where=labels.LEFT):
        wide = labels.write(painter, rect, text, font, color, where)
        drawn.append((QRect(rect.left() + int((rect.width() - wide) * where), rect.top(), wide, rect.height()), text))
        return wide

    monkeypatch.setattr("ui.views.story.write", noted)
    view.grab()
    boxes = [(box, text) for box, text in drawn if box.width() > 0]
    assert {"Running sequences", *facts} <= {text for _, text in boxes}
    for (one, first), (other, second) in combinations(boxes, 2):
        assert not one.intersects(other), (first, second)
    assert all(view.rect().contains(box) for box, _ in boxes)
    view.resize(round(940 * scale), round(150 * scale))  # a low plot: its title and curves
    drawn.clear()
    view.grab()
    assert "Running sequences" in {text for _, text in drawn} and not {text for _, text in drawn} & set(facts)


@pytest.mark.parametrize("name", ["dark", "light"])
@pytest.mark.parametrize("deficiency", [None, *palette.DEFICIENCIES])
def test_the_two_runs_differ_for_every_eye(name, deficiency):
    a, b = (token_rgb(token, name) for token in RUNS)
    if deficiency:
        a, b = palette.seen_with(a, deficiency), palette.seen_with(b, deficiency)
    assert palette.difference(a, b) > 0.1


def test_a_curve_is_drawn_where_its_values_are(qapp):
    """Steps: the colour stands at the height of the value, from its time to the next."""
    theme, area = Theme(), QRect(0, 0, 400, 200)
    image = QImage(area.size(), QImage.Format.Format_RGB32)
    image.fill(theme.color("panel"))
    red = QColor(255, 0, 0)
    run = two_runs.Run("", np.array([0.0, 2.0, 4.0]), np.array([8.0, 2.0, 2.0]), red)
    painter = QPainter(image)
    two_runs.draw(painter, area, theme, [run], False, two_runs.span([run]), "", 0.0)
    painter.end()
    found = [(x, y) for x in range(400) for y in range(200) if QColor(image.pixel(QPoint(x, y))) == red]
    left, right = min(x for x, _ in found), max(x for x, _ in found)
    middle = (left + right) // 2
    high = [y for x, y in found if left < x < middle - 4]
    low = [y for x, y in found if middle + 4 < x < right]
    assert max(high) < min(low)
    assert two_runs.span([run]) == pytest.approx(4.08)


def test_ticks_are_round_and_few():
    assert two_runs.ticks(24.1, 7) == [0, 5, 10, 15, 20]
    assert two_runs.ticks(8.0, 5) == [0, 2, 4, 6, 8]
    assert two_runs.ticks(0.03, 5) == pytest.approx([0, 0.01, 0.02, 0.03])
    assert all(len(two_runs.ticks(end, 5)) <= 6 for end in np.geomspace(1e-3, 1e5, 200))


def test_names_stand_on_no_curve(qapp):
    theme, area = Theme(), QRect(0, 0, 700, 240)
    curves = panels()[0].curves
    plot = area.adjusted(40, 10, -12, -24)
    lines = [
        two_runs._Line(
            two_runs.Run(name, c.times, c.values, theme.color(token)),
            two_runs._x(plot, c.times, 6.0), two_runs._y(plot, c.values, 10.0), False,
        )
        for name, c, token in zip(("reserved", "paged"), curves, RUNS, strict=True)
    ]  # fmt: skip
    for one, other in (lines, lines[::-1]):
        box = one.place(theme, plot, [other])
        for line in lines:
            inside = (line.x >= box.left()) & (line.x <= box.right())
            assert not ((line.y[inside] >= box.top()) & (line.y[inside] <= box.bottom())).any()
        assert plot.adjusted(0, -9, 0, 0).contains(box.toRect().adjusted(0, 0, -1, -1))


def test_the_name_of_dots_stands_by_the_highest(qapp):
    theme, plot = Theme(), QRect(40, 10, 600, 200)
    rng = np.random.default_rng(1)
    times = np.linspace(0.1, 5.9, 300)
    crowd = rng.uniform(0, 0.5, 300)
    crowd[100] = 9.0
    lines = [
        two_runs._Line(
            two_runs.Run(name, times, values, theme.color(token)),
            two_runs._x(plot, times, 6.0), two_runs._y(plot, values, 10.0), True,
        )
        for name, values, token in zip(("whole", "chunked"), (crowd, crowd[::-1] * 0.4), RUNS, strict=True)
    ]  # fmt: skip
    for one, other in (lines, lines[::-1]):
        box = one.place(theme, plot, [other])
        highest = one.y.argmin()
        assert np.hypot(box.center().x() - one.x[highest], box.center().y() - one.y[highest]) < box.width() + 20
        assert all(line.distance(box) > 0 for line in lines)
