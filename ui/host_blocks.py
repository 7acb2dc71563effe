"""The host pool as arrays, one entry a block: whose K/V waits there. Numpy, no Qt."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.records import HOST, NONE, Keyframe, unpack


class HostBlocks:
    """
    Attributes:
        owner, index, filled: one entry a block, as records.HOST describes them.
        version: another number after every change.
    """

    def __init__(self, num_blocks: int):
        self.owner = np.full(num_blocks, NONE, np.uint32)
        self.index = np.zeros(num_blocks, np.uint32)
        self.filled = np.zeros(num_blocks, np.uint16)
        self.version = 0

    @property
    def num_blocks(self) -> int:
        return len(self.owner)

    @property
    def used(self) -> int:
        return int(np.count_nonzero(self.owner != NONE))

    def table(self, seq: int) -> NDArray[np.intp]:
        """The sequence's host blocks in logical order."""
        blocks = np.flatnonzero(self.owner == seq)
        return blocks[np.argsort(self.index[blocks])]

    def resize(self, num_blocks: int) -> None:
        """The blocks that stay keep what they hold."""
        version, kept, old = self.version, min(num_blocks, self.num_blocks), (self.owner, self.index, self.filled)
        self.__init__(num_blocks)  # type: ignore[misc]
        for mine, before in zip((self.owner, self.index, self.filled), old, strict=True):
            mine[:kept] = before[:kept]
        self.version = version + 1

    def change(self, buffer: bytes) -> None:
        """Apply records.HOST entries, at most one a block."""
        entries = unpack(buffer, HOST)
        blocks = entries["block"].astype(np.intp)
        self.owner[blocks], self.index[blocks] = entries["owner"], entries["index"]
        self.filled[blocks] = entries["filled"]
        self.version += 1

    def take(self, frame: Keyframe) -> None:
        """Become what the keyframe says."""
        self.owner = np.frombuffer(frame.host_owner, "<u4").copy()
        self.index = np.frombuffer(frame.host_index, "<u4").copy()
        self.filled = np.frombuffer(frame.host_filled, "<u2").copy()
        self.version += 1

    def copy(self) -> HostBlocks:
        """An independent copy."""
        twin = HostBlocks(0)
        twin.owner, twin.index, twin.filled = self.owner.copy(), self.index.copy(), self.filled.copy()
        return twin

    @property
    def nbytes(self) -> int:
        return self.owner.nbytes + self.index.nbytes + self.filled.nbytes
