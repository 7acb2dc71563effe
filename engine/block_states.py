"""Which blocks of the KV pool are free, cached and used, and which one is given out next.

A block is *used* while a table refers to it, *cached* when none does but its contents may serve a later prompt
(it is full and hashed), and *free* otherwise. Order is policy. A wanted block comes from the free ones first, the
most recently freed of them first: they hold nothing worth keeping, the warm one costs least to write, and memory
that was never needed stays untouched. Only when none is free is a cached block evicted, the least recently used
first.

Every block that changed is noted where it changes. Nothing here takes time in proportion to the pool, except `resize`,
`drop_cache`, a check, a keyframe, and `first_fit` and `gaps`, which only reserved allocation asks for. Which tables
refer to a block is the pool's business, which this is a part of.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from engine.prefix_index import PrefixIndex
from engine.records import BLOCK, CACHED, EVICTED, FREE, NONE, USED


class BlockStates(PrefixIndex):
    """The part of a pool that knows the state of its blocks, and in which order they are taken."""

    def __init__(self, num_blocks: int, block_size: int):
        super().__init__()
        self.at(0, 0)
        self.releases = 0  # counts what can make room; while it stands still, what did not fit doesn't
        self._told = num_blocks  # size at the last drain
        self._cache_notes: list[tuple[int, ...]] = []
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

    def take_cache_notes(self) -> list[tuple[int, ...]]:
        """What the prefix cache did since the last call (records.CACHE)."""
        notes, self._cache_notes = self._cache_notes, []
        return notes

    def _drain_blocks(self) -> NDArray:
        """Final values of the blocks touched since the last call, in order of their ids (records.BLOCK)."""
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
        self._touched = set()
        return blocks

    # --- of the pool alone ---

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

    def _free_now(self, block: int) -> None:
        self.state[block] = FREE
        self.filled[block] = 0
        self.owner[block] = NONE
        self._free[block] = None
        self._touched.add(block)

    def _check_states(self) -> None:
        """Assert that states, order of reuse, fills and the index agree."""
        n = self.num_blocks
        assert {len(values) for values in self._arrays} == {n}
        state = np.frombuffer(self.state, dtype=np.uint8)
        owner = np.frombuffer(self.owner, dtype=np.uint32)
        fills = np.frombuffer(self.filled, dtype=np.uint16)
        assert set(np.flatnonzero(state == CACHED).tolist()) == self._cached.keys()
        assert sorted(self._free) == np.flatnonzero(state == FREE).tolist()
        assert self.used_count + self.cached_count + self.free_count == n
        used = fills[state == USED]
        assert self.stored == int(used.sum()) and self.empty == int(np.count_nonzero(used == 0))
        assert np.all(owner[state == FREE] == NONE) and np.all(fills[state == FREE] == 0)
        assert np.all(fills[state == CACHED] == self.block_size)
        hashed = self._check_index()
        assert self._cached.keys() <= hashed.keys()
        for block in hashed:
            assert state[block] != FREE
