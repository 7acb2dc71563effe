"""The KV pool's bookkeeping: which block is free, cached or used, who holds it, and what it is known to contain.

A block is *used* while a table refers to it, *cached* when none does but its contents may serve a later prompt
(it is full and hashed), and *free* otherwise. Order is policy. A wanted block comes from the free ones first, the
most recently freed of them first: they hold nothing worth keeping, the warm one costs least to write, and memory
that was never needed stays untouched. Only when none is free is a cached block evicted, the least recently used
first; a table is let go of from its end, so that the tail of a prefix goes before its head.

Every change of a block or a table is noted where it is made, and the notes are handed out once a step. Nothing here
takes time in proportion to the pool, except `resize`, `drop_cache`, `check`, a keyframe, and `first_fit` and `gaps`,
which only reserved allocation asks for. Which block a prompt can find is `prefix_index`'s part; contents of blocks,
settings and the order of sequences are others' business.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from engine.formulas import blocks_for
from engine.prefix_index import PrefixIndex
from engine.records import BLOCK, CACHED, EVICTED, FREE, HIT, NONE, SHARED, USED
from engine.sequence import Sequence

Span = tuple[Sequence, int, int]  # tokens of it, from the first to before the last


class BlockPool(PrefixIndex):
    def __init__(self, num_blocks: int, block_size: int):
        super().__init__()
        self.at(0, 0)
        self.releases = 0  # counts what can make room; while it stands still, what did not fit doesn't
        self._told = num_blocks  # size at the last drain
        self._table_changes: list[tuple[int, int, int]] = []
        self._cache_notes: list[tuple[int, ...]] = []
        self._copy_notes: list[tuple[int, int, int]] = []
        self._lay_out(num_blocks, block_size)

    def _lay_out(self, num_blocks: int, block_size: int) -> None:
        """All blocks free."""
        self.num_blocks = self._lowest = num_blocks  # _lowest: smallest size since the last drain
        self._begin_index(num_blocks, block_size)
        self.state = bytearray(num_blocks)  # FREE is 0
        self.refcount = array("H", bytes(2 * num_blocks))  # table entries that refer to the block
        self.filled = array("H", bytes(2 * num_blocks))  # tokens with K/V in it that is valid for all its holders
        self.owner = array("I", [NONE]) * num_blocks  # its first holder; of a cached block the last one
        self._free = dict.fromkeys(range(num_blocks - 1, -1, -1))  # a stack: block 0, the last, is taken first
        self._cached: OrderedDict[int, tuple[int, int]] = OrderedDict()  # since when; least recently used first
        self._sharers: dict[int, list[int]] = {}  # holders of blocks that have two or more, oldest first
        self._copies: dict[int, int] = {}  # copy-on-write that the memory is still to follow: to this block, from that
        self._touched: set[int] = set()
        self.stored = 0  # tokens in used blocks
        self.empty = 0  # used blocks without any

    def at(self, step: int, clock: int) -> None:
        """What happens from now on happens in this step, at this time of the engine clock."""
        self.step, self.clock = self._now = step, clock

    # --- how many ---

    @property
    def free_count(self) -> int:
        return len(self._free)

    @property
    def cached_count(self) -> int:
        return len(self._cached)

    @property
    def used_count(self) -> int:
        return self.num_blocks - len(self._free) - len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that can be taken without taking them from a sequence."""
        return len(self._free) + len(self._cached)

    def is_cached(self, block: int) -> bool:
        return block in self._cached

    def lru(self) -> list[int]:
        """Every block that can be taken, in the order in which they would be."""
        return [*reversed(self._free), *self._cached]

    # --- tables ---

    def grow(self, sequence: Sequence, count: int) -> None:
        """Add `count` new blocks, owned alone, to the end of the table."""
        self.grow_each(((sequence, count),))

    def grow_each(self, wants: Iterable[tuple[Sequence, int]]) -> None:
        """`grow` of many, in order."""
        free, state, refcount, filled, owner = self._free, self.state, self.refcount, self.filled, self.owner
        changes, taken = self._table_changes, []
        for sequence, count in wants:
            seq, table = sequence.seq, sequence.table
            assert count <= len(free) + len(self._cached)
            for _ in range(count):
                block = free.popitem()[0] if free else self._evict(seq)
                assert refcount[block] == filled[block] == 0
                state[block], refcount[block], owner[block] = USED, 1, seq
                changes.append((seq, len(table), block))
                table.append(block)
                taken.append(block)
        self._touched.update(taken)
        self.empty += len(taken)

    def reserve(self, sequence: Sequence, first: int, count: int) -> None:
        """Add the `count` blocks from `first` on, none of them used, to the empty table of the sequence."""
        assert not sequence.table
        for block in range(first, first + count):
            if block in self._free:
                del self._free[block]
            else:
                self._cached.move_to_end(block, last=False)
                self._evict(sequence.seq)
            self._own(block, sequence.seq)
            self._append(sequence, block)

    def first_fit(self, count: int) -> int:
        """The lowest block that begins `count` in a row that nobody uses; −1 if there are no such."""
        used = np.frombuffer(self.state, dtype=np.uint8) == USED
        return used.tobytes().find(bytes(count))

    def gaps(self, count: int) -> int:
        """Blocks that nobody uses, in rows of fewer than `count`."""
        used = np.frombuffer(self.state, dtype=np.uint8) == USED
        edges = np.flatnonzero(np.diff(used, prepend=True, append=True))  # where a row begins, where it ends
        lengths = edges[1::2] - edges[::2]
        return int(lengths[lengths < count].sum())

    def attach(self, sequence: Sequence, blocks: Iterable[int]) -> None:
        """Add cached or used blocks of known contents to the table, by reference."""
        for block in blocks:
            assert self._hash_of[block] and self.filled[block] == self.block_size
            count = self.refcount[block]
            if count == 0:
                self._note(HIT, block, sequence.seq, self._cached.pop(block))
                self.state[block] = USED
                self.owner[block] = sequence.seq
                self.stored += self.block_size
            else:
                self._cache_notes.append((SHARED, block, sequence.seq, self.owner[block], 0, 0))
                self._sharers.setdefault(block, [self.owner[block]]).append(sequence.seq)
            self.refcount[block] = count + 1
            self._append(sequence, block)

    def share(self, sequence: Sequence, parent: Sequence) -> int:
        """Make the empty table of the sequence refer to every block in which the parent has K/V; how many. Who is the
        first to write into the last one of them copies it before."""
        assert not sequence.table and not parent.reserved
        count = blocks_for(parent.computed, self.block_size)
        for block in parent.table[:count]:
            self._sharers.setdefault(block, [self.owner[block]]).append(sequence.seq)
            self.refcount[block] += 1
            self._append(sequence, block)
        sequence.hashes = parent.hashes[: parent.computed // self.block_size]
        sequence.sealed = parent.sealed
        return count

    def holds(self, sequence: Sequence) -> bool:
        """The next token to be computed has its K/V in the pool already: all of its prefix was found."""
        index, held = divmod(sequence.computed, self.block_size)
        return index < len(sequence.table) and self.filled[sequence.table[index]] > held

    def must_copy(self, sequence: Sequence) -> bool:
        """The next token to be computed would be written into a block that others hold too."""
        index, held = divmod(sequence.computed, self.block_size)
        if index >= len(sequence.table):
            return False
        block = sequence.table[index]
        return self.refcount[block] > 1 and self.filled[block] == held

    def copy(self, sequence: Sequence) -> None:
        """Copy-on-write (Kwon et al. 2023, section 4.4): a block of its own in the place of the one that it is about to
        write into. Its contents are the memory's to copy, see `copies`."""
        index, held = divmod(sequence.computed, self.block_size)
        source = sequence.table[index]
        assert self.available and source not in self._copies
        self._leave(source, sequence.seq)
        self._touched.add(source)
        block = self._free.popitem()[0] if self._free else self._evict(sequence.seq)
        self._own(block, sequence.seq)
        self._touched.add(block)
        self.filled[block] = held
        self.empty -= 1
        self.stored += held
        self._table_changes.append((sequence.seq, index, block))
        sequence.table[index] = block
        sequence.sealed = min(sequence.sealed, index)
        self._copies[block] = source
        self._copy_notes.append((sequence.seq, source, block))

    @property
    def copies(self) -> Mapping[int, int]:
        """Contents to be copied, to a block from a block: all at once, after what leaves for the host pool and before
        anything is written. `settle` when done."""
        return self._copies

    def settle(self) -> None:
        self._copies.clear()

    def take_copy_notes(self) -> list[tuple[int, int, int]]:
        """What was copied since the last call (records.COPY)."""
        notes, self._copy_notes = self._copy_notes, []
        return notes

    def truncate(self, sequence: Sequence, keep: int) -> None:
        """Let go of all table entries from index `keep` on, the last one first."""
        table = sequence.table
        if len(table) <= keep:
            return
        seq, refcount, filled, touched, copies = sequence.seq, self.refcount, self.filled, self._touched, self._copies
        while len(table) > keep:
            block = table.pop()
            touched.add(block)
            if refcount[block] > 1:
                self._leave(block, seq)
                continue
            assert refcount[block] == 1
            refcount[block] = 0
            if held := filled[block]:
                self.stored -= held
            else:
                self.empty -= 1
            if copies:
                copies.pop(block, None)
            if self._hash_of[block] is not None:
                self.state[block] = CACHED
                self._cached[block] = self._now
            else:
                self._free_now(block)
        self.releases += 1
        sequence.sealed = min(sequence.sealed, keep)
        self._table_changes.append((seq, keep, NONE))

    def unfill(self, sequence: Sequence, end: int) -> None:
        """Forget the K/V of its tokens from `end` on, in blocks that it holds alone; the blocks stay."""
        size = self.block_size
        for index in range(end // size, blocks_for(sequence.computed, size)):
            block, left = sequence.table[index], max(0, end - index * size)
            assert self.refcount[block] == 1 and not self._hash_of[block]
            self.stored -= self.filled[block] - left
            self.empty += left == 0 < self.filled[block]
            self.filled[block] = left
            self._touched.add(block)

    def fill(self, sequence: Sequence, start: int, end: int) -> None:
        """The K/V of tokens start..end of the sequence is in its blocks now."""
        self.advance(((sequence, start, end),), seals=False)

    def advance(self, spans: Iterable[Span], seals: bool) -> list[Sequence]:
        """A pass computed these tokens: their K/V is in the blocks now, and full ones are sealed, if at all. Sequences
        with blocks beyond their next token's. One loop over a whole pass, since most spans are a few tokens."""
        size, filled = self.block_size, self.filled
        written: list[int] = []
        stored = empty = 0
        beyond: list[Sequence] = []
        full: list[Sequence] = []
        for sequence, start, end in spans:
            stored += end - start
            table, index = sequence.table, start // size
            first = index * size  # token of the block
            while start < end:
                block = table[index]
                written.append(block)
                if start == first:
                    empty += 1
                first += size
                if end < first:  # the block isn't full, as mostly
                    filled[block] = end - first + size
                    break
                filled[block] = size
                index, start = index + 1, first
            sequence.computed = end
            if sequence.sealed < index:
                full.append(sequence)
            if len(table) > index + 1:
                beyond.append(sequence)
        assert sum(map(self.refcount.__getitem__, written)) == len(written), "a shared block was written to"
        self._touched.update(written)
        if seals and full:
            self._seal_each(full)
        self.stored += stored
        self.empty -= empty
        return beyond

    # --- prefix cache ---

    def drop_cache(self) -> None:
        """Forget every hash; cached blocks become free. Sequences' `sealed` is the caller's to reset."""
        for block in list(self._cached):
            self._free_now(block)
        self._cached.clear()
        self._forget_all()

    # --- size ---

    def rebuild(self, num_blocks: int, block_size: int) -> None:
        """Blocks of another size, all free. Nobody holds any, and what was cached is forgotten."""
        assert not self.used_count
        self._lay_out(num_blocks, block_size)
        self._lowest = 0  # every block is told
        self._forget_all()
        self.releases += 1

    def resize(self, num_blocks: int) -> None:
        """Blocks beyond a smaller end must not be used any more; cached ones there are dropped."""
        old = self.num_blocks
        if num_blocks < old:
            assert USED not in self.state[num_blocks:], "a used block lies beyond the new end"
            for block in [b for b in self._cached if b >= num_blocks]:
                del self._cached[block]
                self._forget(block)
            self._free = {b: None for b in self._free if b < num_blocks}
            self._touched = {b for b in self._touched if b < num_blocks}
            for values in (*self._arrays, self._hash_of):
                del values[num_blocks:]
        else:
            more = num_blocks - old
            self.state.extend(bytes(more))
            self.refcount.extend(array("H", bytes(2 * more)))
            self.filled.extend(array("H", bytes(2 * more)))
            self.owner.extend(array("I", [NONE]) * more)
            self._hash_of.extend([None] * more)
            # under the stack: blocks at the front of the pool are taken before the new ones
            self._free = {**dict.fromkeys(range(num_blocks - 1, old - 1, -1)), **self._free}
        self.num_blocks = num_blocks
        self.releases += 1
        self._lowest = min(self._lowest, num_blocks)

    # --- telemetry ---

    @property
    def changed(self) -> bool:
        return bool(self._touched or self._table_changes or self._lowest < self._told)

    def drain(self) -> tuple[NDArray, list[tuple[int, int, int]]]:
        """The changes since the last call: final values of touched blocks, in order of their ids (records.BLOCK),
        and table entries in the order they changed (records.TABLE)."""
        # a block cut off and added again since is free now, whatever was told of it before
        self._touched.update(range(self._lowest, min(self._told, self.num_blocks)))
        self._told = self._lowest = self.num_blocks
        blocks = np.empty(len(self._touched), dtype=BLOCK)
        ids = np.fromiter(self._touched, dtype=np.int64, count=len(blocks))
        ids.sort()
        blocks["block"] = ids
        for name, values, dtype in (
            ("state", self.state, np.uint8),
            ("refcount", self.refcount, np.uint16),
            ("filled", self.filled, np.uint16),
            ("owner", self.owner, np.uint32),
        ):
            # views end here: while one lives, the array under it can't be resized
            blocks[name] = np.frombuffer(values, dtype=dtype)[ids]
        tables = self._table_changes
        self._touched, self._table_changes = set(), []
        return blocks, tables

    def take_cache_notes(self) -> list[tuple[int, ...]]:
        """What the prefix cache did since the last call (records.CACHE)."""
        notes, self._cache_notes = self._cache_notes, []
        return notes

    # --- within ---

    @property
    def _arrays(self) -> tuple[bytearray | array[int], ...]:
        return self.state, self.refcount, self.filled, self.owner

    def _note(self, kind: int, block: int, seq: int, left: tuple[int, int]) -> None:
        """Of a block that was cached, and when it was last let go of."""
        (step, clock), (left_step, left_clock) = self._now, left
        self._cache_notes.append((kind, block, seq, self.owner[block], step - left_step, clock - left_clock))

    def _own(self, block: int, seq: int) -> None:
        """A block without contents, held alone."""
        assert self.refcount[block] == self.filled[block] == 0
        self.state[block] = USED
        self.refcount[block] = 1
        self.owner[block] = seq
        self.empty += 1

    def _append(self, sequence: Sequence, block: int) -> None:
        table = sequence.table
        self._table_changes.append((sequence.seq, len(table), block))
        table.append(block)
        self._touched.add(block)

    def _evict(self, seq: int) -> int:
        # as `_note` and `_forget`, which every block that a full pool gives out would have to call
        block, (left_step, left_clock) = self._cached.popitem(last=False)
        (step, clock), hash_of = self._now, self._hash_of
        self._cache_notes.append((EVICTED, block, seq, self.owner[block], step - left_step, clock - left_clock))
        self._seal_notes.append((block, 0, NONE, b"", b"", []))
        del self._block_of[hash_of[block]]  # type: ignore[arg-type]
        hash_of[block] = None
        self.filled[block] = 0
        return block

    def _leave(self, block: int, seq: int) -> None:
        """One of several holders of the block goes."""
        self.refcount[block] -= 1
        holders = self._sharers[block]
        holders.remove(seq)
        self.owner[block] = holders[0]
        if len(holders) == 1:
            del self._sharers[block]

    def _free_now(self, block: int) -> None:
        self.state[block] = FREE
        self.filled[block] = 0
        self.owner[block] = NONE
        self._free[block] = None
        self._touched.add(block)

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Recount everything from the tables; assert that it agrees."""
        n = self.num_blocks
        assert {len(values) for values in self._arrays} == {n}
        holders: dict[int, list[int]] = {}
        filled: dict[int, int] = {}
        for sequence in sequences:
            assert len(set(sequence.table)) == len(sequence.table), "a table holds a block twice"
            for index, block in enumerate(sequence.table):
                holders.setdefault(block, []).append(sequence.seq)
                tokens = min(max(sequence.computed - index * self.block_size, 0), self.block_size)
                if tokens == self.block_size - 1 and self.filled[block] > tokens:
                    assert sequence.computed == sequence.known - 1  # found whole; its last token is computed again
                    tokens += 1
                assert filled.setdefault(block, tokens) == tokens, "sharers disagree on a block's fill"
        state = np.frombuffer(self.state, dtype=np.uint8)
        owner = np.frombuffer(self.owner, dtype=np.uint32)
        refcount = np.frombuffer(self.refcount, dtype=np.uint16)
        fills = np.frombuffer(self.filled, dtype=np.uint16)
        assert set(np.flatnonzero(state == USED).tolist()) == holders.keys()
        assert set(np.flatnonzero(state == CACHED).tolist()) == self._cached.keys()
        assert sorted(self._free) == np.flatnonzero(state == FREE).tolist()
        assert self.used_count + self.cached_count + self.free_count == n
        assert int(refcount.sum()) == sum(len(h) for h in holders.values())
        for block, held_by in holders.items():
            assert refcount[block] == len(held_by) and fills[block] == filled[block], block
            assert owner[block] in held_by
            if len(held_by) > 1:
                assert fills[block] > 0, "a shared block is empty"
                assert sorted(self._sharers[block]) == sorted(held_by)
                assert self._sharers[block][0] == owner[block]
        assert self._sharers.keys() == {b for b, h in holders.items() if len(h) > 1}
        used = fills[state == USED]
        assert self.stored == int(used.sum()) and self.empty == int(np.count_nonzero(used == 0))
        assert np.all(owner[state == FREE] == NONE) and np.all(fills[state == FREE] == 0)
        assert np.all(fills[state == CACHED] == self.block_size)
        assert all(refcount[block] == 1 for block in self._copies)
        hashed = self._check_index()
        assert self._cached.keys() <= hashed.keys()
        for block in hashed:
            assert state[block] != FREE
