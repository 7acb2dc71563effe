"""The frame timer: frames are counted, and slow ones are paid back."""

from __future__ import annotations

import math

import pytest

from ui.clock import FRAME_NS, FrameClock, FrameStats


def test_percentiles_and_rate():
    stats = FrameStats(kept=8)
    assert math.isnan(stats.percentile_ms(50)) and stats.rate() == 0
    for paint in range(1, 11):
        stats.add(1_000_000, 2_000_000, paint * 1_000_000)
    assert stats.count == 10
    assert len(stats.costs()) == 8  # the oldest fell out
    assert stats.percentile_ms(100, "paint") == 10
    assert stats.percentile_ms(100) == 13
    assert stats.percentile_ms(50, "apply") == 1
    assert stats.rate() > 0
    stats.clear()
    assert stats.count == 0 and math.isnan(stats.percentile_ms(99))


def test_a_slow_frame_is_paid_back(qapp):
    drawn = []
    clock = FrameClock(lambda draw: (drawn.append(draw), (0, 0) if draw else None)[1])
    clock.tick()
    clock.painted(5 * FRAME_NS)  # four frames too long, half of them are paid back
    clock.tick()
    clock.tick()
    clock.tick()
    assert drawn == [True, False, False, True]
    assert clock.stats.skipped == 2


def frames_of(clock: FrameClock, drawn: list[bool], busy: int) -> int:
    """Ticks from one drawn frame to the next, of frames that take so much processor time, ns."""
    clock.tick()
    clock.painted(busy, busy)
    drawn.clear()
    while not any(drawn):
        clock.tick()
    return len(drawn)


@pytest.mark.parametrize(
    "share, busy, ticks",
    [(1.0, 4_800_000, 1), (0.5, 4_800_000, 1), (0.1, 4_800_000, 2), (0.07, 4_800_000, 3), (0.08, 80_000_000, 3)],
)
def test_frames_that_have_a_share_of_a_core_come_as_seldom_as_that_asks_but_ten_a_second(qapp, share, busy, ticks):
    drawn = []
    clock = FrameClock(lambda draw: (drawn.append(draw), (0, 0) if draw else None)[1])
    clock.pace(share, seen=True)
    assert frames_of(clock, drawn, busy) == ticks
    assert ticks * clock._timer.interval() <= 100


def test_what_others_took_of_the_core_is_no_cost_of_the_frame(qapp):
    drawn = []
    clock = FrameClock(lambda draw: (drawn.append(draw), (0, 0) if draw else None)[1])
    clock.pace(0.1, seen=True)
    clock.tick()
    clock.painted(FRAME_NS, 100_000)  # a frame's time on the wall, hardly any of it on a core
    drawn.clear()
    clock.tick()
    assert drawn == [True]


def test_ticks_that_come_late_are_fewer(qapp, monkeypatch):
    now = 10**12
    monkeypatch.setattr("ui.clock.perf_counter_ns", lambda: now)
    drawn = []
    clock = FrameClock(lambda draw: (drawn.append(draw), (0, 0) if draw else None)[1])
    clock.pace(0.01, seen=True)
    clock.tick()
    clock.painted(5_000_000, 5_000_000)
    now += 50_000_000
    clock.tick()
    now += 50_000_000
    clock.tick()
    assert drawn == [True, False, True]


def test_a_frame_may_be_drawn_unasked(qapp):
    urgent = []
    clock = FrameClock(lambda draw: (0, 0) if draw or urgent else None)
    clock.pace(0.01, seen=True)
    clock.tick()
    clock.painted(5_000_000, 5_000_000)
    clock.tick()
    assert clock.stats.skipped == 1
    urgent.append(True)
    clock.tick()
    clock.painted(5_000_000, 5_000_000)
    assert clock.stats.skipped == 1 and clock.stats.count == 2


def test_the_timer_follows_what_frames_may_take_and_whether_they_are_seen(qtbot):
    clock = FrameClock(lambda draw: None)
    intervals = []
    for share, seen in ((1.0, True), (0.5, True), (0.5, False), (1.0, False), (1.0, True)):
        clock.pace(share, seen)
        intervals.append(clock._timer.interval())
    assert intervals[0] == intervals[-1] == 16 and intervals[2] == intervals[3] < 100
    assert intervals[0] < intervals[1] < intervals[2]


def test_debt_is_capped(qapp):
    drawn = []
    clock = FrameClock(lambda draw: (drawn.append(draw), (0, 0) if draw else None)[1])
    clock.tick()
    clock.painted(100 * FRAME_NS)
    for _ in range(10):
        clock.tick()
    assert drawn.count(False) == 4


def test_a_repaint_that_no_frame_asked_for_counts_as_none(qapp):
    clock = FrameClock(lambda draw: None)
    clock.painted(FRAME_NS)
    assert clock.stats.count == 0


def test_it_runs_at_about_sixty_a_second_and_stops(qtbot):
    ticks = []
    clock = FrameClock(lambda draw: ticks.append(draw))
    clock.start()
    qtbot.waitUntil(lambda: len(ticks) >= 5, timeout=3000)
    clock.stop()
    assert not clock.running
    count = len(ticks)
    qtbot.wait(60)
    assert len(ticks) == count
