"""The latency view: percentiles and goodput against a recount, targets, and how little is said of few samples."""

from __future__ import annotations

import numpy as np
import pytest

from engine.formulas import percentile
from tests.ui.scenes import advance, scene, show
from ui.changes import Kinds
from ui.paint import histogram
from ui.paint.bins import per_bin
from ui.views.latency import KINDS, POINTS, WINDOW, LatencyView, _percentiles

SECOND = 1_000_000_000


@pytest.fixture
def view(qtbot):
    return show(qtbot, LatencyView(scene(steps=400)), 700, 420)


def test_a_histogram_counts_every_value():
    counts = histogram.count(np.array([0.0, 0.1, 0.99, 1.0, 7.0]), 1.0, 10)
    assert counts.sum() == 5 and counts[0] == 1 and counts[1] == 1 and counts[-1] == 3


def test_bins_of_time_sum_their_weights():
    found = per_bin(np.array([0, 5, 9, 10, -1]), np.array([1.0, 2, 4, 8, 16]), 0, 10, 2)
    assert found.tolist() == [1.0, 6.0]


def test_percentiles_are_the_formulas(view):
    rng = np.random.default_rng(3)
    for count in (1, 2, 7, 100, 101):
        values = rng.random(count)
        assert _percentiles(values) == [percentile(values.tolist(), point) for point in POINTS]


def test_the_window_is_a_minute_of_the_engines_clock(view):
    history, clock = view.context.mirror.history, view.context.cursor.clock
    ttft = history.ttft.value[history.ttft.clock > clock - WINDOW * SECOND]
    assert view.shown.points["ttft"][0] == percentile(ttft.tolist(), 50)
    assert len(view.shown.values["tpot"]) == np.count_nonzero(history.tpot.clock > clock - WINDOW * SECOND)


def test_goodput_recounted_from_the_requests(view):
    view._ttft.setValue(0.2)
    view._tpot.setValue(10)
    clock = view.context.cursor.clock
    since = clock - WINDOW * SECOND
    ended = [r for r in view.context.mirror.history.requests if r.finish_clock > since and r.ttft is not None]
    good = [r for r in ended if r.ttft <= 0.2 and (r.tpot is None or r.tpot <= 0.01)]
    seconds = (clock - max(since, int(view.context.mirror.history.slice().clock[0]))) / SECOND
    assert view.shown.goodput == pytest.approx(len(good) / seconds)


def test_the_targets_are_a_second_and_a_tenth(view):
    assert (view.targets.ttft, view.targets.tpot) == (1.0, 0.1)
    assert (view._ttft.text(), view._tpot.text()) == ("1.00 s", "100 ms")


def test_other_targets_are_told(view, qtbot):
    with qtbot.waitSignal(view.targets_changed):
        view._tpot.setValue(50)
    assert view.targets.tpot == pytest.approx(0.05)


def test_a_past_moment_has_its_own_figures(view):
    before = len(view.shown.values["ttft"])
    view.context.cursor.pin(150)
    view.refresh(Kinds.CURSOR)
    assert 0 < len(view.shown.values["ttft"]) < before


def test_nothing_measured_is_a_dash(qtbot):
    view = show(qtbot, LatencyView(scene(steps=0)), 500, 300)
    assert all(np.isnan(value) for value in view.shown.points["ttft"])
    assert not view.grab().isNull()


def test_marks_and_figures_around_them_are_drawn(view):
    view.context.source.world.change(draft_length=1)
    advance(view.context, 40)
    view.refresh(Kinds.ALL)
    marks = view.context.mirror.history.marks
    assert view._rate.plot.lines == [pytest.approx((marks[-1].clock - view.context.cursor.clock) / SECOND)]
    image = view.grab().toImage()
    mark = view.theme.color("mark").name()
    assert any(image.pixelColor(x, image.height() - 60).name() == mark for x in range(image.width()))


def test_the_plot_is_built_once(view):
    items = len(view._rate.plot.getPlotItem().items)
    for gamma in (1, 2, 3):
        view.context.source.world.change(draft_length=gamma)
        advance(view.context, 20)
        view.refresh(Kinds.ALL)
    more = len(view._rate.plot.getPlotItem().items)
    view.context.cursor.pin(100)
    view.refresh(Kinds.CURSOR)
    view.context.cursor.live()
    view.refresh(Kinds.CURSOR)
    assert items <= more == len(view._rate.plot.getPlotItem().items)
    assert len(view._rate.plot.lines) == 3


def test_the_curve_is_the_recorded_rate(view):
    x, y = view._rate.plot._curve.getData()
    clock = view.context.cursor.clock
    columns = view.context.mirror.history.since(clock + int(x[0] * SECOND), clock)
    inside = columns.end > clock + int(x[0] * SECOND)
    assert (y * np.diff(x)).sum() == pytest.approx(columns.emitted[inside].sum(), abs=int(columns.emitted.max()))


def test_each_kind_is_explained():
    assert [words for _, words, _, _ in KINDS] == ["TTFT", "TPOT", "ITL", "queue", "e2e"]
    assert all(told for *_, told in KINDS)


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("size", [(160, 60), (320, 180), (300, 600), (1600, 800)])
def test_it_paints_at_any_size(qtbot, size, scale):
    context = scene(steps=120)
    context.theme.set_scale(scale)
    view = show(qtbot, LatencyView(context), *size)
    view.grab()
    boxes = [b for b in (view._ttft, view._tpot) if b.isVisible()]
    assert all(view.rect().contains(box.geometry()) for box in boxes)
    assert all(box.lineEdit().width() >= box.width() // 2 for box in boxes)
    hits = [box for box, _ in view._hits]
    for index, box in enumerate(hits):
        assert view.rect().contains(box)
        assert not any(box.intersects(other) for other in hits[index + 1 :])
        assert not any(box.intersects(spin.geometry()) for spin in boxes)


def test_the_selected_sequence_stands_in_the_histograms(view):
    state = view.context.cursor.state
    info = next(state.sequences[seq] for seq in state.running if state.sequences[seq].output_tokens > 1)
    view.context.selection.choose(info.seq)
    view.refresh(Kinds.SELECTION)
    chosen = view.shown.chosen
    assert chosen["ttft"].value == pytest.approx((info.first_token - info.arrival) / SECOND)
    pace = (info.last_token - info.first_token) / (info.output_tokens - 1) / SECOND
    assert chosen["tpot"].value == pytest.approx(pace)
    view.context.selection.choose()
    view.refresh(Kinds.SELECTION)
    assert not view.shown.chosen


def test_targets_are_those_of_the_whole_window(view):
    view._ttft.setValue(0.25)
    assert view.context.goals.targets.ttft == pytest.approx(0.25)
