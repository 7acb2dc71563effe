"""The KV pool's bookkeeping: which blocks each sequence's table refers to, who shares them, how far they are filled.

A table grows at its end and is let go of from its end, so that the tail of a prefix goes before its head. A block that
others hold too is never written to: who is about to copies it first.

Every change of a table is noted where it is made, and the notes are handed out once a step. Which block is free, cached
or used and which one is taken next is `block_states`' part, which block a prompt can find `prefix_index`'s; contents of
blocks, settings and the order of sequences are others' business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from engine.block_states import BlockStates
from engine.formulas import blocks_for
from engine.records import CACHED, HIT, NONE, SHARED, USED
from engine.sequence import Sequence

Span = tuple[Sequence, int, int]  # tokens of it, from the first to before the last


class BlockPool(BlockStates):
    def __init__(self, num_blocks: int, block_size: int):
        super().__init__(num_blocks, block_size)
        self._table_changes: list[tuple[int, int, int]] = []
        self._copy_notes: list[tuple[int, int, int]] = []
        self._sharers: dict[int, list[int]] = {}  # holders of blocks that have two or more, oldest first
        self._copies: dict[int, int] = {}  # copy-on-write that the memory is still to follow: to this block, from that

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

    # --- telemetry ---

    @property
    def changed(self) -> bool:
        return bool(self._touched or self._table_changes or self._lowest < self._told)

    def drain(self) -> tuple[NDArray, list[tuple[int, int, int]]]:
        """The changes since the last call: final values of touched blocks, in order of their ids (records.BLOCK),
        and table entries in the order they changed (records.TABLE)."""
        tables, self._table_changes = self._table_changes, []
        return self._drain_blocks(), tables

    # --- within ---

    def _append(self, sequence: Sequence, block: int) -> None:
        table = sequence.table
        self._table_changes.append((sequence.seq, len(table), block))
        table.append(block)
        self._touched.add(block)

    def _leave(self, block: int, seq: int) -> None:
        """One of several holders of the block goes."""
        self.refcount[block] -= 1
        holders = self._sharers[block]
        holders.remove(seq)
        self.owner[block] = holders[0]
        if len(holders) == 1:
            del self._sharers[block]

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Recount everything from the tables; assert that it agrees."""
        self._check_states()
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
        refcount = np.frombuffer(self.refcount, dtype=np.uint16)
        assert set(np.flatnonzero(state == USED).tolist()) == holders.keys()
        assert int(refcount.sum()) == sum(len(h) for h in holders.values())
        for block, held_by in holders.items():
            assert refcount[block] == len(held_by) and self.filled[block] == filled[block], block
            assert self.owner[block] in held_by
            if len(held_by) > 1:
                assert filled[block] > 0, "a shared block is empty"
                assert sorted(self._sharers[block]) == sorted(held_by)
                assert self._sharers[block][0] == self.owner[block]
        assert self._sharers.keys() == {b for b, h in holders.items() if len(h) > 1}
        assert all(refcount[block] == 1 for block in self._copies)
