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
from itertools import repeat

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
        self._later: list[tuple[int, int, NDArray, NDArray, NDArray]] = []

    def add(self, step: int, clock: int, steps: NDArray, clocks: NDArray, seqs: NDArray) -> None:
        """What began at these steps and clocks ends now; it doesn't count where the beginning is UNKNOWN."""
        self._later.append((step, clock, steps, clocks, seqs))
        if len(self._later) >= LATER:
            self._catch_up()

    def _catch_up(self) -> None:
        if not self._later:
            return
        *ends, steps, clocks, seqs = zip(*self._later, strict=True)
        self._later = []
        began, began_clock, whose = np.concatenate(steps), np.concatenate(clocks), np.concatenate(seqs)
        step, clock = np.repeat(ends, [len(each) for each in steps], axis=1)
        known = began != UNKNOWN
        if not known.all():
            began, began_clock, whose = began[known], began_clock[known], whose[known]
            step, clock = step[known], clock[known]
        seconds = (clock - began_clock) / SECOND
        self._seconds.extend(clock, seconds, whose)
        self._steps.extend(clock, step - began, whose)
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


# What is known of a block. Together, as an event concerns nearly all of it: it is one place in memory, not eleven.
_BLOCK = np.dtype(
    [
        ("born_clock", "i8"),
        ("touch_clock", "i8"),
        ("hash", "u8"),  # 0: not findable
        ("born", "i4"),
        ("touch", "i4"),
        ("owner", "u4"),
        ("maker", "u4"),
        ("reuses", "u4"),
        ("filled", "u2"),
        ("refcount", "u2"),
        ("state", "u1"),
    ],
    align=True,
)
_WHOLE = np.dtype((np.void, _BLOCK.itemsize))  # as bytes: numpy copies structures field by field


class BlockLives:
    """
    Attributes:
        lifetime, freed: of contents that were evicted, and of those let go of without being kept.
        idle, unused: before an eviction, since the last touch and since the last owner let go.
        gap: between two touches. again: from an eviction until the same contents were there again.
        events: what happened to each block.
        state, born, born_clock, maker, reuses: of each block: as in records.BLOCK; when its life began (UNKNOWN: not
            seen), and for whom; touches since then.
    """

    def __init__(self) -> None:
        self.lifetime, self.freed = Measure(), Measure()
        self.idle, self.unused, self.gap = Measure(), Measure(), Measure()
        self.again = Measure()
        self.events = BlockEvents()
        self._gone: OrderedDict[int, tuple[int, int, int]] = OrderedDict()  # hash → block, step, clock
        self._most_gone = KEPT_GONE
        self.start(0)

    @property
    def state(self) -> NDArray[np.uint8]:
        return self._blocks["state"]

    @property
    def born(self) -> NDArray[np.int32]:
        return self._blocks["born"]

    @property
    def born_clock(self) -> NDArray[np.int64]:
        return self._blocks["born_clock"]

    @property
    def maker(self) -> NDArray[np.uint32]:
        return self._blocks["maker"]

    @property
    def reuses(self) -> NDArray[np.uint32]:
        return self._blocks["reuses"]

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
        self._blocks = _empty(num_blocks)

    def follow(self, frame: Keyframe) -> None:
        """Begin anew from a keyframe that doesn't follow on what was seen: whoever lives was born unseen."""
        self.start(len(frame.state))
        self._blocks["state"] = np.frombuffer(frame.state, np.uint8)
        self._blocks["filled"] = np.frombuffer(frame.filled, "<u2")
        self._blocks["refcount"] = np.frombuffer(frame.refcount, "<u2")
        self._blocks["owner"] = np.frombuffer(frame.owner, "<u4")
        sealed = unpack(frame.sealed, SEAL)
        self._blocks["hash"][sealed["block"].astype(np.intp)] = sealed["hash"]

    def step(self, record: StepRecord) -> None:
        self._take(record, record.step, record.cache)

    def between(self, record: Between) -> None:
        self._take(record, record.after, b"")

    @property
    def nbytes(self) -> int:
        return self._blocks.nbytes

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

    def _of(self, blocks: NDArray) -> NDArray:
        """A copy of what is known of them, (len(blocks)) of _BLOCK."""
        return self._blocks.view(_WHOLE).take(blocks).view(_BLOCK)

    def _put(self, blocks: NDArray, known: NDArray) -> None:
        """The way back."""
        self._blocks.view(_WHOLE)[blocks] = known.view(_WHOLE)

    def _within(self, entries: NDArray) -> NDArray:
        """Without those whose block a smaller pool let go of."""
        blocks, size = entries["block"], len(self._blocks)
        return entries if not len(blocks) or blocks.max() < size else entries[blocks < size]

    def _entries(self, entries: NDArray, step: int, clock: int) -> None:
        """What the prefix cache did, in order: of each block one entry at a time."""
        entries = self._within(entries)
        while len(entries):
            if len(set(entries["block"].tolist())) == len(entries):
                now, entries = entries, entries[:0]
            else:
                first = np.sort(np.unique(entries["block"], return_index=True)[1])
                now, entries = entries[first], np.delete(entries, first)
            out = now["kind"] == EVICTED_ENTRY
            if out.all():
                self._evict(now, step, clock)
            else:
                self._evict(now[out], step, clock)
                self._reuse(now[~out], step, clock)

    def _evict(self, entries: NDArray, step: int, clock: int) -> None:
        if not len(entries):
            return
        blocks, seqs, owners = entries["block"].astype(np.intp), entries["seq"], entries["owner"]
        ns = entries["ns"].astype(np.int64)
        old = self._of(blocks)
        self.lifetime.add(step, clock, old["born"], old["born_clock"], owners)
        self.idle.add(step, clock, old["touch"], old["touch_clock"], owners)
        self.unused.add(step, clock, step - entries["steps"].astype(np.int64), clock - ns, owners)
        self.events.add(step, clock, EVICTED, blocks, seqs, owners, ns)
        self._remember(old["hash"].tolist(), blocks.tolist(), step, clock)
        new = old.copy()
        new["hash"] = 0
        new["state"], new["filled"], new["refcount"], new["owner"] = USED, 0, 1, seqs
        self._begin(blocks, new, seqs, step, clock)
        self._put(blocks, new)

    def _remember(self, hashes: list[int], blocks: list[int], step: int, clock: int) -> None:
        """What could be found in these blocks is gone."""
        for known in self._gone.keys() & hashes:  # now they are the latest
            del self._gone[known]
        self._gone.update(zip(hashes, zip(blocks, repeat(step), repeat(clock)), strict=False))
        self._gone.pop(0, None)  # of blocks that couldn't be found
        while len(self._gone) > self._most_gone:
            self._gone.popitem(last=False)

    def _reuse(self, entries: NDArray, step: int, clock: int) -> None:
        blocks, hit, owners = entries["block"].astype(np.intp), entries["kind"] == HIT, entries["owner"]
        known = self._of(blocks)
        self.gap.add(step, clock, known["touch"].copy(), known["touch_clock"].copy(), owners)
        known["touch"], known["touch_clock"] = step, clock
        known["reuses"] += 1
        for kind, which in ((REUSED, hit), (SHARED, ~hit)):
            some = entries[which]
            self.events.add(step, clock, kind, blocks[which], some["seq"], some["owner"], some["ns"])
        known["state"][hit], known["owner"][hit] = USED, entries["seq"][hit]
        known["refcount"] = np.where(hit, 1, known["refcount"] + 1)
        self._put(blocks, known)

    def _changes(self, change: NDArray, step: int, clock: int, forked: bool) -> None:
        """Final values of blocks, after what the prefix cache did."""
        change = self._within(change)
        blocks, state, filled = change["block"].astype(np.intp), change["state"], change["filled"]
        known = self._of(blocks)
        # nearly all of them: its owner wrote into it
        same = (known["state"] == USED) & (state == USED) & (known["owner"] == change["owner"])
        same &= filled >= known["filled"]
        if not same.all():
            rest = np.flatnonzero(~same)
            some = known.take(rest)
            self._turn(change.take(rest), blocks[rest], some, step, clock, forked)
            known.view(_WHOLE)[rest] = some.view(_WHOLE)
        known["state"], known["filled"] = state, filled
        known["refcount"], known["owner"] = change["refcount"], change["owner"]
        self._put(blocks, known)

    def _turn(self, change: NDArray, blocks: NDArray, known: NDArray, step: int, clock: int, forked: bool) -> None:
        """Lives that end and begin with these changes, into `known`. Where sequences forked, a block may live on though
        its only holder left, or though it holds less than before."""
        state, owner, was, had = change["state"], change["owner"], known["state"], known["owner"]
        # let go of and given away again in between: fewer tokens than before, another owner of what only one had held,
        # or in use without a hit
        alone = (known["refcount"] <= 1) & (not forked)
        anew = (owner != had) & (state == USED) & ((was == CACHED) | alone)
        if not forked:
            anew |= change["filled"] < known["filled"]
        anew &= (was != FREE) & (state != FREE)
        gone = ((was != FREE) & (state == FREE)) | anew
        fresh = ((was == FREE) & (state != FREE)) | anew
        if gone.any():
            ended, whose = known[gone], had[gone]
            self.freed.add(step, clock, ended["born"], ended["born_clock"], whose)
            self.events.add(step, clock, FREED, blocks[gone], whose, whose)
            known["born"][gone] = known["touch"][gone] = UNKNOWN
        if fresh.any():
            begun = known[fresh]
            self._begin(blocks[fresh], begun, owner[fresh], step, clock)
            known[fresh] = begun
        left = (state == CACHED) & ((was == USED) | fresh)
        if left.any():
            self.events.add(step, clock, LET_GO, blocks[left], owner[left], owner[left])

    def _seals(self, entries: NDArray, step: int, clock: int) -> None:
        """Which blocks can be found now; whose contents had been evicted before, is told where that was."""
        if not self._gone.keys().isdisjoint(hashes := entries["hash"].tolist()):
            self._again(hashes, entries["seq"], step, clock)
        if entries["block"].max() >= len(self._blocks):
            everything = np.flatnonzero(entries["block"] == NONE)
            if len(everything):
                self._blocks["hash"] = 0
                entries = entries[everything[-1] + 1 :]
            entries = self._within(entries)
        self._blocks["hash"][entries["block"].astype(np.intp)] = entries["hash"]

    def _again(self, hashes: list[int], seqs: NDArray, step: int, clock: int) -> None:
        """The same contents are there again; told once where several blocks hold them now."""
        found = [(place, *self._gone.pop(key)) for place, key in enumerate(hashes) if key in self._gone]
        places, blocks, steps, clocks = np.array(found, np.int64).T
        self.again.add(step, clock, steps, clocks, seqs[places])
        self.events.add(step, clock, AGAIN, blocks, seqs[places], NONE, clock - clocks)

    def _begin(self, blocks: NDArray, known: NDArray, seqs: NDArray, step: int, clock: int) -> None:
        """Into `known`, what is to be known of the blocks."""
        known["born"] = known["touch"] = step
        known["born_clock"] = known["touch_clock"] = clock
        known["maker"], known["reuses"] = seqs, 0
        self.events.add(step, clock, TAKEN, blocks, seqs, NONE)

    def _resize(self, num_blocks: int, step: int, clock: int) -> None:
        """A pool of another size. What lay beyond a smaller end is gone."""
        old, size = self._blocks, len(self._blocks)
        if num_blocks == size:
            return
        beyond = np.flatnonzero(self.state[num_blocks:] != FREE) + num_blocks
        if len(beyond):
            ended = old[beyond]
            self.freed.add(step, clock, ended["born"], ended["born_clock"], ended["owner"])
            self.events.add(step, clock, FREED, beyond, ended["owner"], ended["owner"])
        self._blocks = _empty(num_blocks)
        kept = min(size, num_blocks)
        self._blocks[:kept] = old[:kept]


def _empty(num_blocks: int) -> NDArray:
    blocks = np.zeros(num_blocks, _BLOCK)
    for name in ("owner", "maker"):
        blocks[name] = NONE
    for name in ("born", "born_clock", "touch", "touch_clock"):
        blocks[name] = UNKNOWN
    return blocks
