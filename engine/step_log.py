"""A child like the worker's, that also writes down when each step was due, began and ended: for benches.

The log is a file that both sides map, so that whoever measures reads it without asking the child, and without the
window that stands between. It costs a step two looks at the clock and six numbers. What is written here is real time,
whatever clock the engine itself runs on; a pace asks for steps at a given rate, so that being late can be seen.

The file's name comes in the environment: the child's configuration is the engine's own, sent again with every start.
"""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

PATH = "SERVESCOPE_STEP_LOG"  # the environment variable
STEPS = 1 << 20  # that a log holds; a file with holes, so that only what is written takes room
# int64: ns of time.monotonic, output tokens, requests waiting after the step
FIELDS = ("due", "start", "end", "tokens", "waiting")
# places in the head: steps written, ns between two due ones (0 = as they come), and how often that began anew
_COUNT, _PERIOD, _BEGUN = 0, 1, 2


class StepLog:
    """`rows` (STEPS, 5): FIELDS of each step, of which `count` are written. The pace may be set at any time."""

    def __init__(self, path: Path, create: bool = False):
        width = len(FIELDS)
        mode = "w+" if create else "r+"
        self._numbers = np.memmap(path, np.int64, mode, shape=(STEPS + 1, width))
        self._head, self.rows = self._numbers[0], self._numbers[1:]

    @property
    def count(self) -> int:
        return int(self._head[_COUNT])

    @property
    def pace(self) -> tuple[int, int]:
        """ns between two due steps, 0 = as they come; and how often a pace was set."""
        return int(self._head[_PERIOD]), int(self._head[_BEGUN])

    def set_pace(self, ns: int) -> None:
        """The next step is due when it comes, and each after it `ns` later; the same again makes up for nothing."""
        self._head[_PERIOD] = ns
        self._head[_BEGUN] += 1

    def add(self, due: int, start: int, end: int, tokens: int, waiting: int) -> None:
        at = self.count
        if at < STEPS:
            self.rows[at] = due, start, end, tokens, waiting
            self._head[_COUNT] = at + 1  # last: a reader sees whole rows only

    def between(self, since: int, until: int) -> np.ndarray:
        """(n, 5): the steps that ended in that time, ns."""
        rows = self.rows[: self.count]
        first, last = np.searchsorted(rows[:, 2], [since, until], "right")
        return rows[first:last].copy()


class Logged:
    """An engine whose steps are written down, and begin no sooner than they are due. Everything else is its own."""

    def __init__(self, engine, log: StepLog):
        self._engine, self._log = engine, log
        self._due, self._pace = 0, (0, 0)

    def __getattr__(self, name: str):
        return getattr(self._engine, name)

    def step(self, alone: bool):
        due = self._wait()
        start = time.monotonic_ns()
        record = self._engine.step(alone)
        self._log.add(due or start, start, time.monotonic_ns(), len(record.text), record.waiting)
        return record

    def _wait(self) -> int:
        """When this step was due, ns; 0 without a pace. A late step moves none of those after it."""
        pace = self._log.pace
        period, now = pace[0], time.monotonic_ns()
        self._due = now if pace != self._pace else self._due + period
        self._pace = pace
        if not period:
            return 0
        if self._due > now:
            time.sleep((self._due - now) / 1e9)
        return self._due


def main(commands: Connection, records: Connection, config: bytes) -> None:
    """What the client spawns in the worker's place."""
    from dataclasses import replace

    from engine.worker import build_engine, serve

    log = StepLog(Path(os.environ[PATH]))

    def build(config, progress):
        built = build_engine(config, progress)
        return replace(built, engine=Logged(built.engine, log))

    serve(commands, records, config, build)
