"""The likeliest next tokens of one sequence, for who wants to look on. Off unless asked; it changes no draw."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

from engine.records import TopTokens
from engine.runner.batch import ScheduledRow
from engine.sampler import Outcome, Sampler
from engine.texts import Texts

if TYPE_CHECKING:
    import torch


class Watch:
    """`seq`: the watched sequence, None = none; `k`: how many tokens of it."""

    def __init__(self, sampler: Sampler, texts: Texts):
        self.seq: int | None = None
        self.k = 1
        self._sampler = sampler
        self._texts = texts

    def look(
        self, rows: Rows[ScheduledRow], outcomes: Rows[Outcome], logits: torch.Tensor | None
    ) -> list[TopTokens]:
        """One entry for each token of the watched pass. Call it before the tokens are committed; logits
        (N, vocabulary) are those of `rows`, in order."""
        if self.seq is None:
            return []
        first = 0
        for row, outcome in zip(rows, outcomes, strict=True):
            if row.sequence.seq == self.seq:
                assert logits is not None
                return [self._entry(row, i, logits[first + i]) for i in range(len(outcome.tokens))]
            first += len(row.drafts) + 1
        return []

    def _entry(self, row: ScheduledRow, i: int, logits_row: torch.Tensor) -> TopTokens:
        sequence = row.sequence
        assert sequence.params is not None
        tokens, probabilities = self._sampler.top_tokens(logits_row, sequence.params, self.k)
        return TopTokens(
            seq=sequence.seq,
            position=sequence.known + i,
            tokens=tokens,
            probabilities=probabilities,
            text=[self._texts.piece(token) for token in tokens],
        )
