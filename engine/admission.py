"""Whether the head of the queue may come in now, and into which blocks.

Four policies meet here. *Continuous* batching lets a sequence join whenever there is room; *static* lets a batch form
and then nobody join it until all have left. *Paged* allocation takes blocks as tokens need them, and admission looks
for room for the whole prompt or for its next chunk only; *reserved* takes blocks for all that the request may come to
hold, in a row, first fit, and shares no prefix. A policy is asked when a sequence is admitted: who runs keeps what it
has. It refuses to know of budgets' order, of preemption, and of how a table is filled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.block_pool import BlockPool
from engine.config import LiveSettings
from engine.formulas import blocks_for
from engine.records import Bound
from engine.sequence import Sequence


@dataclass(slots=True)
class Offer:
    """What an admitted sequence begins with."""

    hits: list[int]  # blocks of its prefix, from the cache
    computed: int  # tokens that need no computing
    own: int  # tokens of its first chunk; 0: a beam that waits for others with all of its K/V there
    blocks: int  # new ones to take now
    looked_up: int = 0  # tokens of full blocks that the cache was asked for
    first: int = -1  # reserved: the first of them; they are in a row


class Admission:
    """Attributes:
    gaps: blocks in rows too short for the reservation that waits at the head of the queue; 0 where none waits.
    """

    def __init__(self, pool: BlockPool):
        self.pool = pool
        self.gaps = 0
        self._forming = True  # a static batch that is not full yet
        self._promised: int | None = None  # blocks, counted once a step and only when asked for
        self._failed = (-1, 0)  # releases and blocks of the last reservation that found no room

    def begin(self, running: list[Sequence]) -> None:
        """A step is planned; `running` before it."""
        self._promised = None
        if not running:
            self._forming = True

    def closed(self, settings: LiveSettings) -> bool:
        """Nobody joins the static batch that runs."""
        return settings.batching == "static" and not self._forming

    def end(self, stopped: Bound | None) -> None:
        """What admission stopped at. A static batch forms until the cap, the pool or an empty queue ends it; a spent
        token budget doesn't."""
        if stopped != "token_budget":
            self._forming = False
        if stopped != "kv_blocks":
            self.gaps = 0

    def offer(
        self,
        sequence: Sequence,
        settings: LiveSettings,
        running: list[Sequence],
        behind: list[Sequence],
        budget: int,
        whole: bool,
    ) -> Offer | Bound:
        """What it would begin with, or what keeps it from that. `behind`: all running ones that may yet have to take
        blocks for tokens that they know. `whole`: its chunk must be all the rest."""
        pool, size = self.pool, self.pool.block_size
        reserved = settings.allocation == "reserved"
        asks = settings.prefix_cache and not reserved and not sequence.shadow
        hits = pool.lookup(sequence) if asks else []
        computed = min(max(len(hits) * size, sequence.swapped), sequence.known - 1)
        rest = sequence.due - computed
        if whole and rest > budget:
            return "token_budget"
        own = min(rest, budget)
        looked_up = sequence.known // size * size if asks else 0
        offer = Offer(hits, computed, own, blocks_for(computed + own, size) - len(hits), looked_up)
        spare = self._spare(sequence, settings, running, behind) - sum(map(pool.is_cached, hits))
        if reserved:
            return self._reserve(offer, blocks_for(limit_of(sequence, settings), size), spare)
        all_of_it = blocks_for(sequence.known, size) - len(hits)
        if (offer.blocks if settings.admission == "chunk" else all_of_it) > spare:
            return "kv_blocks"
        if self._promised is not None:
            self._promised += all_of_it - offer.blocks
        return offer

    def _spare(
        self, sequence: Sequence, settings: LiveSettings, running: list[Sequence], behind: list[Sequence]
    ) -> int:
        """Blocks beyond the watermark and, where prompts are admitted whole, beyond what running ones still need. A
        reservation grows no more: it needs neither; and lanes of a search keep nothing free from one another."""
        spare = self.pool.available
        if settings.admission == "prompt":
            if self._promised is None:
                self._promised = promised(behind, self.pool.block_size)
            spare -= self._promised
        if any(not s.reserved and (s.group is None or s.group is not sequence.group) for s in running):
            spare -= int(settings.watermark * self.pool.num_blocks)
        return spare

    def _reserve(self, offer: Offer, blocks: int, spare: int) -> Offer | Bound:
        if blocks > spare or self._failed == (self.pool.releases, blocks):
            first = -1
        else:
            first = self.pool.first_fit(blocks)
        if first < 0:
            if self._failed != (self.pool.releases, blocks):
                self._failed = self.pool.releases, blocks
                self.gaps = self.pool.gaps(blocks)
            return "kv_blocks"
        offer.blocks, offer.first = blocks, first
        return offer


def promised(running: Iterable[Sequence], size: int) -> int:
    """Blocks that running sequences will still ask for, to compute what they know now."""
    blocks = 0
    for sequence in running:
        beyond = len(sequence.tokens) - len(sequence.table) * size
        if beyond > 0:
            blocks += blocks_for(beyond, size)
    return blocks


def limit_of(sequence: Sequence, settings: LiveSettings) -> int:
    """Tokens that it may come to hold: settled at its first admission."""
    return sequence.limit or min(sequence.prompt_tokens + sequence.request.max_tokens, settings.max_context)
