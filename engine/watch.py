"""One sequence looked at closely: its likeliest next tokens, and how each of its drafts was decided.

Off unless asked. It looks at what the sampler decided with, through the sampler's own functions, after the decision,
so that it can change no draw. It costs a sort of the vocabulary for each token of one sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.commit import Draft
from engine.records import (
    BONUS,
    DISCARDED,
    REJECTED,
    RESAMPLED,
    Candidate,
    Drawn,
    Examined,
    Sampling,
    TopTokens,
    Verification,
)
from engine.runner.batch import ScheduledRow
from engine.sampler import Outcome, Sampler, SampleRow
from engine.texts import Texts

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Seen:
    """Of the watched sequence's pass: an entry for each token that it gave, and its verification if it had drafts."""

    top: list[TopTokens] = field(default_factory=list)
    verification: Verification | None = None


NOTHING = Seen()


class Watch:
    """`seq`: the watched sequence, None = none; `k`: how many tokens of it."""

    def __init__(self, sampler: Sampler, texts: Texts):
        self.seq: int | None = None
        self.k = 1
        self._sampler = sampler
        self._texts = texts

    def look(self, rows: Rows[ScheduledRow], outcomes: Rows[Outcome], logits: torch.Tensor | None) -> Seen:
        """Call it before the tokens are committed; logits (N, vocabulary) are those of `rows`, in order."""
        if self.seq is None:
            return NOTHING
        first = 0
        for row, outcome in zip(rows, outcomes, strict=True):
            if row.sequence.seq == self.seq:
                assert logits is not None
                return self._see(row, outcome, logits[first : first + len(outcome.tokens)])
            first += len(row.drafts) + 1
        return NOTHING

    def _see(self, row: ScheduledRow, outcome: Outcome, logits: torch.Tensor) -> Seen:
        """logits (n, vocabulary) of the n tokens that the pass gave."""
        params = row.sequence.params
        assert params is not None
        if not len(logits):
            return NOTHING
        p = self._sampler.weights(logits, params)
        p /= p.sum(dim=1, keepdim=True)
        top = [self._top(row, i, p[i]) for i in range(len(p))]
        return Seen(top, self._verification(row, outcome, p) if row.drafts else None)

    def _top(self, row: ScheduledRow, i: int, p: torch.Tensor) -> TopTokens:
        tokens = _largest(p, self.k)
        return TopTokens(
            seq=row.sequence.seq,
            position=row.sequence.known + i,
            tokens=tokens,
            probabilities=p[tokens].tolist(),
            text=[self._texts.piece(token) for token in tokens],
        )

    # --- a verification ---

    def _verification(self, row: ScheduledRow, outcome: Outcome, p: torch.Tensor) -> Verification:
        """p (n, vocabulary), of the tests and of the token that ended the pass."""
        params = row.sequence.params
        assert params is not None
        ended = next(entry for entry in outcome.drafts if entry[2] in (RESAMPLED, BONUS))
        positions: list[Examined] = []
        for position, token, verdict, _, _, draw in outcome.drafts:
            i = len(positions)
            if verdict == DISCARDED:
                text, q = self._texts.piece(token), self._sampler.draft(params, i, p[0])
                positions.append(
                    Examined(position=position, verdict=verdict, token=token, text=text, q=float(q[token]))
                )
            elif verdict == BONUS:
                positions.append(self._bonus(params, p[i], ended))
            elif verdict != RESAMPLED:
                test = Examined(position=position, verdict=verdict, token=token, draw=_number(draw))
                positions.append(self._test(params, i, p[i], test, ended))
        return Verification(
            seq=row.sequence.seq,
            greedy=params.greedy,
            certain=params.q_rows is None,
            sampling=_sampling(params),
            positions=positions,
        )

    def _test(self, params: SampleRow, i: int, p: torch.Tensor, test: Examined, ended: Draft) -> Examined:
        """`test` of the i-th draft with all its numbers. p (vocabulary,)."""
        token = test.token
        assert token is not None
        q = self._sampler.draft(params, i, p)
        shown, left, drawn = {*_largest(p, self.k), token}, None, None
        if test.verdict == REJECTED:
            if not params.greedy:  # there nothing is drawn
                left = self._sampler.leftover(p, params, i)
                left = left / left.sum()
                shown.update(_largest(left, self.k))
            drawn = self._drawn(ended, left)
            shown.add(drawn.token)
        return replace(
            test,
            text=self._texts.piece(token),
            p=float(p[token]),
            q=float(q[token]),
            candidates=self._candidates(shown, p, q, left),
            rejection=float((p - q).clamp(min=0).sum()),
            drawn=drawn,
        )

    def _bonus(self, params: SampleRow, p: torch.Tensor, ended: Draft) -> Examined:
        drawn = self._drawn(ended, None if params.greedy else p)
        shown = {*_largest(p, self.k), drawn.token}
        return Examined(
            position=ended[0], verdict=BONUS, candidates=self._candidates(shown, p, None, None), drawn=drawn
        )

    def _drawn(self, ended: Draft, over: torch.Tensor | None) -> Drawn:
        """The token that ended the pass, drawn from `over` (vocabulary,); None: it was the likeliest."""
        token, draw, text = ended[1], ended[5], self._texts.piece(ended[1])
        if over is None:
            return Drawn(token=token, text=text)
        share = float(over[token])
        return Drawn(token=token, text=text, draw=_number(draw), share=share, below=float(over[:token].sum()))

    def _candidates(
        self, tokens: Iterable[int], p: torch.Tensor, q: torch.Tensor | None, left: torch.Tensor | None
    ) -> list[Candidate]:
        """Distributions are (vocabulary,). By p, the lower id first among equals."""
        below = (p if left is None else left).cumsum(0)
        found = []
        for token in sorted(tokens, key=lambda token: (-float(p[token]), token)):
            found.append(
                Candidate(
                    token=token,
                    text=self._texts.piece(token),
                    p=float(p[token]),
                    q=0.0 if q is None else float(q[token]),
                    left=0.0 if left is None else float(left[token]),
                    below=float(below[token - 1]) if token else 0.0,
                )
            )
        return found


def _sampling(params: SampleRow) -> Sampling:
    penalties = params.penalties
    return Sampling(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=penalties.repetition if penalties else None,
        presence_penalty=penalties.presence if penalties else None,
        frequency_penalty=penalties.frequency if penalties else None,
    )


def _largest(p: torch.Tensor, k: int) -> list[int]:
    """The k likeliest tokens of p (vocabulary,), none that can't come."""
    values, tokens = p.sort(descending=True, stable=True)
    return tokens[:k][values[:k] > 0].tolist()


def _number(draw: float) -> float | None:
    return draw if math.isfinite(draw) else None
