"""How long what a block holds lives, lies idle and waits to be used again: three histograms. Bounded, no Qt.

Named as vLLM names them (`--kv-cache-metrics`, vllm/v1/core/kv_cache_metrics.py), over every block, where vLLM follows
one in a hundred. A block's *life* begins when a sequence is given it empty; it is *touched* then, and whenever a
sequence gets it by its contents (a prefix hit, or sharing one in use).

    kv_block_lifetime     from its allocation until its contents were gone
    idle_before_evict     from its last touch until it was evicted
    reuse_gap             from one touch to the next

So an evicted block's lifetime is the sum of its gaps and its idle time. As in vLLM a touch is a moment: idle time
counts from when the block was last handed out, work of its last owner included. How long nobody held it is beside it,
as `unused`. Two things differ, and lose nothing: gaps are counted when they end and not at the eviction, of all
touches, the allocation included, and not of the last four; and a block that is let go of without being kept (not full,
or no prefix cache) ends there, as `freed`, and not when it is next given away.

Times are those of the record, on the engine clock: what happens in a step happens at its start. A block that is given
and let go of within one step leaves no trace in the records. Samples and beams that fork refer to their parent's blocks
without asking the cache for them: that is no touch. Of blocks already alive when the window came, or when records were
lost, the beginning isn't known, and what hangs on it isn't counted.

What was evicted may be asked for again: then its tokens are computed once more, or brought back from the host, and a
block with the same hash is findable again. `again` counts from the eviction until then.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from engine.records import (
    BLOCK,
    CACHE,
    CACHED,
    COPY,
    FREE,
    HIT,
    NONE,
    SEAL,
    USED,
    Between,
    Forked,
    Keyframe,
    StepRecord,
    unpack,
)
from engine.records import EVICTED as EVICTED_ENTRY
from ui import log_bins
from ui.block_events import AGAIN, COPIED, EVICTED, FREED, LET_GO, REUSED, SHARED, TAKEN, BlockEvents
from ui.block_events import KEPT as EVENTS
from ui.latency import SECOND, Samples

KEPT = 50_000  # samples of each: a minute of 800 evictions a second
KEPT_GONE = 50_000  # evicted contents that are remembered by their hashes
UNKNOWN = -1
LATER = 32  # records


class Measure:
    """One figure: the last samples exactly, all of the session in bins. What a record brings is put with the rest when
    somebody looks, or when there are LATER of them: that saves most of what numpy takes for a few numbers.

    Attributes:
        seconds, steps: samples; their `seq` is whose the block was. counts: of the session, in `log_bins`.
    """

    def __init__(self) -> None:
        self._seconds, self._steps = Samples(KEPT), Samples(KEPT)
        self._counts = np.zeros(log_bins.BINS, np.int64)
        self._later: list[tuple[int, NDArray, NDArray, NDArray]] = []

    def add(self, clock: int, ns: NDArray, steps: NDArray, seqs: NDArray) -> None:
        if len(ns):
            self._later.append((clock, ns, steps, seqs))
            if len(self._later) >= LATER:
                self._catch_up()

    def _catch_up(self) -> None:
        if not self._later:
            return
        clocks, ns, steps, seqs = zip(*self._later, strict=True)
        self._later = []
        clock = np.repeat(clocks, [len(each) for each in ns])
        seconds, whose = np.concatenate(ns) / SECOND, np.concatenate(seqs)
        self._seconds.extend(clock, seconds, whose)
        self._steps.extend(clock, np.concatenate(steps), whose)
        self._counts += log_bins.count(seconds)

    @property
    def seconds(self) -> Samples:
        self._catch_up()
        return self._seconds

    @property
    def steps(self) -> Samples:
        self._catch_up()
        return self._steps

    @property
    def counts(self) -> NDArray[np.int64]:
        self._catch_up()
        return self._counts

    def since(self, clock: int, until: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Seconds and steps of the samples after `clock`, up to and with `until`."""
        return self.seconds.since(clock, until)[1], self.steps.since(clock, until)[1]

    @property
    def total(self) -> int:
        return self.seconds.count


class BlockLives:
    """
    Attributes:
        lifetime, freed: of contents that were evicted, and of those let go of without being kept.
        idle, unused: before an eviction, since the last touch and since the last owner let go.
        gap: between two touches. again: from an eviction until the same contents were there again.
        events: what happened to each block.
        born, born_clock, maker: of each block, when its life began (UNKNOWN: not seen) and for whom.
        reuses: touches since then.
    """

    def __init__(self) -> None:
        self.lifetime, self.freed = Measure(), Measure()
        self.idle, self.unused, self.gap = Measure(), Measure(), Measure()
        self.again = Measure()
        self.events = BlockEvents()
        self._gone: OrderedDict[int, tuple[int, int, int]] = OrderedDict()  # hash → block, step, clock
        self._most_gone = KEPT_GONE
        self.start(0)

    def keep(self, share: float) -> None:
        """Hold only this share of what is usually kept."""
        self.events = BlockEvents(max(1, int(share * EVENTS)))
        for measure in (self.lifetime, self.freed, self.idle, self.unused, self.gap, self.again):
            measure.seconds.keep(max(1, int(share * KEPT)))
            measure.steps.keep(max(1, int(share * KEPT)))
        self._most_gone = max(1, int(share * KEPT_GONE))

    def start(self, num_blocks: int) -> None:
        """Another engine's pool, empty. What was counted stays."""
        self._gone.clear()
        self._lay_out(num_blocks)

    def _lay_out(self, num_blocks: int) -> None:
        self.state = np.zeros(num_blocks, np.uint8)
        self._hash = np.zeros(num_blocks, np.uint64)  # 0: not findable
        self._filled = np.zeros(num_blocks, np.uint16)
        self._refcount = np.zeros(num_blocks, np.uint16)
        self._owner = np.full(num_blocks, NONE, np.uint32)
        self.maker = np.full(num_blocks, NONE, np.uint32)
        self.born = np.full(num_blocks, UNKNOWN, np.int32)
        self.born_clock = np.full(num_blocks, UNKNOWN, np.int64)
        self._touch = np.full(num_blocks, UNKNOWN, np.int32)
        self._touch_clock = np.full(num_blocks, UNKNOWN, np.int64)
        self.reuses = np.zeros(num_blocks, np.uint32)
        self._place = np.zeros(num_blocks, np.int32)  # within `_entries` alone

    def follow(self, frame: Keyframe) -> None:
        """Begin anew from a keyframe that doesn't follow on what was seen: whoever lives was born unseen."""
        self.start(len(frame.state))
        self.state[:] = np.frombuffer(frame.state, np.uint8)
        self._filled[:] = np.frombuffer(frame.filled, "<u2")
        self._refcount[:] = np.frombuffer(frame.refcount, "<u2")
        self._owner[:] = np.frombuffer(frame.owner, "<u4")
        sealed = unpack(frame.sealed, SEAL)
        self._hash[sealed["block"].astype(np.intp)] = sealed["hash"]

    def step(self, record: StepRecord) -> None:
        self._take(record, record.step, record.cache)

    def between(self, record: Between) -> None:
        self._take(record, record.after, b"")

    @property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))

    # --- within ---

    def _take(self, record: StepRecord | Between, step: int, cache: bytes) -> None:
        clock = record.clock
        self._resize(record.settings.kv_blocks, step, clock)
        if cache:
            self._entries(unpack(cache, CACHE), step, clock)
        if record.blocks:
            forked = any(isinstance(event, Forked) for event in record.events)
            self._changes(unpack(record.blocks, BLOCK), step, clock, forked)
        if record.copies:
            copies = unpack(record.copies, COPY)
            self.events.add(step, clock, COPIED, copies["block"], copies["seq"], copies["source"])
        if record.sealed:
            self._seals(unpack(record.sealed, SEAL), step, clock)

    def _entries(self, entries: NDArray, step: int, clock: int) -> None:
        """What the prefix cache did, in order: of each block one entry at a time."""
        entries = entries[entries["block"] < len(self.state)]
        while len(entries):
            order = np.arange(len(entries))
            self._place[entries["block"]] = order
            if (self._place[entries["block"]] == order).all():  # none of them twice
                now, entries = entries, entries[:0]
            else:
                first = np.sort(np.unique(entries["block"], return_index=True)[1])
                now, entries = entries[first], np.delete(entries, first)
            out = now["kind"] == EVICTED_ENTRY
            self._evict(now[out], step, clock)
            self._reuse(now[~out], step, clock)

    def _evict(self, entries: NDArray, step: int, clock: int) -> None:
        if not len(entries):
            return
        blocks, owners = entries["block"].astype(np.intp), entries["owner"]
        self._end(self.lifetime, blocks, owners, step, clock)
        known = self._touch[blocks] != UNKNOWN
        seen = blocks[known]
        self.idle.add(clock, clock - self._touch_clock[seen], step - self._touch[seen], owners[known])
        self.unused.add(clock, entries["ns"].astype(np.int64), entries["steps"], owners)
        self.events.add(step, clock, EVICTED, blocks, entries["seq"], owners, entries["ns"])
        for block, known_by in zip(blocks.tolist(), self._hash[blocks].tolist(), strict=True):
            if known_by:
                self._gone[known_by] = block, step, clock
                self._gone.move_to_end(known_by)
        while len(self._gone) > self._most_gone:
            self._gone.popitem(last=False)
        self._hash[blocks] = 0
        self.state[blocks], self._filled[blocks], self._refcount[blocks] = USED, 0, 1
        self._owner[blocks] = entries["seq"]
        self._begin(blocks, entries["seq"], step, clock)

    def _reuse(self, entries: NDArray, step: int, clock: int) -> None:
        if not len(entries):
            return
        blocks, hit = entries["block"].astype(np.intp), entries["kind"] == HIT
        known = self._touch[blocks] != UNKNOWN
        seen = blocks[known]
        self.gap.add(clock, clock - self._touch_clock[seen], step - self._touch[seen], entries["owner"][known])
        self._touch[blocks], self._touch_clock[blocks] = step, clock
        self.reuses[blocks] += 1
        for kind, which in ((REUSED, hit), (SHARED, ~hit)):
            some = entries[which]
            self.events.add(step, clock, kind, blocks[which], some["seq"], some["owner"], some["ns"])
        self.state[blocks[hit]], self._owner[blocks[hit]] = USED, entries["seq"][hit]
        self._refcount[blocks] = np.where(hit, 1, self._refcount[blocks] + 1)

    def _changes(self, change: NDArray, step: int, clock: int, forked: bool) -> None:
        """Final values of blocks, after what the prefix cache did. Where sequences forked, a block may live on though
        its only holder left, or though it holds less than before."""
        change = change[change["block"] < len(self.state)]
        blocks, state, owner = change["block"].astype(np.intp), change["state"], change["owner"]
        was, had = self.state[blocks], self._owner[blocks]
        # let go of and given away again in between: fewer tokens than before, another owner of what only one had held,
        # or in use without a hit
        alone = (self._refcount[blocks] <= 1) & (not forked)
        anew = (owner != had) & (state == USED) & ((was == CACHED) | alone)
        if not forked:
            anew |= change["filled"] < self._filled[blocks]
        anew &= (was != FREE) & (state != FREE)
        gone = ((was != FREE) & (state == FREE)) | anew
        fresh = ((was == FREE) & (state != FREE)) | anew
        if gone.any():
            ended = blocks[gone]
            self._end(self.freed, ended, had[gone], step, clock)
            self.events.add(step, clock, FREED, ended, had[gone], had[gone])
            self.born[ended] = self._touch[ended] = UNKNOWN
        if fresh.any():
            self._begin(blocks[fresh], owner[fresh], step, clock)
        left = (state == CACHED) & ((was == USED) | fresh)
        if left.any():
            self.events.add(step, clock, LET_GO, blocks[left], owner[left], owner[left])
        self.state[blocks], self._filled[blocks] = state, change["filled"]
        self._refcount[blocks], self._owner[blocks] = change["refcount"], owner

    def _seals(self, entries: NDArray, step: int, clock: int) -> None:
        """Which blocks can be found now; whose contents had been evicted before, is told where that was."""
        found = [(self._gone.pop(key), seq) for key, seq in zip(entries["hash"].tolist(), entries["seq"].tolist(),
                 strict=True) if key in self._gone]  # fmt: skip
        if found:
            places, seqs = zip(*found, strict=True)
            blocks, steps, clocks = (np.array(column) for column in zip(*places, strict=True))
            self.again.add(clock, clock - clocks, step - steps, np.array(seqs, np.uint32))
            self.events.add(step, clock, AGAIN, blocks, np.array(seqs, np.uint32), NONE, clock - clocks)
        everything = np.flatnonzero(entries["block"] == NONE)
        if len(everything):
            self._hash[:] = 0
            entries = entries[everything[-1] + 1 :]
        entries = entries[entries["block"] < len(self.state)]
        self._hash[entries["block"].astype(np.intp)] = entries["hash"]

    def _begin(self, blocks: NDArray, seqs: NDArray, step: int, clock: int) -> None:
        self.born[blocks] = self._touch[blocks] = step
        self.born_clock[blocks] = self._touch_clock[blocks] = clock
        self.maker[blocks], self.reuses[blocks] = seqs, 0
        self.events.add(step, clock, TAKEN, blocks, seqs, NONE)

    def _end(self, measure: Measure, blocks: NDArray, owners: NDArray, step: int, clock: int) -> None:
        known = self.born[blocks] != UNKNOWN
        seen = blocks[known]
        measure.add(clock, clock - self.born_clock[seen], step - self.born[seen], owners[known])

    def _resize(self, num_blocks: int, step: int, clock: int) -> None:
        """A pool of another size. What lay beyond a smaller end is gone."""
        size = len(self.state)
        if num_blocks == size:
            return
        beyond = np.flatnonzero(self.state[num_blocks:] != FREE) + num_blocks
        self._end(self.freed, beyond, self._owner[beyond], step, clock)
        self.events.add(step, clock, FREED, beyond, self._owner[beyond], self._owner[beyond])
        old = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        self._lay_out(num_blocks)
        kept = min(size, num_blocks)
        for name, value in old.items():
            getattr(self, name)[:kept] = value[:kept]
