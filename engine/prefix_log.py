"""What the prefix cache holds and what it was asked, as records tell it.

The pool notes each block that becomes findable, or ceases to be, where that happens; here the notes become
records.SEAL entries, once a step. Their tokens' text is made then, once a block, and kept for keyframes: who looks at
the cache later wants to read prompts whose sequences are gone. It refuses to know how blocks are found or evicted.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine import records
from engine.block_pool import BlockPool
from engine.records import NONE, SEAL, Admitted, Event, PrefixUse
from engine.texts import Texts

Seal = tuple[int, int, int, int, int]  # records.SEAL
HASH_BYTES = 8  # of a hash in records: two of 400,000 blocks are alike once in two hundred million pools


class PrefixLog:
    """Attributes:
    use: of all events drained so far.
    """

    def __init__(self, pool: BlockPool, texts: Texts):
        self._pool = pool
        self._texts = texts
        self._known: dict[int, tuple[Seal, str]] = {}  # by block, in the order they were sealed
        self._fresh: list[tuple[Seal, str]] = []  # since the last record
        self.use = PrefixUse()

    def drain(self, events: Iterable[Event]) -> tuple[bytes, list[str]]:
        """What happened since the last call, for a record that has these events."""
        self._count(events)
        self._take()
        fresh, self._fresh = self._fresh, []
        return _packed(fresh)

    def whole(self) -> tuple[bytes, list[str]]:
        """Every findable block, parents before their children, for a keyframe."""
        self._take()
        return _packed(sorted(self._known.values(), key=lambda entry: entry[0][1]))

    def check(self) -> None:
        """Assert that what was told of is what the pool would find."""
        self._take()
        assert {b: seal[3] for b, (seal, _) in self._known.items()} == {
            b: _short(whole) for b, whole in self._pool.findable().items()
        }

    def _take(self) -> None:
        known, fresh, span = self._known, self._fresh, self._texts.span
        for block, index, seq, whole, parent, tokens in self._pool.take_seal_notes():
            if whole:
                entry = (block, index, seq, _short(whole), _short(parent)), span(tokens)
                known[block] = entry
            else:
                entry = (block, 0, NONE, 0, 0), ""
                if block == NONE:
                    known.clear()
                else:
                    del known[block]
            fresh.append(entry)

    def _count(self, events: Iterable[Event]) -> None:
        asked = [e for e in events if isinstance(e, Admitted) and e.looked_up and not e.again]
        if asked:
            self.use = PrefixUse(
                requests=self.use.requests + len(asked),
                hits=self.use.hits + sum(e.cached_tokens > 0 for e in asked),
                looked_up=self.use.looked_up + sum(e.looked_up for e in asked),
                hit=self.use.hit + sum(e.cached_tokens for e in asked),
            )


def _short(whole: bytes) -> int:
    return int.from_bytes(whole[:HASH_BYTES], "little")


def _packed(entries: list[tuple[Seal, str]]) -> tuple[bytes, list[str]]:
    return records.pack([seal for seal, _ in entries], SEAL), [text for _, text in entries]
