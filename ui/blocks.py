"""The pool as arrays, one entry a block, with the steps at which blocks changed. Numpy, no Qt."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine import formulas
from engine.records import BLOCK, CACHE, CACHED, COPY, EVICTED, FREE, NONE, USED, Keyframe, unpack

ARRAYS = ("blocks_state", "refcount", "filled", "owner", "changed", "since", "before", "hit", "copied", "source")


class Blocks:
    """
    Attributes:
        blocks_state, refcount, filled, owner: one entry a block, as records.BLOCK describes them.
        changed: step of a block's last change of any kind.
        since: step at which its state or owner last changed.
        before: the owner whose cached block it was until then, records.NONE where it was free.
        hit: step at which a sequence last got it from the prefix cache, 0 where none did.
        copied: step at which it last became the copy of another block (copy-on-write), 0 where it never did; source:
            of which. copies: how many were made since the engine was first seen.
        used, cached, free, shared: blocks; shared ones are used by more than one table.
        empty: used blocks without a token: what is reserved and not filled yet.
    """

    def __init__(self, num_blocks: int):
        self.blocks_state = np.zeros(num_blocks, np.uint8)
        self.refcount = np.zeros(num_blocks, np.uint16)
        self.filled = np.zeros(num_blocks, np.uint16)
        self.owner = np.full(num_blocks, NONE, np.uint32)
        self.changed = np.zeros(num_blocks, np.int32)
        self.since = np.zeros(num_blocks, np.int32)
        self.before = np.full(num_blocks, NONE, np.uint32)
        self.hit = np.zeros(num_blocks, np.int32)
        self.copied = np.zeros(num_blocks, np.int32)
        self.source = np.full(num_blocks, NONE, np.uint32)
        self.copies = 0
        self.used = self.cached = self.shared = self.empty = 0
        self.free = num_blocks

    @property
    def num_blocks(self) -> int:
        return len(self.blocks_state)

    def resize_blocks(self, num_blocks: int, step: int) -> None:
        """A pool of another size; the blocks that stay keep what they hold."""
        kept = min(num_blocks, self.num_blocks)
        rest = {"blocks_state": FREE, "changed": step, "since": step}
        rest |= dict.fromkeys(("owner", "before", "source"), NONE)
        for name in ARRAYS:
            old = getattr(self, name)
            new = np.full(num_blocks, rest.get(name, 0), old.dtype)
            new[:kept] = old[:kept]
            setattr(self, name, new)
        self.recount()

    def change_blocks(self, buffer: bytes, step: int) -> None:
        """Apply records.BLOCK entries, at most one a block."""
        change = unpack(buffer, BLOCK)
        blocks = change["block"].astype(np.intp)
        if len(blocks) and int(blocks.max()) >= self.num_blocks:  # blocks that a smaller pool let go of
            change = change[blocks < self.num_blocks]
            blocks = change["block"].astype(np.intp)
        self._put(blocks, change["state"], change["refcount"], change["filled"], change["owner"], step)

    def take_blocks(self, frame: Keyframe) -> int:
        """Become what the keyframe says; how many blocks differed from it. The others keep their times."""
        if len(frame.state) != self.num_blocks:
            self.resize_blocks(len(frame.state), frame.step)
        theirs = (
            np.frombuffer(frame.state, np.uint8),
            np.frombuffer(frame.refcount, "<u2"),
            np.frombuffer(frame.filled, "<u2"),
            np.frombuffer(frame.owner, "<u4"),
        )
        wrong = np.zeros(self.num_blocks, bool)
        for name, column in zip(ARRAYS[:4], theirs, strict=True):
            wrong |= getattr(self, name) != column
        differ = np.flatnonzero(wrong)
        self._put(differ, *[column[differ] for column in theirs], frame.step)
        self.recount()
        return len(differ)

    def recount(self) -> None:
        """Counts from the arrays themselves."""
        counts = np.bincount(self.blocks_state, minlength=3)
        self.free, self.cached, self.used = int(counts[FREE]), int(counts[CACHED]), int(counts[USED])
        self.shared = int(np.count_nonzero(self.refcount > 1))
        self.empty = _empty(self.blocks_state, self.filled)

    def take_hits(self, buffer: bytes, step: int) -> None:
        """Apply records.CACHE entries: which blocks a sequence got from the prefix cache, whether or not in use."""
        entries = unpack(buffer, CACHE)
        blocks = entries["block"][entries["kind"] != EVICTED].astype(np.intp)
        self.hit[blocks[blocks < self.num_blocks]] = step

    def take_copies(self, buffer: bytes, step: int) -> None:
        """Apply records.COPY entries."""
        entries = unpack(buffer, COPY)
        self.copies += len(entries)
        blocks = entries["block"].astype(np.intp)
        kept = blocks < self.num_blocks
        self.copied[blocks[kept]], self.source[blocks[kept]] = step, entries["source"][kept]

    def waste(self, block_size: int, gaps: int = 0) -> formulas.Waste:
        """Of the blocks that are held; `gaps`: those beside them that are of no use."""
        used = self.blocks_state == USED
        stored = int(self.filled[used].sum(dtype=np.int64))
        return formulas.waste_parts(stored, int(np.count_nonzero(used)), self.empty, gaps, block_size)

    def take_part(self, whole: Blocks, blocks: NDArray[np.intp]) -> None:
        """Become a pool of these blocks of another one alone, in this order."""
        for name in ARRAYS:
            setattr(self, name, getattr(whole, name)[blocks])
        places = {block: place for place, block in enumerate(blocks.tolist())}
        self.source = np.array([places.get(block, NONE) for block in self.source.tolist()], np.uint32)
        self.recount()

    def blocks_since(self, step: int) -> NDArray[np.intp]:
        """Those in which anything changed at this step or after it."""
        return np.flatnonzero((self.changed >= step) | (self.hit >= step) | (self.copied >= step))

    @property
    def blocks_nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in ARRAYS)

    def _put(
        self, blocks: NDArray, state: NDArray, refcount: NDArray, filled: NDArray, owner: NDArray, step: int
    ) -> None:
        old_state, old_owner = self.blocks_state[blocks], self.owner[blocks]
        moved = (old_state != state) | (old_owner != owner)
        turned = blocks[moved]
        self.since[turned] = step
        self.before[turned] = np.where(old_state[moved] == CACHED, old_owner[moved], NONE)
        self.shared += int(np.count_nonzero(refcount > 1)) - int(np.count_nonzero(self.refcount[blocks] > 1))
        self.empty += _empty(state, filled) - _empty(old_state, self.filled[blocks])
        self.blocks_state[blocks] = state
        self.refcount[blocks] = refcount
        self.filled[blocks] = filled
        self.owner[blocks] = owner
        self.changed[blocks] = step


def _empty(state: NDArray, filled: NDArray) -> int:
    return int(np.count_nonzero((state == USED) & (filled == 0)))
