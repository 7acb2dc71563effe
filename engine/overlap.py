"""The next step is planned and launched while the present one runs: when that may be, and on what assumptions.

A *flight* is a step that has begun and not ended. While it runs, its rows' next tokens are unknown, but how many there
will be is not: one a row that reaches its last known token. So the step after it is planned as if they were there
(`as_if_done`), each a placeholder that the runner fills in (`PackedBatch.sources`). When the flight ends, some rows
turn out to have stopped. What the step after it computes for them is *wasted*: discarded, and counted in its record.

Between two steps the sequences' counters are those of the steps that have ended, whatever is in flight.

Simplest rule first: a step overlaps the one before only if no row of either needs more of the host than that. Drafts
are proposed from tokens, beams and samples fork on them, penalties count them, a watched sequence is looked at through
its logits, and a preempted one has to know what it has. Why a step didn't overlap is told in a word (`Serial`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Rows
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.admission import promised
from engine.branching import Decided
from engine.config import PENALTIES, LiveSettings
from engine.records import SAMPLED, Serial, StepBudget
from engine.runner.batch import Ints, PackedBatch, ScheduledRow
from engine.sampler import Outcome
from engine.scheduler import Plan, Scheduler
from engine.sequence import Sequence

if TYPE_CHECKING:
    import torch

    from engine.runner.launch import Pending

UNKNOWN = -1  # in place of a token that a running pass will choose; no embedding has it, no hash takes it


@dataclass(slots=True)
class Flight:
    """A step that has begun. `pending`: its pass, where it was launched; else `logits` are there already."""

    plan: Plan
    budget: StepBudget
    batch: PackedBatch | None = None  # None: nothing was to be run
    logits: torch.Tensor | None = None
    pending: Pending | None = None
    needs: Serial = ""  # what it needs of the host, so that nothing can follow before it ends
    overlapped: bool = False  # it began while the one before it ran
    serial: Serial = ""  # else: why it didn't
    # ns, within the call that ends it
    draft: int = 0
    schedule: int = 0  # the step after it included
    swap: int = 0
    forwarded: int = 0  # monotonic: when its logits or tokens were there

    @property
    def asked(self) -> list[ScheduledRow]:
        return [row for row in self.plan.rows if row.wants_logits]

    def landed(self) -> Decided:
        """Wait for a launched pass."""
        assert self.pending is not None
        tokens = self.pending.result().tolist()
        return Decided(
            {
                row.sequence.seq: Outcome([token], 0, [SAMPLED], [])
                for row, token in zip(self.asked, tokens, strict=True)
            }
        )

    def drop_stopped(self) -> int:
        """Leave out rows whose sequences have ended since it began; the tokens computed for nothing."""
        rows = self.plan.rows
        self.plan.rows = [row for row in rows if row.sequence.status == "running"]
        return sum(row.own for row in rows) - sum(row.own for row in self.plan.rows)


def needs_host(sequences: Iterable[Sequence], settings: LiveSettings) -> Serial:
    """Why a step with rows of these has to have the tokens before it on the host; "" if it needn't."""
    for sequence in sequences:
        if sequence.group is not None:
            return "beams" if sequence.request.beams else "samples"
        if sequence.params is None:  # not admitted yet
            own = sequence.request.sampling
            wanted = ((getattr(own, name), getattr(settings, name), none) for name, none in PENALTIES.items())
            if sequence.request.n > 1:
                return "samples"
            if any((default if value is None else value) != none for value, default, none in wanted):
                return "penalties"
        elif sequence.params.penalties is not None:
            return "penalties"
    return ""


def could_run(scheduler: Scheduler) -> list[Sequence]:
    """Everybody who may have a row in the coming step."""
    free = max(0, scheduler.settings.max_batch - len(scheduler.running))
    return scheduler.running + scheduler.waiting[:free]


def could_preempt(scheduler: Scheduler) -> Serial:
    """What could make a step that is planned now preempt somebody, or copy a block that others hold."""
    if not scheduler.settings.chunked_prefill and scheduler.waiting:
        return "prompts"  # they come in before decode rows have had their blocks
    if any(sequence.shares for sequence in scheduler.running):
        return "sharing"
    if promised(scheduler.running, scheduler.pool.block_size) > scheduler.pool.available:
        return "blocks"
    return ""


@contextmanager
def as_if_done(scheduler: Scheduler, rows: Rows[ScheduledRow]) -> Iterator[None]:
    """Within, the sequences are what they will be when `rows` have run. Those sure to end then, by their limit, are out
    of the queue already, so that others have their places in the batch at once; their blocks are not."""
    moved = [row for row in rows if row.sequence.status == "running"]
    for row in moved:
        row.sequence.computed += row.own
        if row.wants_logits:
            row.sequence.tokens.append(UNKNOWN)
    ending = [sequence for sequence in scheduler.running if len(sequence.tokens) >= sequence.limit]
    if ending:
        scheduler.running = [sequence for sequence in scheduler.running if len(sequence.tokens) < sequence.limit]
    try:
        yield
    finally:
        for row in moved:
            row.sequence.computed -= row.own
            if row.wants_logits:
                row.sequence.tokens.pop()
        if ending:
            scheduler.running = sorted(scheduler.running + ending, key=lambda sequence: sequence.order)


def sources(batch: PackedBatch, rows: Rows[ScheduledRow], before: Rows[ScheduledRow]) -> Ints:
    """(T) which token of the pass before, whose rows with logits are `before`, each token of `batch` is; −1: it is
    known."""
    place = {row.sequence.seq: index for index, row in enumerate(before)}
    found = np.full(len(batch.tokens), -1, dtype=np.int64)
    found[batch.row_starts[1:] - 1] = [place.get(row.sequence.seq, -1) for row in rows]
    return found
