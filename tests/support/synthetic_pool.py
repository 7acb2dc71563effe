"""The books of the synthetic stream's pool: states, owners, an order in which blocks are taken, and what changed."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from engine.records import CACHED, FREE, NONE, USED

Cell = tuple[int, int, int, int]  # state, refcount, filled, owner
_UNUSED: Cell = (FREE, 0, 0, NONE)
STRETCH = 24  # blocks that lie together, as in a pool that has worked for some time


class SyntheticPool:
    """
    Attributes:
        state, refcount, filled, owner: arrays as a keyframe carries them, true after `settle`.
        counts: blocks by state. changes: block → cell, since the last `settle`.
    """

    def __init__(self, blocks: int, block_size: int, rng: np.random.Generator):
        self.block_size = block_size
        self.state = np.zeros(blocks, np.uint8)
        self.refcount = np.zeros(blocks, np.uint16)
        self.filled = np.zeros(blocks, np.uint16)
        self.owner = np.full(blocks, NONE, np.uint32)
        self.counts = [blocks, 0, 0]
        self.changes: dict[int, Cell] = {}
        self._cells = [_UNUSED] * blocks  # the same as plain tuples: one by one these are faster than the arrays
        starts = rng.permutation(-(-blocks // STRETCH)) * STRETCH
        order = (starts[:, None] + np.arange(STRETCH)).ravel()
        self._idle: OrderedDict[int, None] = OrderedDict.fromkeys(order[order < blocks].tolist())

    def __len__(self) -> int:
        return len(self.state)

    @property
    def idle(self) -> int:
        """Blocks that can be taken: free and cached ones."""
        return len(self._idle)

    def get(self, block: int) -> Cell:
        return self._cells[block]

    def set(self, block: int, cell: Cell) -> None:
        self.counts[self._cells[block][0]] -= 1
        self.counts[cell[0]] += 1
        self._cells[block] = self.changes[block] = cell

    def warm(self, share: float) -> list[int]:
        """Cached blocks of sequences before the first one, at the far end of the order; which they are."""
        warm = list(self._idle)[-int(len(self) * share) :]
        for block in warm:
            self.set(block, (CACHED, 0, self.block_size, 1 + block // STRETCH * 17 % 39))
        return warm

    def take(self, owner: int) -> tuple[int, bool]:
        """The next block to reuse, and whether it was cached."""
        block = self._idle.popitem(last=False)[0]
        evicted = self._cells[block][0] == CACHED
        self.set(block, (USED, 1, 0, owner))
        return block, evicted

    def share(self, block: int, owner: int) -> None:
        """One more table holds the block."""
        _, refs, filled, old = self._cells[block]
        self._idle.pop(block, None)
        self.set(block, (USED, refs + 1, filled, old if refs else owner))

    def give_back(self, block: int, owner: int, cached: bool) -> bool:
        """One table less holds it; the last one leaves it cached or free. Whether its contents are kept."""
        _, refs, filled, old = self._cells[block]
        if refs > 1:
            self.set(block, (USED, refs - 1, filled, old))
            return True
        self.set(block, (CACHED, 0, self.block_size, owner) if cached else _UNUSED)
        self._idle[block] = None
        if not cached:
            self._idle.move_to_end(block, last=False)
        return cached

    def resize(self, blocks: int) -> None:
        """Raises ValueError when a block in use lies beyond."""
        old = len(self)
        if (self.state[blocks:] == USED).any():
            raise ValueError("blocks in use lie beyond that size")
        kept = min(blocks, old)
        for name, rest in (("state", FREE), ("refcount", 0), ("filled", 0), ("owner", NONE)):
            fitted = np.full(blocks, rest, getattr(self, name).dtype)
            fitted[:kept] = getattr(self, name)[:kept]
            setattr(self, name, fitted)
        for block in range(blocks, old):
            del self._idle[block]
        self._cells = self._cells[:kept] + [_UNUSED] * (blocks - kept)
        self._idle.update(dict.fromkeys(range(old, blocks)))
        self.counts = np.bincount(self.state, minlength=3).tolist()

    def settle(self) -> list[tuple[int, int, int, int, int]]:
        """The changes since the last call as records.BLOCK entries; the arrays follow."""
        changes, self.changes = self.changes, {}
        if changes:
            blocks = np.fromiter(changes, np.intp, len(changes))
            values = np.array(list(changes.values()), np.int64)
            for column, array in enumerate((self.state, self.refcount, self.filled, self.owner)):
                array[blocks] = values[:, column]
        return [(block, *cell) for block, cell in changes.items()]
