"""The log says of each step when it was due, began and ended, to whoever maps the file."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest

from engine.step_log import Logged, StepLog


class Stepping:
    """An engine whose steps take `seconds`."""

    has_work = True

    def __init__(self, seconds: float = 0.0):
        self.seconds, self.alone = seconds, []

    def step(self, alone: bool):
        self.alone.append(alone)
        time.sleep(self.seconds)
        return SimpleNamespace(text=["a", "b"], waiting=3)


@pytest.fixture
def log(tmp_path):
    return StepLog(tmp_path / "steps", create=True)


def test_another_process_reads_what_was_written(tmp_path, log):
    other = StepLog(tmp_path / "steps")
    assert other.count == 0
    for n in range(5):
        log.add(due=n * 10, start=n * 10 + 1, end=n * 10 + 9, tokens=n, waiting=2)
    assert other.count == 5
    assert other.rows[4].tolist() == [40, 41, 49, 4, 2]
    other.set_pace(5_000_000)
    assert log.pace == (5_000_000, 1)


def test_steps_of_a_time_are_those_that_ended_in_it(log):
    for n in range(10):
        log.add(n * 10, n * 10, n * 10 + 9, 1, 0)
    assert log.between(19, 59)[:, 2].tolist() == [29, 39, 49, 59]
    assert len(log.between(1000, 2000)) == 0


def test_an_engine_is_logged_and_otherwise_itself(log):
    inner = Stepping(0.002)
    engine = Logged(inner, log)
    assert engine.has_work and engine.step(alone=True).waiting == 3
    due, start, end, tokens, waiting = log.rows[0].tolist()
    assert inner.alone == [True] and (tokens, waiting) == (2, 3)
    assert due == start and end - start >= 2_000_000


def test_steps_come_at_the_pace_asked_for_and_a_late_one_moves_none(log):
    log.set_pace(10_000_000)
    inner = Stepping()
    engine = Logged(inner, log)
    engine.step(False)
    inner.seconds = 0.025  # longer than two periods
    engine.step(False)
    inner.seconds = 0.0
    for _ in range(4):
        engine.step(False)
    rows = log.rows[: log.count]
    assert np.diff(rows[:, 0]).tolist() == [10_000_000] * 5  # due times
    late = rows[:, 1] - rows[:, 0]
    assert (late >= 0).all() and late[2] >= 14_000_000  # the one after the long step
    log.set_pace(10_000_000)  # begun anew: nothing is late
    engine.step(False)
    assert log.rows[6, 0] > log.rows[5, 0] and log.rows[6, 1] - log.rows[6, 0] < 1_000_000
    log.set_pace(0)
    engine.step(False)
    assert log.rows[7, 0] == log.rows[7, 1]
