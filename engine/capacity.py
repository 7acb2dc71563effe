"""What fits: weights, KV cache and headroom against a card's memory, the largest batch and the longest context.

Bytes throughout; a GB of a shop is 10⁹, a GiB 2³⁰. Beside `formulas` it knows that a cache is held in whole blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.formulas import blocks_for


@dataclass(frozen=True)
class Factors:
    """Everything that can be edited.

    Attributes:
        heads: query heads, what multi-head attention would have for key/value heads.
        kv_bytes: bytes of one number of a key or value. weight_bytes: bytes of one parameter, scales counted.
        headroom: share of a card left for activations, CUDA context, graphs and the allocator's slack.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    parameters: int
    kv_bytes: float = 2.0
    weight_bytes: float = 2.0
    context: int = 4096  # tokens of each sequence
    batch: int = 1  # sequences
    block_size: int = 16  # tokens
    headroom: float = 0.10

    @property
    def kv_per_token(self) -> float:
        """2·L·H_kv·d_h·n; the 2 counts keys and values."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.kv_bytes

    @property
    def kv(self) -> float:
        """2·L·H_kv·d_h·s·b·n."""
        return self.kv_per_token * self.context * self.batch

    @property
    def kv_per_sequence(self) -> float:
        """Held by one sequence of the whole context: its last block counts whole."""
        return self.kv_per_token * self.block_size * blocks_for(self.context, self.block_size)

    @property
    def kv_held(self) -> float:
        return self.kv_per_sequence * self.batch

    @property
    def weights(self) -> float:
        return self.parameters * self.weight_bytes

    @property
    def needed(self) -> float:
        """Weights and the cache as it is held."""
        return self.weights + self.kv_held

    def usable(self, card: float) -> float:
        """What headroom leaves of a card."""
        return card * (1 - self.headroom)

    def fits(self, card: float) -> bool:
        return self.needed <= self.usable(card)

    def largest_batch(self, card: float) -> int:
        """Sequences of the whole context that fit at once."""
        return self._whole(card, self.kv_per_sequence)

    def longest_context(self, card: float) -> int:
        """Tokens that each of `batch` sequences can hold: a whole number of blocks."""
        return self._whole(card, self.kv_per_token * self.block_size * self.batch) * self.block_size

    def _whole(self, card: float, each: float) -> int:
        count = max(0, int((self.usable(card) - self.weights) // each))
        while count and self.weights + count * each > self.usable(card):  # a last bit of a quotient
            count -= 1
        return count

    def attention(self) -> tuple[tuple[str, int], ...]:
        """Multi-head, grouped-query and multi-query attention with these query heads: name, key/value heads.

        The model's own grouping where it has one, else the one nearest to four query heads a key/value head.
        """
        own = self.kv_heads
        groups = [n for n in range(2, self.heads) if self.heads % n == 0]
        found: list[tuple[str, int]] = [("MHA", self.heads)] if self.heads > 1 else []
        if 1 < own < self.heads:
            found.append(("GQA", own))
        elif groups:
            found.append(("GQA", min(groups, key=lambda n: abs(self.heads / n - 4))))
        if own > self.heads:  # edited past what it can share
            found.insert(0, ("own", own))
        return (*found, ("MQA", 1))

    def with_(self, **changes: object) -> Factors:
        return replace(self, **changes)  # type: ignore[arg-type]
