"""Block tables of all sequences: growable arrays with their changes applied in order. No Qt."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from engine.records import NONE, TABLE

_TABLE = struct.Struct("<III")
assert _TABLE.size == TABLE.itemsize
FEW = 80  # changes that are applied sooner one by one than as runs
_EMPTY: NDArray[np.uint32] = np.empty(0, np.uint32)


class Tables:
    """seq → block ids in logical order."""

    def __init__(self) -> None:
        self._blocks: dict[int, NDArray[np.uint32]] = {}  # with room to grow
        self._lengths: dict[int, int] = {}
        self._all: tuple[NDArray[np.uint32], NDArray[np.int64]] | None = None  # of `find`, until something changes

    @property
    def seqs(self) -> list[int]:
        return list(self._lengths)

    @property
    def longest(self) -> int:
        """Blocks of the longest table."""
        return max(self._lengths.values(), default=0)

    def get(self, seq: int) -> NDArray[np.uint32]:
        length = self._lengths.get(seq)
        return self._blocks[seq][:length] if length else _EMPTY

    def apply(self, changes: NDArray) -> list[tuple[int, NDArray[np.uint32]]]:
        """Apply records.TABLE entries in order. Returns (seq, the blocks it held) of tables that ended."""
        gone: list[tuple[int, NDArray[np.uint32]]] = []
        if len(changes) == 0:
            return gone
        self._all = None
        if len(changes) <= FEW:
            self._apply_each(changes, gone)
        else:
            self._apply_runs(changes, gone)
        return gone

    def _apply_each(self, changes: NDArray, gone: list[tuple[int, NDArray[np.uint32]]]) -> None:
        tables, lengths = self._blocks, self._lengths
        for seq, index, block in _TABLE.iter_unpack(changes.tobytes()):
            if block == NONE:
                self._cut(seq, index, gone)
            elif index < len(tables.get(seq, _EMPTY)):
                tables[seq][index] = block
                lengths[seq] = max(index + 1, lengths.get(seq, 0))
            else:
                self._write(seq, index, np.array([block], np.uint32))

    def _apply_runs(self, changes: NDArray, gone: list[tuple[int, NDArray[np.uint32]]]) -> None:
        seqs, indices, blocks = changes["seq"], changes["index"], changes["block"]
        # runs of consecutive entries of one table are written as one slice
        breaks = (seqs[1:] != seqs[:-1]) | (indices[1:] != indices[:-1] + 1)
        breaks |= (blocks[1:] == NONE) | (blocks[:-1] == NONE)
        starts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
        stops = [*starts[1:].tolist(), len(changes)]
        heads = zip(starts.tolist(), stops, seqs[starts].tolist(), indices[starts].tolist(),
                    blocks[starts].tolist(), strict=True)  # fmt: skip
        for start, stop, seq, index, block in heads:
            if block == NONE:
                self._cut(seq, index, gone)
            elif stop - start == 1 and index < len(self._blocks.get(seq, _EMPTY)):
                self._blocks[seq][index] = block
                self._lengths[seq] = max(index + 1, self._lengths.get(seq, 0))
            else:
                self._write(seq, index, blocks[start:stop])

    def _write(self, seq: int, index: int, blocks: NDArray) -> None:
        end = index + len(blocks)
        array = self._blocks.get(seq)
        if array is None or end > len(array):
            grown = np.full(max(16, 2 * end), NONE, np.uint32)
            if array is not None:
                grown[: len(array)] = array
            array = self._blocks[seq] = grown
        array[index:end] = blocks
        self._lengths[seq] = max(end, self._lengths.get(seq, 0))

    def _cut(self, seq: int, index: int, gone: list[tuple[int, NDArray[np.uint32]]]) -> None:
        if index:
            self._lengths[seq] = min(index, self._lengths.get(seq, 0))
            return
        held = self.get(seq)
        self._lengths.pop(seq, None)
        self._blocks.pop(seq, None)
        if len(held):
            gone.append((seq, held))

    def take(self, seqs: NDArray, lengths: NDArray, blocks: NDArray) -> None:
        """Become what a keyframe says."""
        ends = np.cumsum(lengths, dtype=np.int64).tolist()
        self._blocks, self._lengths, self._all = {}, {}, None
        start = 0
        for seq, end in zip(seqs.tolist(), ends, strict=True):
            if end > start:
                self._write(seq, 0, blocks[start:end])
            start = end

    def find(self, block: int) -> list[tuple[int, int]]:
        """(seq, logical index) of every entry that is `block`."""
        if self._all is None:  # one long array: hundreds of short ones take ten times as long to search
            every = [self.get(seq) for seq in self._lengths]
            self._all = np.concatenate([_EMPTY, *every]), np.cumsum([0, *map(len, every)])
        whole, starts = self._all
        places = np.flatnonzero(whole == block)
        tables = np.searchsorted(starts, places, "right") - 1
        seqs = list(self._lengths) if len(places) else []
        return [(seqs[table], place - starts[table].item()) for place, table in zip(places.tolist(), tables.tolist(),
                strict=True)]  # fmt: skip

    def copy(self) -> Tables:
        twin = Tables()
        twin._lengths = self._lengths.copy()
        twin._blocks = {seq: blocks.copy() for seq, blocks in self._blocks.items()}
        return twin

    @property
    def nbytes(self) -> int:
        return sum(blocks.nbytes for blocks in self._blocks.values())
