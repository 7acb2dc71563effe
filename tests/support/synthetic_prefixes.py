"""The books of the synthetic stream's prefix cache: which full blocks could be found, what each continues and says."""

from __future__ import annotations

from engine.records import NONE, SEAL, pack
from tests.support.synthetic_drafts import WORDS
from tests.support.synthetic_pool import STRETCH

Seal = tuple[int, int, int, int, int]  # records.SEAL

_WORDS = len(WORDS) - 3  # the rest is punctuation


class SyntheticPrefixes:
    """Hashes are running numbers: no two prompts of the stream are alike but for the blocks that they share."""

    def __init__(self, block_size: int):
        self.block_size = block_size
        self._sealed: dict[int, tuple[Seal, str]] = {}
        self._fresh: list[tuple[Seal, str]] = []
        self._last = 0

    def __contains__(self, block: int) -> bool:
        return block in self._sealed

    def warm(self, cached: list[int]) -> None:
        """Cached blocks of prompts before the first: a stretch of the pool is one of them."""
        for block in sorted(cached):
            before = block - 1 if block % STRETCH and block - 1 in self else None
            index = 0 if before is None else self._sealed[before][0][1] + 1
            self.seal(block, index, 1 + block // STRETCH, before)

    def seal(self, block: int, index: int, seq: int, before: int | None) -> None:
        """The block is full; `before`: the one that it continues."""
        if block in self or (before is not None and before not in self):
            return
        self._last += 1
        parent = 0 if before is None else self._sealed[before][0][3]
        words = "".join(WORDS[(self._last * 7 + 3 * at) % _WORDS] for at in range(self.block_size))
        entry = (block, index, seq, self._last, parent), words
        self._sealed[block] = entry
        self._fresh.append(entry)

    def forget(self, block: int) -> None:
        """Another prompt's tokens are written into the block, or it is gone."""
        if self._sealed.pop(block, None) is not None:
            self._fresh.append(((block, 0, NONE, 0, 0), ""))

    def resize(self, blocks: int) -> None:
        for block in [block for block in self._sealed if block >= blocks]:
            self.forget(block)

    def clear(self) -> None:
        """The cache was switched off."""
        self._sealed.clear()
        self._fresh.append(((NONE, 0, NONE, 0, 0), ""))

    def settle(self) -> tuple[bytes, list[str]]:
        """The changes since the last call, as records have them."""
        fresh, self._fresh = self._fresh, []
        return _packed(fresh)

    def whole(self) -> tuple[bytes, list[str]]:
        return _packed(sorted(self._sealed.values(), key=lambda entry: entry[0][1]))


def _packed(entries: list[tuple[Seal, str]]) -> tuple[bytes, list[str]]:
    return pack([seal for seal, _ in entries], SEAL), [text for _, text in entries]
