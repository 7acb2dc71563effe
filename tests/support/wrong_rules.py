"""Ways to verify drafts that are nearly right, so that a test of the right one can show that it would see them."""

from __future__ import annotations

import torch

from engine.records import BONUS, ORIGINS
from engine.sampler import Outcome, Sampler, SampleRow
from engine.speculation.accept import ExactRule

# a fifth of the draws is enough to see these; and those, where filters leave tokens out
COARSE = "always accepts", "accepts with min(1, q/p)"
COARSE_FILTERED = *COARSE, "bonus from q", "keeps drafts after a rejection"


class AlwaysAccepts(ExactRule):
    def accepts(self, p, q, draws):
        return draws < 1


class AcceptsByInverse(ExactRule):
    """With min(1, q/p)."""

    def accepts(self, p, q, draws):
        return draws * p < q


class ResamplesFromTarget(ExactRule):
    def residual(self, p, drafted, q):
        return p


class BonusFromDraft(Sampler):
    """The bonus comes from the latest distribution that the draft gave."""

    def sample(self, logits: torch.Tensor, rows: list[SampleRow]) -> list[Outcome]:
        logits, last = logits.clone(), -1
        for row in rows:
            last += len(row.drafts) + 1
            if row.q_rows is not None:
                logits[last] = row.q_rows[-1].log()
            elif row.drafts:
                logits[last] = -torch.inf
                logits[last, row.drafts[-1]] = 0.0
        return super().sample(logits, rows)


class KeepsAfterRejection(Sampler):
    """What was drafted after a rejected token stays, behind the one resampled in its place."""

    def sample(self, logits: torch.Tensor, rows: list[SampleRow]) -> list[Outcome]:
        outcomes = super().sample(logits, rows)
        for row, outcome in zip(rows, outcomes, strict=True):
            kept = row.drafts[outcome.accepted + 1 :]
            outcome.tokens += kept
            outcome.origins += [ORIGINS.index("accepted")] * len(kept)
        return outcomes


class NoBonus(Sampler):
    """A draft accepted whole ends the pass: exact, and a token short."""

    def sample(self, logits: torch.Tensor, rows: list[SampleRow]) -> list[Outcome]:
        outcomes = super().sample(logits, rows)
        for row, outcome in zip(rows, outcomes, strict=True):
            if row.drafts and outcome.accepted == len(row.drafts):
                outcome.tokens.pop()
                outcome.origins.pop()
                outcome.accepted -= 1
                outcome.drafts = [entry for entry in outcome.drafts if entry[2] != BONUS]
        return outcomes


def wrong_samplers(vocabulary: int) -> dict[str, Sampler]:
    """Each gives another distribution."""
    return {
        COARSE[0]: Sampler(vocabulary, AlwaysAccepts()),
        COARSE[1]: Sampler(vocabulary, AcceptsByInverse()),
        "resamples from p": Sampler(vocabulary, ResamplesFromTarget()),
        "bonus from q": BonusFromDraft(vocabulary),
        "keeps drafts after a rejection": KeepsAfterRejection(vocabulary),
    }
