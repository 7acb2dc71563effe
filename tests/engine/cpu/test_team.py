"""A team of threads: every chunk once and in its turn, whoever sleeps when; and how it breaks off and ends."""

from __future__ import annotations

import gc
import threading
from collections import Counter

import numpy as np
import pytest
from numba import njit

from engine.cpu.team import LINE, Team, claim, next_chunk, over

WITHIN = 10.0  # s for another thread to get somewhere


@njit(nogil=True)
def counting(rank, step, lines, chunks, counts, faults):
    """Each chunk adds 1 to its own number; each first looks whether the phase before it is whole."""
    for phase in range(len(chunks)):
        line = lines + phase * LINE
        chunk = claim(line, step, chunks[phase])
        while chunk >= 0:
            if phase:
                for other in range(chunks[phase - 1]):
                    faults[rank] += counts[phase - 1, other] != counts[phase, chunk] + 1
            counts[phase, chunk] += 1
            chunk = next_chunk(line, step, chunks[phase])
        if not over(line, step, chunks[phase]):
            return


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_every_chunk_is_done_once_and_in_its_turn(threads: int):
    chunks = np.array([7, 1, 16, 0, 3, 2, 31])
    counts, faults = np.zeros((len(chunks), 31), np.int64), np.zeros(threads, np.int64)
    team = Team(threads, len(chunks))
    for done in range(1, 2001):
        team.run(counting, team.lines.ctypes.data, chunks, counts, faults)
        if done % 500 == 0:
            for phase, each in zip(counts, chunks, strict=True):
                assert (phase[:each] == done).all() and not phase[each:].any()
    assert not faults.any()
    team.close()


class Log:
    """A program of `phases` phases in Python that notes what was done by whom; `at(rank, step, phase, chunk)` is
    called in every chunk, and with chunk −1 between them."""

    def __init__(self, threads: int, at=lambda *_: None, phases: int = 3, chunks: int = 5):
        self.team = Team(threads, phases)
        self.done: list[tuple[int, int, int, int]] = []  # rank, step, phase, chunk
        self.left: list[tuple[int, int]] = []  # rank, step: through, or on its way out
        self.at, self.phases, self.chunks = at, phases, chunks
        self.address = self.team.lines.ctypes.data

    def run(self) -> None:
        self.team.run(self.program)

    def program(self, rank: int, step: int) -> None:
        try:
            for phase in range(self.phases):
                line = self.address + phase * LINE
                self.at(rank, step, phase, -1)
                chunk = claim(line, step, self.chunks)
                while chunk >= 0:
                    assert step == self.team.step, "a chunk of a step that is over"
                    self.at(rank, step, phase, chunk)
                    self.done.append((rank, step, phase, chunk))
                    chunk = next_chunk(line, step, self.chunks)
                if not over(line, step, self.chunks):
                    return
        finally:
            self.left.append((rank, step))

    def assert_whole(self, *steps: int) -> None:
        wanted = [(s, p, c) for s in steps for p in range(self.phases) for c in range(self.chunks)]
        assert Counter(entry[1:] for entry in self.done if entry[1] in steps) == Counter(wanted)


@pytest.mark.parametrize("phase", [0, 1, 2])
def test_a_thread_that_sleeps_between_chunks_holds_nobody_up_and_touches_no_later_step(phase: int):
    asleep, wake, left = threading.Event(), threading.Event(), threading.Event()

    def nap(rank: int, step: int, where: int, chunk: int) -> None:
        if (rank, step, where, chunk) == (1, 1, phase, -1):
            asleep.set()
            assert wake.wait(WITHIN)
        elif rank == 1 and step > 1:
            left.set()
        elif rank == 0 and step == 1 and where == phase:
            assert asleep.wait(WITHIN)  # the other has the time to come to where it sleeps

    log = Log(2, nap)
    for _ in range(5):
        log.run()
    log.assert_whole(1, 2, 3, 4, 5)
    assert all(rank == 0 for rank, step, *_ in log.done if step > 1)
    wake.set()
    assert left.wait(WITHIN)
    log.run()
    log.assert_whole(1, 2, 3, 4, 5, 6)
    log.team.close()
    assert log.left.index((1, 1)) > log.left.index((0, 5))
    assert log.team._bench.error is None


def test_a_thread_that_sleeps_in_a_chunk_is_waited_for():
    def nap(rank: int, step: int, where: int, chunk: int) -> None:
        if chunk == 2:
            threading.Event().wait(0.02)

    log = Log(3, nap)
    for _ in range(4):
        log.run()
    log.assert_whole(1, 2, 3, 4)
    log.team.close()


def test_numbers_of_steps_begin_again():
    log = Log(2)
    log.team.step = (1 << 30) - 2
    for _ in range(4):
        log.run()
    assert log.team.step == 2
    log.assert_whole((1 << 30) - 1, 1 << 30, 1, 2)
    log.team.close()


# --- breaking off ---


def test_what_a_helper_raises_is_raised_by_run():
    def fail(rank: int, step: int, where: int, chunk: int) -> None:
        if rank == 0 and step == 1 and chunk < 0:
            assert failed.wait(WITHIN)
        elif rank == 1 and step == 1 and chunk >= 0:
            failed.set()
            raise ZeroDivisionError("in a helper")

    failed = threading.Event()
    log = Log(2, fail)
    with pytest.raises(ZeroDivisionError, match="in a helper"):
        log.run()
    for _ in range(3):
        log.run()
    log.assert_whole(2, 3, 4)
    log.team.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_ctrl_c_leaves_nobody_at_work(error: type[BaseException]):
    inside, out = threading.Event(), []

    def interrupt(rank: int, step: int, where: int, chunk: int) -> None:
        if step != 1:
            return
        if rank == 0:
            assert inside.wait(WITHIN)
            raise error
        if chunk >= 0 and not inside.is_set():
            inside.set()
            threading.Event().wait(0.05)  # in the middle of a chunk when the other breaks off
            out.append(rank)

    log = Log(2, interrupt)
    with pytest.raises(error):
        log.run()
    assert out == [1] and (1, 1) in log.left  # it was waited for
    for _ in range(3):
        log.run()
    log.assert_whole(2, 3, 4)
    log.team.close()


# --- ending ---


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("cpu-")]


def test_close_ends_the_threads():
    before = len(helpers())
    team = Team(4, 1)
    assert len(helpers()) == before + 3
    team.close()
    team.close()
    assert len(helpers()) == before


def test_a_team_that_nobody_holds_ends_its_threads():
    before = len(helpers())
    team, chunks = Team(3, 1), np.array([4])
    team.run(counting, team.lines.ctypes.data, chunks, np.zeros((1, 4), np.int64), np.zeros(3, np.int64))
    assert len(helpers()) == before + 2
    del team
    gc.collect()
    assert len(helpers()) == before


def test_a_team_without_helpers_starts_none():
    before = threading.active_count()
    log = Log(1)
    log.run()
    log.assert_whole(1)
    assert threading.active_count() == before


def test_a_team_may_be_called_from_any_thread():
    log = Log(2)
    log.run()
    caller = threading.Thread(target=lambda: [log.run() for _ in range(20)])
    caller.start()
    caller.join(WITHIN)
    log.run()
    log.assert_whole(*range(1, 23))
    log.team.close()
