"""The bench of what looking on costs: its ratios, and one short run of all arms with a window that freezes."""

from __future__ import annotations

import argparse

import pytest

from app.bench import overhead
from app.bench.watched import AWAKE_WITHIN, BenchFailed, Segment, Watched
from app.options import UsageError
from engine.config import EngineConfig
from engine.outbox import KEPT


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    overhead.add_arguments(parser)
    return parser.parse_args(words)


def segment(arm: str, steps_per_s: float) -> Segment:
    return Segment(arm, 1.0, steps_per_s, 8 * steps_per_s, 0.1, 0.2, 0.1, 1.0, 1e3 / steps_per_s, False)


def test_a_ratio_is_to_the_headless_segments_on_both_sides() -> None:
    found = [segment(arm, rate) for arm, rate in [
        ("headless", 100), ("open", 99), ("headless", 120), ("frozen", 120), ("headless", 120), ("open", 55),
        ("headless", 100),
    ]]  # fmt: skip
    assert overhead.ratios(found) == {"open": [0.9, 0.5], "frozen": [1.0]}


@pytest.mark.parametrize("words", [
    ("--pairs", "0"), ("--seconds", "0"), ("--size", "big"), ("--frozen", "-1"), ("--size", "1x1"), ("--threads", "-3"),
    ("--rate", "nan"), ("--frozen", "nan"), ("--sequences", "4000"), ("--blocks", "2147483648"),
])  # fmt: skip
def test_bad_words_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        overhead.run(arguments(*words))


def test_late_steps_are_told_of_a_pace_alone() -> None:
    found = [segment(arm, 200) for arm in ("headless", "open", "headless", "hidden", "headless", "frozen", "headless")]
    paced, unpaced = (overhead._figures(engine, found, {"frames_per_s": [60.0]}) for engine in ("paced", "simulated"))
    assert paced["paced_open_late_p99_ms"] == 0.2 and not any("_late_" in key for key in unpaced)
    assert unpaced["simulated_hidden_ratio"] == 1 and unpaced["simulated_open_frames_per_s"] == 60


@pytest.mark.slow(seconds=20)
def test_all_arms_are_measured_and_a_frozen_window_wakes_to_a_gap_and_is_right() -> None:
    words = "--engines", "simulated", "--blocks", "20000", "--sequences", "32"
    with Watched(overhead._job("simulated", arguments(*words), (1600, 1000))) as watched:
        figures = overhead._figures("simulated", *overhead._turns(watched, 1, 0.4))
        for arm in overhead.ARMS:
            low, high = figures[f"simulated_{arm}_ratio_interval"]
            assert 0 < low <= figures[f"simulated_{arm}_ratio"] <= high < 3
        assert figures["simulated_frozen_window_cpu"] == 0 < figures["simulated_open_frames_per_s"]
        assert figures["simulated_starved_segments"] == 0

        watched.fill(60)
        watched.period = 2_500_000  # ns; as fast as it can, a window never catches up with it on an idle machine
        watched.segment("open", 0.4)
        before = watched.log.count
        with watched.frozen():
            watched.until_step(before + KEPT + 500)  # more than are kept for a reader
        assert watched.awake() < AWAKE_WITHIN
        seen = watched.order("check")
        (first, last), *_ = seen["gaps"]
        assert before < first <= last
        assert seen["differing"] == []


def test_an_engine_that_cannot_start_is_told(tmp_path) -> None:
    job = overhead._job("cpu", arguments(), (960, 600))
    with pytest.raises(BenchFailed, match="no-such-model"):
        Watched(type(job)(EngineConfig(model=str(tmp_path / "no-such-model")), (4, 8), (960, 600))).__enter__()
