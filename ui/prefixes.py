"""The prefix cache as records tell it: which full blocks a prompt can find, which continues which, what they say.

Kept as one immutable entry a block, so that a copy for time travel costs a pointer a block. Plain tuples in an array:
Python's collector lets go of such tuples once it saw what is in them, and never looks into an array; it followed
400,000 named ones for 300 ms at a time, and a young list of as many entries for 10. How blocks hang together is worked
out when somebody looks, and then kept up to date with every change. Numpy, no Qt.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.records import NONE, SEAL, Admitted, Keyframe, PrefixUse

_SEAL = struct.Struct("<IIIQQ")
assert _SEAL.size == SEAL.itemsize


class Sealed(NamedTuple):
    """A block that can be found; `hash` and `parent` as records.SEAL has them."""

    index: int  # in the table of who computed it
    seq: int  # who computed it
    hash: int
    parent: int
    text: str


Entry = tuple[int, int, int, int, str]  # a Sealed


class Prefixes:
    """
    Attributes:
        entries: one a block, what `Sealed` names, None where it can't be found; an array of objects.
        count: blocks that can.
        use: what the cache was asked since the engine started.
        version: another number after every change of the entries.
    """

    def __init__(self, num_blocks: int):
        self.entries = _nobody(num_blocks)
        self.count = 0
        self.use = PrefixUse()
        self.version = 0
        self._links: Links | None = None

    @property
    def links(self) -> Links:
        """Made at the first call, kept up to date from then on."""
        if self._links is None:
            self._links = Links(self.entries)
        return self._links

    def get(self, block: int) -> Sealed | None:
        entry = self.entries[block] if block < len(self.entries) else None
        return None if entry is None else Sealed(*entry)

    def resize(self, num_blocks: int) -> None:
        """A pool of another size; the blocks that stay keep what they hold."""
        old, self.entries = self.entries[:num_blocks], _nobody(num_blocks)
        self.entries[: len(old)] = old
        self.count = sum(entry is not None for entry in old)
        self._links = None
        self.version += 1

    def change(self, buffer: bytes, texts: list[str]) -> None:
        """Apply records.SEAL entries, in order."""
        for (block, index, seq, own, parent), text in zip(_SEAL.iter_unpack(buffer), texts, strict=True):
            if block == NONE:
                self._clear()
            elif block < len(self.entries):  # else a smaller pool let go of it
                self._put(block, (index, seq, own, parent, text) if own else None)
        self.version += 1

    def ask(self, event: Admitted) -> None:
        """Count what an admission asked of the cache."""
        if event.looked_up and not event.again:
            use = self.use
            self.use = PrefixUse(
                requests=use.requests + 1,
                hits=use.hits + (event.cached_tokens > 0),
                looked_up=use.looked_up + event.looked_up,
                hit=use.hit + event.cached_tokens,
            )

    def take(self, frame: Keyframe) -> None:
        """Become what the keyframe says."""
        self.entries = _nobody(len(frame.state))
        self.count, self._links = 0, None
        self.change(frame.sealed, frame.sealed_text)
        self.use = frame.prefix_use

    def copy(self) -> Prefixes:
        """An independent copy."""
        return self.copy_with(self.entries.copy())

    def copy_with(self, entries: NDArray[np.object_]) -> Prefixes:
        """A copy to which these belong."""
        twin = Prefixes(0)
        twin.entries, twin.count, twin.use, twin.version = entries, self.count, self.use, self.version
        return twin

    @property
    def nbytes(self) -> int:
        """Of what a copy holds: the entries themselves are shared."""
        return 8 * len(self.entries)

    def _put(self, block: int, entry: Entry | None) -> None:
        old, self.entries[block] = self.entries[block], entry
        self.count += (entry is not None) - (old is not None)
        if self._links is not None:
            if old is not None:
                self._links.remove(block, old)
            if entry is not None:
                self._links.add(block, entry)

    def _clear(self) -> None:
        self.entries = _nobody(len(self.entries))
        self.count, self._links = 0, None


def _nobody(num_blocks: int) -> NDArray[np.object_]:
    return np.full(num_blocks, None, object)


class Links:
    """Which block is the parent of which.

    Attributes:
        up: one entry a block: the block that holds its parent's hash, −1 where none does or it is a prompt's first.
        depth: one entry a block: its index in its prompt, −1 where the block can't be found.
    """

    def __init__(self, entries: NDArray[np.object_]):
        self.up = np.full(len(entries), -1, np.int32)
        self.depth = np.full(len(entries), -1, np.int32)
        # by the parent's hash, whether or not a block holds it; most have one child, which needs no set
        self._children: dict[int, int | set[int]] = {}
        blocks = [block for block, entry in enumerate(entries) if entry is not None]
        found = [entry for entry in entries if entry is not None]
        self._block_of = {own: block for block, (_, _, own, _, _) in zip(blocks, found, strict=True)}
        self.depth[blocks] = [index for index, *_ in found]
        self.up[blocks] = [self._block_of.get(parent, -1) for _, _, _, parent, _ in found]
        for block, (_, _, _, parent, _) in zip(blocks, found, strict=True):
            if parent:
                self._adopt(parent, block)

    def add(self, block: int, entry: Entry) -> None:
        index, _, own, parent, _ = entry
        self._block_of[own] = block
        self.depth[block] = index
        if parent:
            self._adopt(parent, block)
            self.up[block] = self._block_of.get(parent, -1)
        for child in self._of(own):
            self.up[child] = block

    def remove(self, block: int, entry: Entry) -> None:
        _, _, own, parent, _ = entry
        self.depth[block] = self.up[block] = -1
        if self._block_of.get(own) == block:
            del self._block_of[own]
            for child in self._of(own):
                self.up[child] = -1
        if parent:
            siblings = self._children[parent]
            if isinstance(siblings, set):
                siblings.discard(block)
            if not siblings or siblings == block:
                del self._children[parent]

    def _adopt(self, parent: int, block: int) -> None:
        children = self._children.setdefault(parent, block)
        if isinstance(children, set):
            children.add(block)
        elif children != block:
            self._children[parent] = {children, block}

    def _of(self, parent: int) -> Iterable[int]:
        children = self._children.get(parent, ())
        return (children,) if isinstance(children, int) else children

    @property
    def findable(self) -> NDArray[np.intp]:
        return np.flatnonzero(self.depth >= 0)
