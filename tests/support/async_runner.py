"""The table runner with passes that are launched: nothing is computed before somebody waits for it.

It holds a caller to what a device would punish: a launched batch is copied and what it came in is spoilt at once, a
token that the host can't know yet must be taken from the launch before, and copies of blocks wait for what was
launched before them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from engine.runner.batch import Ints, PackedBatch
from engine.sampler import Sampler, SampleRow
from tests.support.fake_runner import FakeRunner

SPOILT = 1 << 40  # no token, position, slot or block


@dataclass(eq=False)
class Launch:
    runner: AsyncRunner
    batch: PackedBatch
    rows: list[SampleRow]
    before: Launch | None
    tokens: Ints | None = None  # None: not computed yet
    error: BaseException | None = None  # it failed

    def result(self) -> Ints:
        assert self.tokens is None or self in self.runner.awaited, "read twice"
        self.runner.run_until(self)
        if self.error is not None:
            raise self.error
        assert self.tokens is not None
        return self.tokens


class AsyncRunner(FakeRunner):
    """`refused`: of launches beside a pass that runs, the next ones to fail."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.refused = 0
        self.launches = self.deepest = 0  # most launches that stood in the queue at once
        self.awaited: set[Launch] = set()  # computed for those behind them, not asked for yet
        self._queue: deque[Launch] = deque()
        self._last: Launch | None = None

    def launch(self, batch: PackedBatch, rows: list[SampleRow]) -> Launch:
        if self.refused and batch.sources is not None:
            self.refused -= 1
            raise MemoryError("no room beside the pass that runs")
        known = batch.sources is None or batch.sources < 0
        assert np.all((batch.tokens >= 0) == known), "a token is known or comes from the launch before"
        if batch.sources is not None:
            assert self._last is not None and self._last.error is None
        assert len(rows) == len(batch.logit_index) and not any(row.drafts for row in rows)
        names = ("tokens", "positions", "slots", "tables")
        kept = replace(batch, **{name: getattr(batch, name).copy() for name in names})
        for name in names:
            getattr(batch, name)[:] = SPOILT
        self._last = Launch(self, kept, [replace(row) for row in rows], self._last)
        self._queue.append(self._last)
        self.launches += 1
        self.deepest = max(self.deepest, len(self._queue))
        return self._last

    def run_until(self, last: Launch | None) -> None:
        """Everything launched up to `last`; None: everything."""
        while self._queue and (last is None or last.tokens is None):
            launch = self._queue.popleft()
            batch = launch.batch
            if batch.sources is not None:
                assert launch.before is not None and launch.before.tokens is not None
                known = batch.sources < 0
                chosen = launch.before.tokens[np.where(known, 0, batch.sources)]
                batch = replace(batch, tokens=np.where(known, batch.tokens, chosen))
            try:
                logits = self.execute(batch)
            except BaseException as error:
                for failed in (launch, *self._queue):  # what followed it can't run
                    failed.error = error
                self._queue.clear()
                return
            outcomes = Sampler(self.model.vocabulary).sample(logits, launch.rows)
            launch.tokens = np.array([outcome.tokens[0] for outcome in outcomes], dtype=np.int64)
            launch.before = None
            self.awaited.add(launch)
        self.awaited.discard(last)  # type: ignore[arg-type]

    def resize(self, num_blocks: int) -> None:
        assert not self._queue, "the pool changes under a pass"
        super().resize(num_blocks)

    def rebuild(self, *sizes: int) -> None:
        assert not self._queue, "the pool changes under a pass"
        super().rebuild(*sizes)

    def _copy(self, *copied) -> None:
        self.run_until(None)
        super()._copy(*copied)
