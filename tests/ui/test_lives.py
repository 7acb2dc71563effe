"""The block lives view: what is counted is what is drawn, on one axis, and what is empty says why."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import QPoint

from engine import records as r
from engine.config import EngineConfig
from tests.support.fake_runner import settings
from tests.support.inprocess import InProcessEngine
from tests.support.synthetic import NoProbe, NoWorkload
from tests.ui.scenes import scene, show
from ui import log_bins
from ui.changes import Kinds
from ui.context import ViewContext
from ui.cursor import Cursor
from ui.latency import SECOND
from ui.mirror import Mirror
from ui.selection import Selection
from ui.theme import Theme
from ui.views.lives import WINDOW, LivesView
from ui.views.lives_plot import Axis, tick


def served(requests: int = 40, blocks: int = 24, prefix_cache: bool = True) -> ViewContext:
    """A real pool under requests that share heads."""
    live = settings(kv_blocks=blocks, block_size=8, max_batch=6, prefix_cache=prefix_cache)
    source, mirror = InProcessEngine(EngineConfig(settings=live, block_size=8, seed=5)), Mirror()
    rng = np.random.default_rng(11)
    heads = [rng.integers(0, 8, 16).tolist() for _ in range(3)]
    for number in range(requests):
        tokens = heads[number % 3] + rng.integers(0, 8, 9).tolist()
        request = r.Request(number=number, token_ids=tokens, max_tokens=12, ignore_eos=True)
        source.send(r.Submit(id=source.next_id(), request=request))
    for _ in range(400):
        mirror.apply_all(source.poll())
    return ViewContext(mirror, Cursor(mirror), Selection(), Theme("dark"), source, NoWorkload(), NoProbe())


@pytest.fixture
def view(qtbot):
    return show(qtbot, LivesView(served()), 420, 300)


def test_every_block_that_went_is_in_a_bar(view):
    lives = view.context.mirror.history.lives
    lifetime, idle, gap = view.rows
    assert lifetime.shown.counts.sum(axis=1).tolist() == [lives.lifetime.total, lives.freed.total]
    assert idle.shown.counts.sum() == lives.idle.total > 0 and gap.shown.counts.sum() == lives.gap.total > 0
    assert lifetime.shown.value == np.sort(np.r_[lives.lifetime.seconds.value, lives.freed.seconds.value])[
        -(-lifetime.total // 2) - 1
    ]
    assert lifetime.counted == f"{lives.lifetime.total:,} evicted · {lives.freed.total:,} freed"
    assert f"{lives.idle.total:,} evicted" in view._summary


def test_bars_are_drawn_where_their_times_are(view):
    image, theme = view.grab().toImage(), view.theme
    axis, bar = view._axis, theme.color("kv_cached").name()
    box = next(box for box, row in view._hits if row.figure.key == "idle")
    counts = axis.folded(view.rows[1].shown.counts)[0]
    for index in range(len(counts)):
        left, right = axis.x(axis.low + index), axis.x(axis.low + index + 1)
        if right - left >= 4 and not counts[index]:
            assert image.pixelColor((left + right - 1) // 2 - 1, box.bottom()).name() != bar
    tallest = int(counts.argmax())
    x = axis.x(axis.low + tallest) + 1
    assert any(image.pixelColor(x, y).name() == bar for y in range(box.top(), box.bottom() + 1))


def test_the_axis_is_shared_and_covers_everything():
    counts = np.zeros(log_bins.BINS, int)
    counts[[log_bins.place([0.004])[0], log_bins.place([7.0])[0]]] = 1
    axis = Axis.of(counts, 10, 400)
    assert axis.decades()[0] == (10, "1 ms") and axis.decades()[-1] == (410, "10 s")
    assert axis.x_of(0.1) == 10 + 200 and axis.x_of(1e-9) == 10 and axis.x_of(1e9) == 410
    counts[0] = 5  # in no time at all: no reason to begin the axis there
    again = Axis.of(counts, 10, 400)
    assert (again.low, again.high) == (axis.low, axis.high)
    assert again.folded(counts)[0] == 5 and again.folded(counts).sum() == 7
    assert again.decades()[0] == (10, "≤ 1 ms") and again.range_words(again.low).startswith("at most 1.2")
    assert axis.range_words(axis.low).startswith("1.00 ms to 1.2")
    assert [tick(p) for p in (-4, -3, -2, -1, 0, 3)] == ["0.1 ms", "1 ms", "10 ms", "100 ms", "1 s", "1,000 s"]
    narrow = Axis.of(np.zeros(log_bins.BINS, int), 0, 90)
    assert (narrow.high - narrow.low) == 3 * log_bins.PER_DECADE
    assert all(narrow.low <= narrow.bin_at(x) < narrow.high for x in (-5, 0, 89, 200))


def test_what_is_empty_says_why(qtbot):
    view = show(qtbot, LivesView(served(requests=2, blocks=200)), 420, 300)
    assert view.rows[1].shown.empty == "no block was evicted: the pool never ran out"
    without = show(qtbot, LivesView(served(requests=4, prefix_cache=False)), 420, 300)
    assert "the prefix cache is off" in without.rows[1].shown.empty
    assert without.rows[2].shown.empty == "no block was asked for again: the prefix cache is off"
    assert without.rows[0].counted.endswith("freed")
    none = show(qtbot, LivesView(scene(steps=0)), 420, 300)
    assert none._is_empty() and none._summary == "" and not none.grab().isNull()


def test_what_is_older_than_the_window_is_an_outline(view):
    view.context.mirror.live.clock += 2 * WINDOW * SECOND
    view.refresh(Kinds.STEPS)
    assert all(not row.shown.counts.sum() and row.shown.session.sum() for row in view.rows)
    assert view.rows[0].shown.empty.startswith(f"none in the last {WINDOW} s")
    faint, image = view.theme.color("text_faint").name(), view.grab().toImage()
    box = next(box for box, row in view._hits if row.figure.key == "idle")
    assert any(image.pixelColor(x, y).name() == faint for x in range(box.left(), box.right()) for y in range(
        box.top() + view.line() + 4, box.bottom()))  # fmt: skip


def test_the_past_has_its_own_counts(view):
    everything = view.rows[0].total
    view.context.cursor.pin(view.context.mirror.last_step // 2)
    view.refresh(Kinds.CURSOR)
    assert 0 < view.rows[0].total < everything and view.rows[0].shown.counts.sum() == view.rows[0].total


def test_the_selected_block_stands_in_it_with_its_age(view):
    lives, clock = view.context.mirror.history.lives, view.context.cursor.clock
    block = int(np.flatnonzero(lives.state)[0])
    view.context.selection.choose(block=block)
    view.refresh(Kinds.SELECTION)
    age, words = view.rows[0].shown.own
    assert age == (clock - lives.born_clock[block]) / SECOND and words.startswith(f"block {block} so far")
    assert view.rows[1].shown.own is None and not view.grab().isNull()


def test_hovering_tells_the_definition_the_median_and_the_bar(view, qtbot, monkeypatch):
    told = []
    monkeypatch.setattr(LivesView, "tip", lambda self, where, text: told.append(text))
    view.grab()
    box, row = view._hits[0]
    tallest = int(view._axis.folded(row.shown.counts).sum(axis=0).argmax())
    qtbot.mouseMove(view, QPoint(view._axis.x(view._axis.low + tallest) + 1, box.center().y()))
    assert "from a block's allocation until its contents were gone" in told[-1]
    assert "kv_block_lifetime_seconds" in told[-1] and "median" in told[-1] and " step" in told[-1]
    assert " blocks of " in told[-1]
    lives = view.context.mirror.history.lives
    assert view.rows[1].unused == np.sort(lives.unused.seconds.value)[-(-lives.unused.total // 2) - 1]
    assert "Nobody held them for the last" in view.rows[1].tip and "Nobody held" not in row.tip


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("size", [(160, 60), (260, 150), (420, 240), (900, 130), (1600, 900)])
def test_rows_stay_inside_and_apart(qtbot, size, scale):
    context = served(requests=10)
    context.theme.set_scale(scale)
    view = show(qtbot, LivesView(context), *size)
    assert not view.grab().isNull()
    for index, (box, _) in enumerate(view._hits):
        assert view.rect().contains(box) or size[1] == 60
        assert not any(box.intersects(other) for other, _ in view._hits[index + 1 :])
