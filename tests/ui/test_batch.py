"""The batch view: bars whose pixels are the tokens, folding, zoom and pan, marks, pinning by a click."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QColor, QImage, QWheelEvent
from PySide6.QtWidgets import QApplication

from tests.ui.scenes import advance, scene, show
from ui.changes import Kinds
from ui.paint.bars import BarStack, Strip, argb, tallest
from ui.paint.histogram import SteadyTop, nice
from ui.views.batch import BatchView
from ui.views.step_axis import DEFAULT, ZOOMS, StepAxis
from ui.views.step_strips import describe


def pixels(image: QImage) -> np.ndarray:
    if image.format() != QImage.Format.Format_ARGB32_Premultiplied:
        image = image.convertToFormat(QImage.Format.Format_ARGB32)
    return np.frombuffer(image.constBits(), np.uint32).reshape(image.height(), image.bytesPerLine() // 4).copy()


def test_a_stack_has_the_pixels_of_its_values():
    stack = BarStack()
    found = pixels(stack.render(np.array([[10.0, 0.0], [5.0, 20.0]]), 20.0, 40, 3, 1, [1, 2]))
    assert found.shape == (40, 6)
    assert (found[:, 0] == 1).sum() == 20 and (found[:, 0] == 2).sum() == 10
    assert (found[:, 3] == 1).sum() == 0 and (found[:, 3] == 2).sum() == 40
    assert not found[:, 2].any() and not found[:, 5].any()  # the gap
    assert found[-1, 0] == 1  # the first part is lowest


def test_a_part_that_is_not_zero_is_seen():
    found = pixels(BarStack().render(np.array([[1000.0], [1.0]]), 2000.0, 40, 1, 0, [1, 2]))
    assert (found == 2).sum() == 1


def test_more_than_the_top_is_cut_at_the_top():
    assert (pixels(BarStack().render(np.array([[50.0]]), 20.0, 10, 1, 0, [7])) == 7).all()


def test_a_strip_has_a_colour_a_cell():
    found = pixels(Strip().render(np.array([0, 1, 1]), 4, 2, [5, 6]))
    assert found.shape == (4, 6) and found[0].tolist() == [5, 5, 6, 6, 6, 6]


def test_folding_keeps_the_tallest_of_each_group():
    groups, pick = tallest(np.array([1, 9, 3, 4, 2, 8]), first=3, fold=4)
    assert groups.tolist() == [0, 1, 2]
    assert pick.tolist() == [0, 1, 5]
    groups, pick = tallest(np.array([5, 5, 5]), first=4, fold=4)
    assert groups.tolist() == [1] and pick.tolist() == [0]


def test_folding_does_not_change_its_groups_while_it_scrolls():
    rng = np.random.default_rng(1)
    row = rng.integers(0, 100, 64)
    whole = dict(zip(*[a.tolist() for a in tallest(row, 0, 8)], strict=True))
    part = dict(zip(*[a.tolist() for a in tallest(row[16:], 16, 8)], strict=True))
    assert {group: index + 16 for group, index in part.items()} == {g: i for g, i in whole.items() if g >= 2}


def test_the_scale_grows_at_once_and_shrinks_late():
    top = SteadyTop()
    assert top.update(90) == nice(90) == 100
    assert top.update(120) == 150
    assert top.update(100) == 150
    assert top.update(20) == 20


def test_the_axis_follows_the_newest_step_until_it_is_panned():
    axis = StepAxis()
    bars = axis.fit(600, 1, 1000, None)
    assert (axis.high, bars) == (1000, 100) and axis.low == 901
    assert axis.steps_at(axis.x(950)) == (950, 950)
    axis.pan(40)
    axis.fit(600, 1, 1010, None)
    assert axis.high == 960 and not axis.follows
    axis.pan(-80)
    axis.fit(600, 1, 1010, None)
    assert axis.high == 1010 and axis.follows


def test_a_moment_pinned_elsewhere_comes_into_view():
    axis = StepAxis()
    axis.fit(600, 1, 1000, 300)
    assert axis.low <= 300 <= axis.high


def test_zooming_out_folds_steps_only_under_two_pixels():
    assert ZOOMS[DEFAULT] == (6, 1)
    assert all(fold == 1 or bar == 2 for bar, fold in ZOOMS)
    axis = StepAxis()
    axis.zoom(-20)
    axis.fit(600, 1, 40_000, None)
    assert axis.fold == 64
    low, high = axis.steps_at(axis.x(30_000))
    assert low <= 30_000 <= high and high - low == 63


@pytest.fixture
def view(qtbot):
    return show(qtbot, BatchView(scene(steps=300)), 1000, 240)


def test_the_summary_tells_step_budget_and_bound(view):
    assert view._summary.startswith("step 300 · 384 tokens budget · bound by: ")


def test_the_newest_bar_on_the_screen_is_the_newest_step(view):
    history = view.context.mirror.history
    found = pixels(view.grab().toImage())
    plot = view._plot
    column = found[plot.top() : plot.bottom() + 1, view.axis.x(300) + 1]
    last = history.slice(300, 300)
    top = 384 * 1.03
    for name in ("decode", "accepted", "rejected", "prefill"):
        color = argb(view.theme.color(name))
        want = int(getattr(last, name)[0]) / top * plot.height()
        assert abs(int((column == color).sum()) - want) <= 1.5, name


def test_nothing_yet_says_so(qtbot):
    context = scene(steps=0)
    view = show(qtbot, BatchView(context), 400, 200)
    assert view._summary == ""
    assert not view.grab().isNull()


def test_a_click_pins_the_step_under_it(view, qtbot):
    x = view.axis.x(280) + 1
    qtbot.mouseClick(view, Qt.MouseButton.LeftButton, pos=QPoint(x, view._plot.center().y()))
    assert view.context.cursor.pinned == 280
    view.refresh(Kinds.CURSOR)
    assert view._summary.startswith("step 280")
    found = pixels(view.grab().toImage())
    assert found[view._plot.center().y(), view.axis.x(280) - 1] == argb(view.theme.color("selection"))


def test_the_second_click_of_two_takes_the_first_back(view, qtbot):
    spot = QPoint(view.axis.x(280) + 1, view._plot.center().y())
    qtbot.mouseClick(view, Qt.MouseButton.LeftButton, pos=spot)
    qtbot.mouseDClick(view, Qt.MouseButton.LeftButton, pos=spot)
    assert view.context.cursor.is_live
    qtbot.mouseClick(view, Qt.MouseButton.LeftButton, pos=spot)
    beside = QPoint(view._plot.right() + 5, view._plot.center().y())
    qtbot.mouseClick(view, Qt.MouseButton.LeftButton, pos=beside)
    qtbot.mouseDClick(view, Qt.MouseButton.LeftButton, pos=beside)
    assert view.context.cursor.pinned == 280  # nothing was taken, nothing is taken back


def test_pinned_bars_stand_still_while_steps_come(view):
    view.context.cursor.pin(290)
    view.refresh(Kinds.CURSOR)
    view.grab()
    before = view.axis.x(290)
    advance(view.context, 20)
    view.refresh(Kinds.STEPS)
    view.grab()
    assert view.axis.x(290) == before
    view.context.cursor.live()
    view.refresh(Kinds.CURSOR)
    view.grab()
    assert view.axis.high == 320


def test_the_wheel_zooms(view):
    for delta, bar in ((-120, 4), (120, 6)):
        place = QPointF(view._plot.center())
        event = QWheelEvent(place, place, QPoint(), QPoint(0, delta), Qt.MouseButton.NoButton,
                            Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase, False)  # fmt: skip
        QApplication.sendEvent(view, event)
        assert view.axis.bar == bar


def test_a_changed_setting_is_marked(view):
    view.context.source.world.change(draft_length=2)
    advance(view.context, 5)
    view.refresh(Kinds.ALL)
    found = pixels(view.grab().toImage())
    x = view.axis.x(301)
    assert found[view._plot.top() + 2, x] == argb(view.theme.color("mark"))


def test_hovering_tells_the_step_in_words(view):
    words = describe(view.context.mirror.history, 300, 300)
    last = view.context.mirror.history.slice(300, 300)
    assert "<b>step 300</b>" in words and f"prefill {int(last.prefill[0])}" in words and "forward" in words
    assert "most tokens of 10 steps" in describe(view.context.mirror.history, 291, 300)


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("size", [(160, 60), (320, 180), (600, 240), (1900, 500)])
def test_it_paints_at_any_size(qtbot, size, scale):
    context = scene(steps=120)
    context.theme.set_scale(scale)
    view = show(qtbot, BatchView(context), *size)
    context.selection.choose(context.cursor.state.running[0])
    view.refresh(Kinds.ALL)
    image = view.grab().toImage()
    assert QColor(image.pixel(1, size[1] - 1)).name() == context.theme.color("panel").name()


def test_a_past_that_is_kept_no_more_is_still_drawn(qtbot):
    """Steps go on while somebody looks at the oldest ones."""
    context = scene(steps=60)
    view = show(qtbot, BatchView(context), 900, 400)
    failures = []
    view.failed.connect(failures.append)
    context.cursor.pin(2)
    view.refresh(Kinds.ALL)
    view.grab()
    context.mirror.history.capacity = 20
    advance(context, 60)
    assert context.mirror.history.first > 40
    view.refresh(Kinds.ALL)
    view.grab()
    assert not failures
