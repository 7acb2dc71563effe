"""Which full blocks a prompt can find, by the hashes of their tokens: the prefix cache's index.

A block's hash is chained to that of the block before it, so equal hashes mean equal prefixes. A block can be found from
when it is full and *sealed* until it is evicted or the cache is dropped. Every such change is noted where it is made.
Who holds a block, and which one goes first, is the pool's business, which this is a part of.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from struct import Struct

from engine.records import NONE
from engine.sequence import Sequence

# a block that can be found from now on: block, logical index, whose tokens, its hash, its parent's (b"" for a first
# block), the tokens; without a hash: one that can't any more, and block NONE for all of them
SealNote = tuple[int, int, int, bytes, bytes, list[int]]


class PrefixIndex:
    """The part of a pool that knows what its full blocks hold."""

    def __init__(self) -> None:
        self._seal_notes: list[SealNote] = []

    def _begin_index(self, num_blocks: int, block_size: int) -> None:
        """Nothing can be found."""
        self.block_size = block_size
        self._packed = Struct(f"{block_size}I").pack  # a block's tokens, as they are hashed
        self._hash_of: list[bytes | None] = [None] * num_blocks  # of blocks that can be found
        self._block_of: dict[bytes, int] = {}

    def hash_blocks(self, sequence: Sequence, count: int) -> list[bytes]:
        """The sequence's own list of chained hashes, with at least the first `count` full blocks of known tokens
        in it; each is computed once."""
        hashes, size, tokens = sequence.hashes, self.block_size, sequence.tokens
        assert count * size <= len(tokens)
        for index in range(len(hashes), count):
            hashes.append(self._hashed(hashes[-1] if hashes else b"", tokens[index * size : (index + 1) * size]))
        return hashes

    def _hashed(self, parent: bytes, tokens: list[int]) -> bytes:
        """The parent's digest in front makes equal hashes mean equal prefixes, not just equal blocks. BLAKE2b, since it
        takes 128 bytes at once, the digest and 16 tokens' 96 among them: SHA-256 took 1.6 times as long."""
        return blake2b(parent + self._packed(*tokens), digest_size=32).digest()

    def lookup(self, sequence: Sequence) -> list[int]:
        """Blocks that hold the longest known prefix of the sequence. Where that is all of it, the last token is
        computed again for its logits and not stored: a shared block is never written to."""
        found: list[int] = []
        hashes, block_of = sequence.hashes, self._block_of
        for index in range(sequence.known // self.block_size):
            if index == len(hashes):
                self.hash_blocks(sequence, index + 1)
            block = block_of.get(hashes[index])
            if block is None:
                break
            found.append(block)
        return found

    def seal(self, sequence: Sequence) -> None:
        """Make the full blocks of computed, final tokens findable, but not those of a reservation, which shares none.
        Of equal blocks the first stays."""
        self._seal_each((sequence,))

    def _seal_each(self, sequences: Iterable[Sequence]) -> None:
        size, hash_of, block_of, hashed, notes = (
            self.block_size, self._hash_of, self._block_of, self._hashed, self._seal_notes,
        )  # fmt: skip
        for sequence in sequences:
            count = sequence.computed // size
            if sequence.reserved or sequence.sealed >= count:
                continue
            hashes, tokens, table = sequence.hashes, sequence.tokens, sequence.table
            for index in range(sequence.sealed, count):
                own, parent = tokens[index * size : (index + 1) * size], hashes[index - 1] if index else b""
                if index == len(hashes):
                    hashes.append(hashed(parent, own))
                block, whole = table[index], hashes[index]
                if hash_of[block] is None and block_of.setdefault(whole, block) == block:
                    hash_of[block] = whole
                    notes.append((block, index, sequence.seq, whole, parent, own))
            sequence.sealed = count

    def take_seal_notes(self) -> list[SealNote]:
        """Which blocks became findable since the last call, and which ceased to be, in order."""
        notes, self._seal_notes = self._seal_notes, []
        return notes

    def findable(self) -> dict[int, bytes]:
        """Every block that a prompt can find, with its hash."""
        return {block: whole for whole, block in self._block_of.items()}

    # --- of the pool alone ---

    def _forget(self, block: int) -> None:
        """It can't be found any more."""
        whole, self._hash_of[block] = self._hash_of[block], None
        assert whole is not None
        del self._block_of[whole]
        self._forgotten(block)

    def _forgotten(self, block: int) -> None:
        self._seal_notes.append((block, 0, NONE, b"", b"", []))

    def _forget_all(self) -> None:
        self._hash_of = [None] * len(self._hash_of)
        self._block_of.clear()
        self._forgotten(NONE)

    def _check_index(self) -> dict[int, bytes]:
        """Assert that both ways to look agree; the hash of each block that can be found."""
        hashed = {block: whole for block, whole in enumerate(self._hash_of) if whole is not None}
        assert {whole: block for block, whole in hashed.items()} == self._block_of
        assert len(hashed) == len(self._block_of)
        return hashed
