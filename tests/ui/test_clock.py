"""The frame timer: frames are counted, and slow ones are paid back."""

from __future__ import annotations

import math

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
