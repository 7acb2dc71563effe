"""What happened to blocks, one entry an event: the last so many, so that a block's past can be told. Numpy, no Qt."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# allocated for a sequence; got back from the prefix cache; got while in use; let go of and kept for hits; its contents
# gone for another sequence's; let go of and not kept; what was evicted from it is there again, elsewhere perhaps;
# filled with a copy of another block, which stands in the place of `owner`
TAKEN, REUSED, SHARED, LET_GO, EVICTED, FREED, AGAIN, COPIED = 0, 1, 2, 3, 4, 5, 6, 7

EVENT = np.dtype([
    ("step", "<i4"),
    ("clock", "<i8"),  # engine clock, ns
    ("block", "<u4"),
    ("kind", "u1"),
    ("seq", "<u4"),  # who did it
    ("owner", "<u4"),  # whose the block was until then, records.NONE where it was nobody's
    ("idle", "<i8"),  # ns that it had been cached, unused; of AGAIN, since the eviction
])
KEPT = 200_000  # 7 MB; at 16 sequences some half an hour


class BlockEvents:
    """A ring, the oldest falling out.

    Attributes:
        count: events ever added.
    """

    def __init__(self, kept: int = KEPT):
        self._rows = np.zeros(kept, EVENT)
        self._block = np.zeros(kept, np.uint32)  # again, side by side: searching them there takes a tenth of the time
        self.count = 0

    def __len__(self) -> int:
        return min(self.count, len(self._rows))

    def add(self, step: int, clock: int, kind: int, blocks: NDArray, seq: NDArray | int, owner: NDArray | int,
            idle: NDArray | int = 0) -> None:  # fmt: skip
        """Events of one kind at one moment; moments come in order."""
        new = np.empty(len(blocks), EVENT)
        new["step"], new["clock"], new["kind"] = step, clock, kind
        new["block"], new["seq"], new["owner"], new["idle"] = blocks, seq, owner, idle
        size = len(self._rows)
        new = new[-size:]
        spots = (self.count + np.arange(len(new))) % size
        self._rows[spots], self._block[spots] = new, new["block"]
        self.count += len(new)

    def of(self, block: int, until: int) -> NDArray:
        """A block's events up to and with step `until`, oldest first."""
        rows = self._rows[: len(self)]
        found = np.flatnonzero(self._block[: len(self)] == block)
        found = found[rows["step"][found] <= until]
        start = self.count % len(self._rows) if self.count > len(self._rows) else 0
        return rows[found[np.argsort((found - start) % len(self._rows))]]

    def forgets_before(self) -> int:
        """The step before which events have fallen out; 0 while none have."""
        if self.count <= len(self._rows):
            return 0
        return int(self._rows[self.count % len(self._rows)]["step"])
