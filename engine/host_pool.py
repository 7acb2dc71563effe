"""The host pool's bookkeeping: whose K/V each of its blocks holds, and what is to be copied before the next pass.

A preempted sequence's blocks move here whole, and back before it runs again. Moving is decided while a step is planned
and done once for all of it, out before in: until `settle` a block that goes out is read where it was, and one that
comes back is still here, so that a sequence preempted again in the same plan loses nothing. Host blocks are never
shared and never searched. It refuses to know of the copies themselves, of settings and of the queues.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from engine.formulas import blocks_for
from engine.records import HOST, NONE
from engine.sequence import Sequence

Copies = tuple[NDArray[np.int64], NDArray[np.int64]]  # from these blocks, to those


class HostPool:
    """Attributes:
    owner, index, filled: of each block its sequence (NONE: free), its place in that one's table, its tokens.
    block_bytes: what moving one block moves.
    """

    def __init__(self, num_blocks: int, block_bytes: int = 0):
        self.num_blocks = num_blocks
        self.block_bytes = block_bytes
        self.owner = array("I", [NONE]) * num_blocks
        self.index = array("I", bytes(4 * num_blocks))
        self.filled = array("H", bytes(2 * num_blocks))
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack
        self._outs: dict[int, tuple[array[int], array[int]]] = {}  # by seq: device blocks, host blocks
        self._ins: dict[int, tuple[Sequence, array[int], array[int]]] = {}  # by seq: host blocks, device blocks
        self._touched: set[int] = set()

    @property
    def free_count(self) -> int:
        return len(self._free)

    @property
    def used_count(self) -> int:
        return self.num_blocks - len(self._free)

    # --- moving ---

    def move_out(self, sequence: Sequence, block_size: int, copies: Mapping[int, int]) -> bool:
        """Make room for all that is computed of it, to be copied from the blocks of its table, or from where those are
        still to be copied from themselves. False: no room."""
        count = blocks_for(sequence.computed, block_size)
        if count > len(self._free):
            return False
        sequence.swapped = sequence.computed
        for index in range(count):
            block = self._free.pop()
            self.owner[block], self.index[block] = sequence.seq, index
            self.filled[block] = min(block_size, sequence.computed - index * block_size)
            sequence.host.append(block)
        self._touched.update(sequence.host)
        self._outs[sequence.seq] = array("q", [copies.get(b, b) for b in sequence.table[:count]]), sequence.host[:]
        return True

    def move_in(self, sequence: Sequence, first: int) -> None:
        """Have its blocks from index `first` on copied into its table; those before came from the prefix cache."""
        self._ins[sequence.seq] = sequence, sequence.host[first:], sequence.table[first : len(sequence.host)]

    def stay(self, sequence: Sequence) -> bool:
        """Leave where they are blocks that were to move in but did not yet. False: there are none."""
        return self._ins.pop(sequence.seq, None) is not None

    def drop(self, sequence: Sequence) -> None:
        """Forget what is held of it."""
        self._outs.pop(sequence.seq, None)
        self._ins.pop(sequence.seq, None)
        for block in reversed(sequence.host):
            self.owner[block], self.index[block], self.filled[block] = NONE, 0, 0
            self._free.append(block)
        self._touched.update(sequence.host)
        del sequence.host[:]
        sequence.swapped = 0

    @property
    def pending(self) -> bool:
        return bool(self._outs or self._ins)

    def copies(self) -> tuple[Copies, Copies]:
        """Everything to be copied: device blocks to host blocks; then host blocks to device blocks."""
        return _joined(self._outs.values()), _joined((host, device) for _, host, device in self._ins.values())

    def settle(self) -> None:
        """The copies are done."""
        self._outs.clear()
        for sequence, *_ in list(self._ins.values()):
            self.drop(sequence)

    # --- size ---

    def resize(self, num_blocks: int) -> None:
        """Blocks beyond a smaller end must be free."""
        old = self.num_blocks
        if num_blocks < old:
            assert all(owner == NONE for owner in self.owner[num_blocks:])
            self._free = [b for b in self._free if b < num_blocks]
            self._touched = {b for b in self._touched if b < num_blocks}
            del self.owner[num_blocks:], self.index[num_blocks:], self.filled[num_blocks:]
        else:
            more = num_blocks - old
            self.owner.extend(array("I", [NONE]) * more)
            self.index.extend(array("I", bytes(4 * more)))
            self.filled.extend(array("H", bytes(2 * more)))
            self._free = [*range(num_blocks - 1, old - 1, -1), *self._free]
            self._touched.update(range(old, num_blocks))  # one cut off and added again is free, whatever was told
        self.num_blocks = num_blocks

    # --- telemetry ---

    @property
    def changed(self) -> bool:
        return bool(self._touched)

    def drain(self) -> NDArray:
        """Final values of blocks changed since the last call (records.HOST)."""
        changes = np.empty(len(self._touched), dtype=HOST)
        changes["block"] = ids = sorted(self._touched)
        for name, values in (("owner", self.owner), ("index", self.index), ("filled", self.filled)):
            changes[name] = [values[block] for block in ids]
        self._touched = set()
        return changes

    def check(self, waiting: Iterable[Sequence], block_size: int) -> None:
        """Recount from the sequences' own lists, between steps; nothing is on its way then."""
        held: dict[int, tuple[int, int, int]] = {}
        for sequence in waiting:
            assert len(sequence.host) == blocks_for(sequence.swapped, block_size), sequence
            for index, block in enumerate(sequence.host):
                assert block not in held
                held[block] = sequence.seq, index, min(block_size, sequence.swapped - index * block_size)
        for block in range(self.num_blocks):
            entry = self.owner[block], self.index[block], self.filled[block]
            assert entry == held.get(block, (NONE, 0, 0)), block
        assert sorted(self._free) == [b for b in range(self.num_blocks) if b not in held]
        assert not self._ins


def _joined(parts: Iterable[tuple[array[int], array[int]]]) -> Copies:
    here, there = array("q"), array("q")
    for one, other in parts:
        here.extend(one)
        there.extend(other)
    return np.array(here, dtype=np.int64), np.array(there, dtype=np.int64)
