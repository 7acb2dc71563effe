"""The chart's cells: what fills them, what they are compared with, what is never mixed."""

from __future__ import annotations

import msgspec
import pytest

from engine.config import LiveSettings
from tests.support.synthetic import SyntheticSource
from ui.crossover import ADAPTIVE, LEAST, Cell, Crossover, bucket
from ui.mirror import Mirror
from ui.views.crossover_chart import axes, told

MS = 1_000_000


def live(**changes) -> LiveSettings:
    return msgspec.structs.replace(LiveSettings(), **changes)


def run(chart: Crossover, settings: LiveSettings, batch: int, emitted: int, ms: float, steps=LEAST, drafted=8) -> None:
    for _ in range(steps):
        chart.add(settings, batch, drafted, emitted, int(ms * MS), 0)


@pytest.mark.parametrize(("batch", "size"), [(1, 1), (2, 2), (3, 4), (5, 4), (6, 8), (24, 32), (0.4, 1)])
def test_buckets_are_the_nearest_power_of_two(batch, size):
    assert bucket(batch) == size


def test_a_cell_compares_with_plain_steps_at_the_same_batch():
    chart = Crossover()
    run(chart, live(draft_length=0), 4, 4, 10, drafted=0)
    run(chart, live(), 4, 12, 15)
    cell = chart.cells(live())[4, 4]
    assert cell.speedup == pytest.approx(12 / 4 * 10 / 15)
    assert (cell.steps, cell.plain) == (LEAST, LEAST)


def test_a_bucket_never_compares_one_batch_with_another():
    """Plain steps at 3 and drafting ones at 5 fall into one bucket and still say nothing of each other."""
    chart = Crossover()
    run(chart, live(draft_length=0), 3, 3, 10, drafted=0)
    run(chart, live(), 5, 15, 15)
    assert chart.cells(live())[4, 4].speedup is None
    run(chart, live(draft_length=0), 5, 5, 12, drafted=0)
    assert chart.cells(live())[4, 4].speedup == pytest.approx(15 / 5 * 12 / 15)


def test_batches_of_a_bucket_weigh_by_their_time():
    chart = Crossover()
    for batch, took in ((3, 10), (5, 20)):
        run(chart, live(draft_length=0), batch, batch, 10, drafted=0)
        run(chart, live(), batch, 2 * batch, took)
    assert chart.cells(live())[4, 4].speedup == pytest.approx((10 * 2.0 + 20 * 1.0) / 30)


def test_blank_without_enough_steps():
    chart = Crossover()
    run(chart, live(draft_length=0), 4, 4, 10, drafted=0)
    run(chart, live(), 4, 12, 15, steps=LEAST - 1)
    cell = chart.cells(live())[4, 4]
    assert cell.speedup is None and cell.steps == LEAST - 1
    assert (8, 4) not in chart.cells(live())


def test_steps_with_nothing_drafted_count_for_their_draft_and_as_plain_ones_without_the_search():
    chart = Crossover()
    for _ in range(LEAST):
        chart.add(live(), 1, 0, 1, 12 * MS, 2 * MS)
    assert chart.cells(live())[4, 1].speedup == pytest.approx(10 / 12)


def test_kinds_of_drafts_are_kept_apart_and_plain_steps_serve_all():
    chart = Crossover()
    run(chart, live(draft_length=0), 1, 1, 10, drafted=0)
    run(chart, live(), 1, 3, 15)
    run(chart, live(draft_method="head"), 1, 2, 10)
    run(chart, live(simulated_acceptance=(0.8,)), 1, 4, 10)
    run(chart, live(draft_policy="adaptive", draft_length=8), 1, 5, 10)
    assert chart.cells(live())[4, 1].speedup == pytest.approx(2.0)
    assert chart.cells(live())[ADAPTIVE, 1].speedup == pytest.approx(5.0)
    assert chart.cells(live(draft_method="head"))[4, 1].speedup == pytest.approx(2.0)
    assert chart.cells(live(simulated_acceptance=(0.8,)))[4, 1].speedup == pytest.approx(4.0)
    assert chart.cells(live(draft_method="suffix")) == {}


def test_the_axes_hold_what_was_tried_and_what_is_worth_trying():
    columns, rows = axes({}, None)
    assert columns == [1, 2, 3, 4, 5, 6, 7, 8] and rows == [32, 16, 8, 4, 2, 1]
    columns, rows = axes({(12, 64): Cell(1.2, 9, 9)}, (ADAPTIVE, 1))
    assert columns == [*range(1, 13), ADAPTIVE] and rows[0] == 64


def test_a_cell_tells_what_it_rests_on_or_what_it_lacks():
    assert "not tried yet. Set it, and let 8 sequences decode" in told(4, 8, None)
    assert "Measure makes some" in told(4, 8, Cell(None, 3, 0))
    words = told(ADAPTIVE, 8, Cell(1.42, 312, 96))
    assert "<b>1.42×</b>" in words and "96 without drafts" in words


def test_the_mirror_fills_it_step_by_step_and_another_model_empties_it():
    source, mirror = SyntheticSource(512, 4), Mirror()
    for gamma in (0, 4, 0, 4):
        source.world.change(draft_length=gamma)
        source.advance(60)
        mirror.apply_all(source.poll())
    cells = mirror.history.crossover.cells(source.world.settings)
    assert any(cell.speedup is not None for cell in cells.values()) and {gamma for gamma, _ in cells} == {4}
    ready = source.world.ready()
    mirror.apply(ready)
    assert mirror.history.crossover.cells(source.world.settings)
    mirror.apply(msgspec.structs.replace(ready, model=msgspec.structs.replace(ready.model, dtype="int8")))
    assert not mirror.history.crossover.cells(source.world.settings)
