"""A pass that is asked for now and awaited later: what a runner offers so that the next step is planned while it runs.

A launched pass chooses its tokens where it runs, and the pass launched after it takes them from there. Passes run in
the order in which they were launched, and so do copies of blocks that are asked for between two of them: what a later
one writes, no earlier one reads. That is what lets blocks change hands while a pass that still writes to them runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from engine.runner.batch import Ints, PackedBatch
from engine.sampler import Sampler, SampleRow

if TYPE_CHECKING:
    from engine.runner.base import Runner


class Pending(Protocol):
    """One that nobody awaits any more may be let go of."""

    def result(self) -> Ints:
        """Wait for the pass; the tokens that it chose (N), in the order of `logit_index`. Raises BadLogits, and what
        the device raises when it runs out of memory."""
        ...


@runtime_checkable
class Launcher(Protocol):
    def launch(self, batch: PackedBatch, rows: list[SampleRow]) -> Pending:
        """Run `batch` and choose a token for each of `rows` (N), none of which has drafts. Both are read before it
        returns, for they change afterwards. Where `batch.sources` is i ≥ 0, the token is the i-th that the launch
        before this one chose."""
        ...


class Immediate:
    """A launcher for a runner that has none: every pass runs at once, so nothing overlaps but the order of things."""

    def __init__(self, runner: Runner, sampler: Sampler):
        self._runner = runner
        self._sampler = sampler
        self._chosen: Ints = np.zeros(0, dtype=np.int64)  # by the last launch

    def launch(self, batch: PackedBatch, rows: list[SampleRow]) -> Pending:
        if batch.sources is not None:
            known = batch.sources < 0
            tokens = np.where(known, batch.tokens, self._chosen[np.where(known, 0, batch.sources)])
            batch = replace(batch, tokens=tokens, sources=None)
        outcomes = self._sampler.sample(self._runner.execute(batch), rows)
        self._chosen = np.array([outcome.tokens[0] for outcome in outcomes], dtype=np.int64)
        return _Done(self._chosen)


class _Done:
    def __init__(self, tokens: Ints):
        self._tokens = tokens

    def result(self) -> Ints:
        return self._tokens
