"""The timeline: folding, geometry, pinning by the mouse, marks and their stories."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import QPoint, Qt

from tests.ui.window_harness import Harness
from ui.fold import bars, fold

pytestmark = pytest.mark.qt_log_ignore("This plugin does not support")  # tooltips are windows, offscreen has no order


def test_fold_keeps_the_mean():
    values = np.arange(1000)
    folded = fold(values, 10)
    assert folded.tolist() == [49.5 + 100 * i for i in range(10)]
    assert fold(values, 7).mean() == pytest.approx(values.mean(), rel=0.01)


def test_fold_of_few_values_repeats_them():
    assert fold(np.array([1, 5]), 6).tolist() == [1, 1, 1, 5, 5, 5]
    assert fold(np.array([], np.int64), 4).tolist() == [0, 0, 0, 0]


def test_bars_are_stacked_from_the_floor():
    image = bars(np.array([0.5, 0.0]), np.array([0.25, 1.0]), 4, (1, 2, 3))
    assert image[:, 0].tolist() == [1, 3, 2, 2]
    assert image[:, 1].tolist() == [3, 3, 3, 3]


def _settled(h):
    h.window.timeline._folded_at = 0.0
    h.frame()
    return h.window.timeline


def test_steps_and_pixels_agree(qtbot):
    h = Harness(qtbot, steps=200)
    timeline = _settled(h)
    assert timeline.step_at(timeline.track.left()) == 1
    assert timeline.step_at(timeline.track.right()) == 200
    for step in (1, 50, 133, 200):
        assert timeline.step_at(timeline.x_of(step)) == step


def test_dragging_pins_and_the_right_end_is_live(qtbot):
    h = Harness(qtbot, steps=200)
    timeline = _settled(h)
    y = timeline.track.center().y()
    qtbot.mousePress(timeline, Qt.MouseButton.LeftButton, pos=QPoint(timeline.x_of(50), y))
    assert h.window.cursor.pinned == 50
    qtbot.mouseMove(timeline, QPoint(timeline.x_of(120), y))
    h.frame()
    assert h.window.cursor.pinned == 120
    qtbot.mouseRelease(timeline, Qt.MouseButton.LeftButton, pos=QPoint(timeline.x_of(80), y))
    assert h.window.cursor.pinned == 80
    assert timeline.moment().startswith("step 80 · ") and timeline.moment().endswith(" ago")
    qtbot.mouseClick(timeline, Qt.MouseButton.LeftButton, pos=QPoint(timeline.track.right(), y))
    assert h.window.cursor.is_live


def test_the_live_sign_returns_to_now(qtbot):
    h = Harness(qtbot, steps=100)
    timeline = _settled(h)
    h.window.cursor.pin(10)
    sign = QPoint(timeline.width() - 20, timeline.track.center().y())
    qtbot.mouseClick(timeline, Qt.MouseButton.LeftButton, pos=sign)
    assert h.window.cursor.is_live


def test_the_pinned_moment_stays_while_steps_come(qtbot):
    h = Harness(qtbot, steps=100)
    h.window.cursor.pin(40)
    h.run(50)
    assert h.window.cursor.pinned == 40 and h.window.cursor.state.step == 40
    assert h.window.mirror.last_step == 150


def test_marks_tell_before_and_after(qtbot):
    h = Harness(qtbot, steps=100)
    h.source.world.change(draft_length=2)
    h.run(100)
    timeline = _settled(h)
    mark = h.window.mirror.history.marks[-1]
    assert timeline.marks_at(timeline.x_of(mark.step)) == [mark]
    assert timeline.marks_at(timeline.x_of(mark.step) + 40) == []
    story = timeline.story(mark)
    assert "γ 4 → 2" in story and f"step {mark.step:,}" in story
    for name in ("tokens/s", "TTFT", "TPOT", "goodput"):
        assert name in story


def test_an_empty_history_is_no_trouble(qtbot):
    h = Harness(qtbot, steps=0)
    timeline = _settled(h)
    qtbot.mouseClick(timeline, Qt.MouseButton.LeftButton, pos=QPoint(timeline.track.left() + 5, 15))
    assert h.window.cursor.is_live
    timeline.grab()
