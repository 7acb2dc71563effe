"""When a frame is drawn: not out of sight, not before its turn, and at once for what the user did."""

from __future__ import annotations

import msgspec
import pytest

from engine.records import Status
from tests.ui.window_harness import Harness
from ui import cores
from ui.changes import Kinds


@pytest.mark.parametrize("how", ["hide", "showMinimized"])
def test_out_of_sight_records_are_taken_and_nothing_is_drawn(qtbot, how):
    h = Harness(qtbot)
    getattr(h.window, how)()
    h.view("pool").seen.clear()
    before = h.window.mirror.last_step
    h.run(5)
    assert h.window.frame.run() is None
    assert h.window.mirror.last_step == before + 5 and not h.view("pool").seen
    h.window.showNormal()
    h.view("pool").seen.clear()
    h.frame()  # without a new record
    assert h.view("pool").seen and h.view("pool").seen[-1] & Kinds.BLOCKS


def test_before_its_turn_a_frame_only_collects(qtbot):
    h = Harness(qtbot)
    h.view("pool").seen.clear()
    h.source.advance(2)
    assert h.window.frame.run(draw=False) is None
    assert h.window.mirror.last_step == 42 and not h.view("pool").seen
    assert h.window.frame.run() is not None
    assert h.view("pool").seen


@pytest.mark.parametrize("kinds", [Kinds.SELECTION, Kinds.CURSOR, Kinds.THEME, Kinds.SETTINGS, Kinds.SOURCE])
def test_what_the_user_did_is_drawn_with_the_next_frame(qtbot, kinds):
    h = Harness(qtbot)
    h.view("pool").seen.clear()
    h.window.frame.mark(kinds)
    assert h.window.frame.run(draw=False) is not None
    assert h.view("pool").seen[-1] & kinds
    assert h.window.frame.run(draw=False) is None  # that was it


def test_frames_give_way_while_the_engine_works_on_every_core(qtbot):
    h = Harness(qtbot)
    window, mirror = h.window, h.window.mirror
    mirror.ready = msgspec.structs.replace(mirror.ready, runner="cpu")
    mirror.status = Status(paused=False, delay=0.0, idle=False)
    h.frame()
    assert window.clock.share == cores.CROWDED
    mirror.status = Status(paused=False, delay=0.0, idle=True)
    h.frame()
    assert window.clock.share == cores.FREE


def test_a_picture_shows_everything_as_of_one_moment(qtbot):
    h = Harness(qtbot)
    h.frame()
    h.source.advance(3)
    assert h.window.frame.run(draw=False) is None  # the mirror is ahead of what is drawn
    for dock in h.window.deck.docks.values():
        if isinstance(getattr(dock.view, "seen", None), list):
            dock.view.seen.clear()
    h.window.frame.whole()
    shown = [dock for dock in h.window.deck.docks.values() if dock.shown]
    assert shown and all(dock.view.seen[-1] == Kinds.ALL for dock in shown)
    assert h.window.frame.run() is not None
    assert all(dock.bar.summary.text() == dock._summary for dock in shown)
