"""Which rows draft how many tokens, and by whom: between the engine's settings and a proposer.

It owns the proposer and the drafts' distributions until they are verified; the drafted tokens are put into their
sequences, for the scheduler to give them room or trim them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Rows

import torch

from engine.config import LiveSettings, SettingRefused
from engine.memory import give_back
from engine.runner.base import Runner
from engine.runner.batch import ScheduledRow
from engine.sampler import Outcome
from engine.sequence import Sequence
from engine.speculation.proposer import Ask, Factory, Proposer

# What a proposer is made from: with one of them changed another is made, and what the old one kept is gone.
_SHAPING = ("draft_method", "draft_model", "draft_layers", "draft_sampling", "ngram_min", "ngram_max")


class Drafting:
    """`factories`: by draft method."""

    def __init__(self, factories: Mapping[str, Factory], settings: LiveSettings):
        """Raises SettingRefused."""
        self._factories = factories
        self.settings = settings
        self.proposer = self.made(settings)
        self.q: Mapping[int, torch.Tensor] = {}  # of the latest drafts, by sequence: what they were drawn from

    def made(self, settings: LiveSettings) -> Proposer | None:
        """The proposer for `settings`: a new one where what makes it has changed. Raises SettingRefused."""
        method = settings.draft_method
        if method == "off":
            return None
        kept = all(getattr(settings, key) == getattr(self.settings, key) for key in _SHAPING)
        if kept and settings is not self.settings:
            return self.proposer
        if method not in self._factories:
            raise SettingRefused("draft_method", f"this engine has no draft method '{method}'")
        return self._factories[method](settings)

    def apply(self, settings: LiveSettings, proposer: Proposer | None) -> None:
        """`proposer`: as `made` of these settings."""
        held, self.settings, self.proposer = self.bytes, settings, proposer
        if held != self.bytes:
            give_back()

    @property
    def bytes(self) -> int:
        """What the proposer holds in memory that isn't the target's; one that says nothing holds next to nothing."""
        return getattr(self.proposer, "bytes", 0)

    def propose(self, running: Iterable[Sequence]) -> None:
        """Drafts for rows that decode, never so many that a pass could go past the sequence's limit."""
        self.q = {}  # those of drafts that came to nothing are gone with them, never to be taken for others'
        proposer, longest = self.proposer, self.settings.draft_length
        if proposer is None or longest == 0:
            return
        asks: list[Ask] = []
        asking: list[Sequence] = []
        for sequence in running:
            tokens = sequence.tokens
            known = len(tokens)
            # as `Sequence.decoding`
            if sequence.computed != known - 1 or known == sequence.prompt_tokens or sequence.group is not None:
                continue
            count = min(longest, sequence.limit - known - 1)  # a pass adds its drafts and one token more
            if count > 0 and sequence.request.sampling.speculate:
                assert sequence.params is not None
                asks.append(Ask(sequence.seq, tokens, count, sequence.params))
                asking.append(sequence)
        if not asks:
            return
        drafts = proposer.propose(asks)
        for sequence, ask, tokens in zip(asking, asks, drafts.tokens, strict=True):
            assert len(tokens) <= ask.limit
            sequence.drafts = tokens
        self.q = {asking[index].seq: q for index, q in drafts.q.items()}
        assert all(len(q) == len(drafts.tokens[index]) for index, q in drafts.q.items())

    def see(self, rows: Rows[ScheduledRow], outcomes: Mapping[int, Outcome], runner: Runner) -> None:
        """A pass over `rows`, those that wanted logits, came to `outcomes`, by sequence."""
        if self.proposer is None or not self.proposer.watches or not rows:
            return
        if all(row.sequence.group is None for row in rows):
            seqs = [row.sequence.seq for row in rows]
            self.proposer.see(seqs, [outcomes[seq] for seq in seqs], runner.hidden())
            return
        alone: list[ScheduledRow] = []  # beams and samples that fork just now are seen from their next pass on
        places: list[int] = []
        first = 0
        for row in rows:
            if row.sequence.group is None:
                alone.append(row)
                places += range(first, first + len(row.drafts) + 1)
            first += len(row.drafts) + 1
        seqs = [row.sequence.seq for row in alone]
        if seqs:
            hidden = runner.hidden()[torch.tensor(places)]
            self.proposer.see(seqs, [outcomes[seq] for seq in seqs], hidden)

    def forget(self, seq: int) -> None:
        if self.proposer is not None:
            self.proposer.forget(seq)
