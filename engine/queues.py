"""Who waits and who runs, and how a sequence moves from one to the other: it comes, forks, is preempted, and leaves.

Both queues are kept in the order of (priority, arrival). A preempted sequence gives up all of its blocks and returns to
the queue, whose order puts it at the head of its priority; the beams of a search are preempted together. Sequences that
will fork from a prompt aren't queued before it is computed. Which rows run in a step is `scheduler`'s business.

Shadows (engine.shadow) stand beside all this: one of them is in the queue while nobody else has work, and out of it,
its blocks given back, from the step on in which anybody does. So no rule of the scheduler needs to know of them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from engine.block_pool import BlockPool
from engine.config import LiveSettings
from engine.formulas import blocks_for
from engine.host_pool import HostPool
from engine.records import NONE, Dropped, Event, Forked, Preempted
from engine.runner.batch import ScheduledRow
from engine.sequence import Sequence


def in_order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


class Queues:
    """Owns the two queues, both kept in order. Events go to `events`, a list shared with the engine."""

    def __init__(self, pool: BlockPool, host: HostPool, settings: LiveSettings, events: list[Event]):
        self.pool = pool
        self.host = host
        self.settings = settings
        self.events = events
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.unborn: list[Sequence] = []  # waiting too, but for the prompt of the one that they will fork from
        self.shadows: list[Sequence] = []  # those that wait for nobody else to have work
        self.shadow: Sequence | None = None  # the one that waits or runs like anybody, and alone

    @property
    def waiting_count(self) -> int:
        return len(self.waiting) + len(self.unborn) + len(self.shadows)

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=in_order)

    def remove(self, sequence: Sequence) -> None:
        """Finished or aborted: out of its queue, its blocks back to the pool."""
        if sequence.status == "running":
            self.running.remove(sequence)
        elif sequence in self.unborn:
            self.unborn.remove(sequence)
        elif sequence in self.shadows:
            self.shadows.remove(sequence)
        else:
            self.waiting.remove(sequence)
        if sequence is self.shadow:
            self.shadow = None
        sequence.status = "finished"
        sequence.drafts, sequence.reserved = [], False
        self.host.drop(sequence)
        self.pool.truncate(sequence, 0)

    def fork(self, child: Sequence, parent: Sequence, known: int) -> None:
        """The child continues the first `known` tokens of the parent, whose K/V is all there. Where both are paged it
        shares the parent's blocks. A reservation is never shared: what it has in common with the parent stays, the
        rest is computed again. One that never ran and finds no room waits."""
        first = child in self.unborn
        if first:
            self.unborn.remove(child)
            child.limit = parent.limit
            if len(self.running) < self.settings.max_batch and not parent.reserved:
                child.status = "running"
                insort(self.running, child, key=in_order)
            else:
                self.add(child)
        shared = 0
        if child.status == "running" and not child.reserved:
            self.pool.truncate(child, 0)
            child.computed = 0
            if not parent.reserved:
                shared = self.pool.share(child, parent)
                child.shares = parent.shares = True
                child.computed = known
        elif child.reserved:
            common = 0
            while common < known and child.tokens[common] == parent.tokens[common]:
                common += 1
            self.pool.unfill(child, min(common, child.computed))
            child.computed = min(common, child.computed)
        if not shared:
            child.hashes = parent.hashes[: known // self.pool.block_size]
        child.tokens = parent.tokens[:known]
        self.events.append(
            Forked(
                seq=child.seq,
                parent=parent.seq,
                known=known,
                computed=child.computed,
                shared=shared,
                running=child.status == "running",
                limit=child.limit,
            )
        )

    def preempt(self, sequence: Sequence, cause: str, by: int = NONE, needed: int = 0) -> None:
        """Back to the queue, with all beams of its search. What was computed moves to the host pool, or is computed
        again."""
        if sequence.group is None or not sequence.group.together:
            self._preempt(sequence, cause, by, needed)
            return
        for lane in reversed(sequence.group.living):
            if lane.status == "running":
                self._preempt(lane, cause, by, needed)

    def _preempt(self, sequence: Sequence, cause: str, by: int, needed: int) -> None:
        moves = cause != "block_size" and not sequence.shadow
        moved, note = self._move_out(sequence) if moves else (0, "")
        self.events.append(
            Preempted(
                seq=sequence.seq,
                cause=cause,
                by=by,
                needed=needed,
                lost=sequence.computed - sequence.swapped,
                swapped=sequence.swapped,
                bytes=moved * self.host.block_bytes,
                note=note,
            )
        )
        sequence.reached = max(sequence.reached, sequence.computed)
        self.running.remove(sequence)
        self.pool.truncate(sequence, 0)
        sequence.reserved = sequence.shares = False
        sequence.computed = 0
        sequence.drafts = []
        sequence.preemptions += 1
        sequence.status = "waiting"
        self.add(sequence)

    def _move_out(self, sequence: Sequence) -> tuple[int, str]:
        """Blocks that will be copied to the host pool, and why none are although they should be."""
        if self.host.stay(sequence) or self.settings.preemption == "recompute" or not sequence.computed:
            return 0, ""
        if self.host.move_out(sequence, self.pool.block_size, self.pool.copies):
            return len(sequence.host), ""
        needed, host = blocks_for(sequence.computed, self.pool.block_size), self.host
        return 0, f"the host pool has {host.free_count:,} free blocks of {host.num_blocks:,}, {needed:,} needed"

    def _drop(self, sequence: Sequence, cause: str) -> None:
        self.events.append(Dropped(seq=sequence.seq, cause=cause, lost=sequence.swapped))
        self.host.drop(sequence)

    # --- settings ---

    def apply(self, settings: LiveSettings) -> None:
        """Obey valid settings from the next step on. The pools are resized here; their K/V is the runner's, which must
        still have all of it, for what is preempted by swap."""
        old, self.settings = self.settings, settings
        if settings.block_size != old.block_size:
            self._rebuild(settings)
        while len(self.running) > settings.max_batch:
            self.preempt(self.running[-1], "max_batch")
        if settings.kv_blocks != self.pool.num_blocks:
            for sequence in reversed(self.running[:]):
                if any(block >= settings.kv_blocks for block in sequence.table):  # none once it was preempted
                    self.preempt(sequence, "resize")
            self.pool.resize(settings.kv_blocks)
        if settings.swap_blocks != self.host.num_blocks:
            for sequence in self.waiting:
                if any(block >= settings.swap_blocks for block in sequence.host):
                    self._drop(sequence, "swap_blocks")
            self.host.resize(settings.swap_blocks)
        if not settings.prefix_cache:
            self.pool.drop_cache()
            for sequence in self.running:
                sequence.sealed = 0

    def _rebuild(self, settings: LiveSettings) -> None:
        """Blocks of another size: nothing that any pool holds is of use, and everybody starts again."""
        while self.running:
            self.preempt(self.running[-1], "block_size")
        for sequence in self.waiting:
            sequence.hashes.clear()
            if sequence.swapped:
                self._drop(sequence, "block_size")
        self.pool.drop_cache()
        self.pool.rebuild(settings.kv_blocks, settings.block_size)

    # --- shadows ---

    def step_aside(self) -> None:
        """Before a step: the first shadow queues when nobody else has work, and leaves as soon as anybody has."""
        if self.shadow is None and not self.shadows:
            return
        others = len(self.running) + len(self.waiting) - (self.shadow is not None)
        if self.shadow is None and not others:
            self.shadow = self.shadows.pop(0)
            self.waiting.append(self.shadow)
        elif self.shadow is not None and others:
            if self.shadow.status == "running":
                self._preempt(self.shadow, "shadow", NONE, 0)
            self.waiting.remove(self.shadow)
            self.shadows.insert(0, self.shadow)
            self.shadow = None

    def check(self, ahead: Iterable[ScheduledRow] = ()) -> None:
        """Assert the queues' order and the sequences' own counters, between steps. `ahead`: rows of a step that runs
        already."""
        own = {row.sequence.seq: row.own for row in ahead}
        assert len(self.running) <= self.settings.max_batch
        assert self.pool.num_blocks == self.settings.kv_blocks
        assert self.host.num_blocks == self.settings.swap_blocks
        assert all(s.group is not None and s.group.lanes[0] is not s for s in self.unborn)
        assert all(s.shadow and not s.table for s in self.shadows)
        if self.shadow is not None:
            assert [self.shadow] == self.running + self.waiting or len(self.running) + len(self.waiting) > 1
        unordered = (self.unborn, self.shadows)
        for queue, status in ((self.running, "running"), *((q, "waiting") for q in (self.waiting, *unordered))):
            if not any(queue is each for each in unordered):
                assert queue == sorted(queue, key=in_order) and len(set(map(in_order, queue))) == len(queue)
            for sequence in queue:
                assert sequence.status == status
                sequence.check(self.pool.block_size, own.get(sequence.seq, 0))
        self.pool.check(self.running)
        self.host.check(self.waiting, self.pool.block_size)
