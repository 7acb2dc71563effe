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
LATER = 64  # tellings


class BlockEvents:
    """A ring, the oldest falling out. What is told is put there when somebody looks, or when it was told LATER times:
    that saves most of what numpy takes for a few events.

    Attributes:
        count: events ever told.
    """

    def __init__(self, kept: int = KEPT):
        self._rows = np.zeros(kept, EVENT)
        self._block = np.zeros(kept, np.uint32)  # again, side by side: searching them there takes a tenth of the time
        self._later: list[tuple] = []  # of each telling, what `add` was given
        self.count = 0

    def __len__(self) -> int:
        return min(self.count, len(self._rows))

    def add(self, step: int, clock: int, kind: int, blocks: NDArray, seq: NDArray | int, owner: NDArray | int,
            idle: NDArray | int = 0) -> None:  # fmt: skip
        """Events of one kind at one moment; moments come in order."""
        self._later.append((step, clock, kind, blocks, seq, owner, idle))
        self.count += len(blocks)
        if len(self._later) >= LATER:
            self._catch_up()

    def _catch_up(self) -> None:
        if not self._later:
            return
        steps, clocks, kinds, blocks, *rest = zip(*self._later, strict=True)
        self._later = []
        lengths = [len(each) for each in blocks]
        new = np.empty(sum(lengths), EVENT)
        for name, values in (("step", steps), ("clock", clocks), ("kind", kinds)):
            new[name] = np.repeat(values, lengths)
        new["block"] = np.concatenate(blocks)
        for name, values in zip(("seq", "owner", "idle"), rest, strict=True):
            new[name] = _joined(values, lengths)
        self._put(new[-len(self._rows) :])

    def _put(self, new: NDArray) -> None:
        """At most a ring's length; in two pieces where it goes round."""
        size = len(self._rows)
        start = (self.count - len(new)) % size
        before_end = min(len(new), size - start)
        for low, part in ((start, new[:before_end]), (0, new[before_end:])):
            self._rows[low : low + len(part)], self._block[low : low + len(part)] = part, part["block"]

    def of(self, block: int, until: int) -> NDArray:
        """A block's events up to and with step `until`, oldest first."""
        self._catch_up()
        rows = self._rows[: len(self)]
        found = np.flatnonzero(self._block[: len(self)] == block)
        found = found[rows["step"][found] <= until]
        start = self.count % len(self._rows) if self.count > len(self._rows) else 0
        return rows[found[np.argsort((found - start) % len(self._rows))]]

    def forgets_before(self) -> int:
        """The step before which events have fallen out; 0 while none have."""
        self._catch_up()
        if self.count <= len(self._rows):
            return 0
        return int(self._rows[self.count % len(self._rows)]["step"])


def _joined(values: tuple[NDArray | int, ...], lengths: list[int]) -> NDArray:
    """One after the other, a number as often as is its length."""
    return np.concatenate([
        value if isinstance(value, np.ndarray) else np.full(length, value)
        for value, length in zip(values, lengths, strict=True)
    ])  # fmt: skip
