"""Which rows draft how many tokens, and by whom: between the engine's settings and a proposer.

It owns the proposer and the drafts' distributions until they are verified; the drafted tokens are put into their
sequences, for the scheduler to give them room or trim them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Rows

import torch

from engine.config import LiveSettings, SettingRefused
from engine.records import Timing
from engine.runner.base import Runner
from engine.runner.batch import ScheduledRow
from engine.sampler import Outcome
from engine.sequence import Sequence
from engine.speculation.length import DraftLengths
from engine.speculation.proposer import Ask, Drafts, Factory, Lookup, Proposer
from engine.speculation.simulated import SimulatedRule, lengthened

# What a proposer is made from beside its method: with one of these changed another is made, and what the old one kept
# is gone.
_OF_MODELS = ("draft_model", "draft_layers", "draft_sampling")
_SHAPING = {"off": (), "ngram": ("ngram_min", "ngram_max"), "suffix": ()}


class Drafting:
    """`factories`: by draft method. `line`: → ms of a pass, and of each token of it, about."""

    def __init__(
        self, factories: Mapping[str, Factory], settings: LiveSettings, line: Callable[[], tuple[float, float]]
    ):
        """Raises SettingRefused."""
        self._factories = factories
        self.settings = settings
        self.proposer = self.made(settings)
        self.q: Mapping[int, torch.Tensor] = {}  # of the latest drafts, by sequence: what they were drawn from
        self._lengths = DraftLengths(line)
        self._lengths.renew(settings.draft_method)
        self._asked = (0, 0)  # in this step: tokens of the longest draft asked for, and of all
        self._matched: dict[int, int] = {}  # before drafts of this step that were looked up, by sequence: tokens

    def made(self, settings: LiveSettings) -> Proposer | None:
        """The proposer for `settings`: a new one where what makes it has changed. Raises SettingRefused."""
        method = settings.draft_method
        if method == "off":
            return None
        shaping = ("draft_method", *_SHAPING.get(method, _OF_MODELS))
        kept = all(getattr(settings, key) == getattr(self.settings, key) for key in shaping)
        if kept and settings is not self.settings:
            return self.proposer
        if method not in self._factories:
            raise SettingRefused("draft_method", f"this engine has no draft method '{method}'")
        return self._factories[method](settings)

    def apply(self, settings: LiveSettings, proposer: Proposer | None) -> None:
        """`proposer`: as `made` of these settings."""
        if proposer is not self.proposer:
            self._lengths.renew(settings.draft_method)
        self.settings, self.proposer = settings, proposer

    @property
    def bytes(self) -> int:
        """What the proposer holds in memory that isn't the target's; one that says nothing holds next to nothing."""
        return getattr(self.proposer, "bytes", 0)

    @property
    def rule(self) -> SimulatedRule | None:
        """What decides in the exact rule's place, if anything does."""
        rates = self.settings.simulated_acceptance
        return SimulatedRule(rates) if rates else None

    def propose(self, running: Iterable[Sequence]) -> None:
        """Drafts for rows that decode, never so many that a pass could go past the sequence's limit."""
        self.q, self._asked, self._matched = {}, (0, 0), {}  # those of drafts that came to nothing are gone with them
        proposer, longest = self.proposer, self.settings.draft_length
        if proposer is None or longest == 0:
            return
        asks: list[Ask] = []
        asking: list[Sequence] = []
        others = 0
        for sequence in running:
            tokens = sequence.tokens
            known = len(tokens)
            if sequence.computed != known - 1 or known == sequence.prompt_tokens:  # as `Sequence.decoding`
                continue
            count = min(longest, sequence.limit - known - 1)  # a pass adds its drafts and one token more
            if count > 0 and sequence.request.sampling.speculate and sequence.group is None:
                assert sequence.params is not None
                asks.append(Ask(sequence.seq, tokens, count, sequence.params, count))
                asking.append(sequence)
            else:
                others += 1
        adaptive = self.settings.draft_policy == "adaptive"
        if adaptive and asks and not isinstance(proposer, Lookup):
            asks, asking, others = self._plan(proposer, asks, asking, others)
        if not asks or (adaptive and isinstance(proposer, Lookup) and self._lengths.rests(others + len(asks))):
            return
        drafts = proposer.propose(asks)
        self._asked = max(ask.limit for ask in asks), sum(ask.limit for ask in asks)
        if self.settings.simulated_acceptance:
            drafts = lengthened(asks, drafts)
        if adaptive and looks_up(proposer):
            self._trim(asks, drafts, others)
        for sequence, ask, tokens in zip(asking, asks, drafts.tokens, strict=True):
            assert len(tokens) <= ask.most
            sequence.drafts = tokens
        self.q = {asking[index].seq: q for index, q in drafts.q.items()}
        self._matched = {asking[index].seq: matched for index, matched in drafts.matched.items()}
        assert all(len(q) == len(drafts.tokens[index]) for index, q in drafts.q.items())

    def _plan(
        self, proposer: Proposer, asks: list[Ask], asking: list[Sequence], others: int
    ) -> tuple[list[Ask], list[Sequence], int]:
        """Ask a drafter whose tokens cost time for those that pay. → those of `asks` that are left to ask."""
        lengths = self._lengths.plan([ask.seq for ask in asks], [ask.limit for ask in asks], others)
        for ask, length in zip(asks, lengths, strict=True):
            ask.limit = length
        if looks_up(proposer):
            return asks, asking, others
        left = [i for i, length in enumerate(lengths) if length]
        return [asks[i] for i in left], [asking[i] for i in left], others + len(asks) - len(left)

    def _trim(self, asks: list[Ask], drafts: Drafts, others: int) -> None:
        """Keep of drafts that were looked up what pays. Never of one that was drawn: to drop a token for what it turned
        out to be would change what is output."""
        certain = [i for i, tokens in enumerate(drafts.tokens) if tokens and i not in drafts.q]
        rest = others + len(asks) - len(certain) + sum(len(drafts.tokens[i]) for i in drafts.q)
        kept = self._lengths.trim(
            [asks[i].seq for i in certain],
            [len(drafts.tokens[i]) for i in certain],
            [drafts.matched.get(i, 0) for i in certain],
            rest,
            not isinstance(self.proposer, Lookup),
        )
        for i, count in zip(certain, kept, strict=True):
            del drafts.tokens[i][count:]

    def took(self, timing: Timing, tokens: int, logits: int) -> None:
        """What the step took in which `propose` was called last, whose pass had so many tokens and rows of logits."""
        if self.settings.draft_policy != "adaptive" or self.proposer is None:
            return
        deepest, asked = self._asked
        if asked:
            self._lengths.drafted(deepest, asked, timing.draft / 1e6)
        if tokens == logits:  # no prompts
            self._lengths.passed(tokens, (timing.total - timing.swap - timing.draft) / 1e6)

    def see(self, rows: Rows[ScheduledRow], outcomes: Mapping[int, Outcome], runner: Runner) -> None:
        """A pass over `rows`, those that wanted logits, came to `outcomes`, by sequence."""
        if self.proposer is None or not rows:
            return
        if self.settings.draft_policy == "adaptive":
            drafted = [(row.sequence.seq, len(row.drafts)) for row in rows if row.drafts]
            matched = self._matched
            self._lengths.examined([(seq, n, outcomes[seq].accepted, matched.get(seq, 0)) for seq, n in drafted])
        if not self.proposer.watches:
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
        self._lengths.forget(seq)
        if self.proposer is not None:
            self.proposer.forget(seq)


def looks_up(proposer: Proposer) -> bool:
    return getattr(proposer, "looks_up", False)
