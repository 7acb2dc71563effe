"""Logits in, tokens out: greedy or sampled, and with each row's drafts accepted or not.

Temperature 0 is greedy: the likeliest token has probability 1, and the p of a drafted token is then 1 or 0, the
probability it was really decided with. Random numbers belong to (seed, position), so what a request draws doesn't
depend on the batch it is in. What penalties make of logits is in `penalties`, what temperature and filters do in
`distribution`, which draft stays in `speculation.accept`; here they meet. Knows logits, never sequences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from engine.distribution import inverse_cdf, weights_of
from engine.draft_rows import DraftRows
from engine.penalties import Penalties, Place, penalise
from engine.random_numbers import ACCEPT, RESAMPLE, SAMPLE, seeds_array, uniform
from engine.records import ACCEPTED, BONUS, DISCARDED, ORIGINS, REJECTED, RESAMPLED, SAMPLED
from engine.speculation.accept import ExactRule, leading

# Below this a temperature is taken for 0, as in vLLM: its distribution is one-hot but for ties.
GREEDY_BELOW = 1e-5
# Logits put into float64 at a time: 32 MiB. More would leave every cache and spare nothing.
_CHUNK = 4 << 20

_FROM_ACCEPTED, _FROM_RESAMPLED, _FROM_BONUS = (ORIGINS.index(o) for o in ("accepted", "resampled", "bonus"))


class BadLogits(ArithmeticError):
    """The model gave NaN or infinite logits: no token can be honestly drawn from them."""


@dataclass(slots=True)
class SampleRow:
    """One sequence in a pass: its drafts, and how it is sampled. It owns len(drafts) + 1 rows of the logits."""

    drafts: list[int] = field(default_factory=list)
    q: list[float] = field(default_factory=list)  # draft probability of each drafted token; empty = 1 each
    temperature: float = 0.0
    top_k: int = 0  # 0 = off
    top_p: float = 1.0  # 1 = off
    min_p: float = 0.0  # 0 = off
    seed: int = 0
    position: int = 0  # of the first token to be produced, counted from the first prompt token
    q_rows: torch.Tensor | None = None  # (γ, vocabulary): whole draft distributions; None = one-hot
    penalties: Penalties | None = None  # with the tokens before `position` counted; None = none

    def __post_init__(self) -> None:
        if self.q and len(self.q) != len(self.drafts):
            raise ValueError(f"{len(self.drafts)} drafted tokens with {len(self.q)} probabilities")
        if self.q_rows is None and any(q != 1.0 for q in self.q):
            raise ValueError("drafts with q below 1 need q_rows: the residual is not known without them")

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


@dataclass(slots=True)
class Outcome:
    """What one row came to. `drafts`: records.DRAFT without its sequence, the ending token included."""

    tokens: list[int]  # accepted drafts, then the resampled, bonus or sampled token
    accepted: int
    origins: list[int]  # indices into records.ORIGINS, one a token
    drafts: list[tuple[int, int, int, float, float, float]]  # position, token, verdict, p, q, draw


@dataclass(slots=True)
class Decision:
    """One row decided, before it is told as tokens and verdicts."""

    accepted: int
    last: int  # the ending token
    last_p: float
    last_q: float  # the draft's probability of it; 0 for a bonus, where nothing was drafted
    last_draw: float
    p: list[float]  # of each drafted token
    q: list[float]
    draws: list[float]


class Sampler:
    """Decides a whole batch. `rule` is the acceptance rule; anything but the exact one is for tests."""

    def __init__(self, vocabulary: int, rule: ExactRule | None = None):
        self.vocabulary = vocabulary
        self._rule = rule or ExactRule()

    def sample(self, logits: torch.Tensor, rows: list[SampleRow], rule: ExactRule | None = None) -> list[Outcome]:
        """logits (N, vocabulary) with N = Σ (drafts + 1), rows in order. `rule`: what decides of all drafts in this
        pass, those of greedy rows too, instead of the sampler's own. Raises BadLogits."""
        wanted = sum(len(row.drafts) + 1 for row in rows)
        if logits.shape != (wanted, self.vocabulary):
            raise ValueError(f"logits {tuple(logits.shape)} for {wanted} rows of {self.vocabulary}")
        if not rows:
            return []
        best = likeliest(logits)
        starts = np.cumsum([0] + [len(row.drafts) + 1 for row in rows])[:-1]
        outcomes: list[Outcome | None] = [None] * len(rows)
        sampled = [i for i, row in enumerate(rows) if not row.greedy]
        for i, row in enumerate(rows):
            if row.greedy:
                ours = slice(starts[i], starts[i] + len(row.drafts) + 1)
                found = best[ours] if row.penalties is None else likeliest(penalised(logits[ours], [row]))
                outcomes[i] = outcome(row, _decide_greedy(row, found, rule))
        for group in _groups(sampled, rows, max(1, _CHUNK // self.vocabulary)):
            decisions = self._decide_sampled(logits, [rows[i] for i in group], starts[group], rule or self._rule)
            for i, decision in zip(group, decisions, strict=True):
                outcomes[i] = outcome(rows[i], decision)
        return [outcome for outcome in outcomes if outcome is not None]

    def weights(self, logits: torch.Tensor, row: SampleRow) -> torch.Tensor:
        """What the first n tokens of a row are decided with: unnormalised probabilities (n, vocabulary) float64 of
        logits (n, vocabulary).

        Of a greedy request they are the model's own, temperature 1 without filters: the one-hot distribution that
        greedy decides with would show nothing of what else came near.
        """
        likeliest(logits)
        if row.greedy:
            row = replace(row, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        return weights_of(penalised(logits, [row]), [row], np.zeros(len(logits), dtype=np.int64))

    def draft(self, row: SampleRow, i: int, like: torch.Tensor) -> torch.Tensor:
        """The distribution (vocabulary,) that a row's i-th drafted token was drawn from; `like` has type and device."""
        if row.q_rows is not None:
            return _draft_row(row, i).to(like.device)
        return torch.zeros_like(like).index_fill_(0, torch.tensor([row.drafts[i]], device=like.device), 1.0)

    def leftover(self, p: torch.Tensor, row: SampleRow, i: int) -> torch.Tensor:
        """What is drawn from where a row's i-th drafted token was rejected, (vocabulary,) not renormalised; p there."""
        drafted = torch.tensor([row.drafts[i]], device=p.device)
        q = None if row.q_rows is None else _draft_row(row, i)[None].to(p.device)
        return self._residual(p[None], drafted, q)[0]

    def _decide_sampled(
        self, logits: torch.Tensor, rows: list[SampleRow], starts: NDArray[np.int64], rule: ExactRule
    ) -> list[Decision]:
        """Rows with temperature > 0. One pass over the vocabulary for all, none in Python."""
        lengths = np.array([len(row.drafts) for row in rows])
        gamma = int(lengths.max())
        first = np.cumsum(lengths + 1) - (lengths + 1)  # of each row, within `own`
        own = np.repeat(starts - first, lengths + 1) + np.arange(len(rows) + lengths.sum())
        owner = np.repeat(np.arange(len(rows)), lengths + 1)
        chosen = logits[torch.from_numpy(own).to(logits.device)]  # (n, vocabulary)
        weights = weights_of(penalised(chosen, rows), rows, owner)  # (n, vocabulary) float64
        totals = weights.sum(dim=1)  # (n,)

        # tests of the drafted tokens, all (rows, γ), padded
        drafted = np.zeros((len(rows), gamma), dtype=np.int64)
        q = np.ones((len(rows), gamma))
        real = np.arange(gamma) < lengths[:, None]
        drafted[real] = list(chain.from_iterable(row.drafts for row in rows))
        q_rows = DraftRows([row.q_rows for row in rows])
        if q_rows.drawn.any():
            which, place = np.nonzero(real & q_rows.drawn[:, None])
            q[which, place] = q_rows.of(which, place, drafted[which, place])
        at = np.where(real, first[:, None] + np.arange(gamma), 0)
        p = _pick(weights, at, drafted) / _host(totals)[at]
        seeds = seeds_array([row.seed for row in rows])
        positions = np.array([row.position for row in rows])
        draws = uniform(seeds[:, None], positions[:, None] + np.arange(gamma), ACCEPT)
        accepted = leading(rule.accepts(p, q, draws) & real)

        # the ending token of each row, from p or from the residual
        rejected = accepted < lengths
        ends = first + accepted
        final = weights[torch.from_numpy(ends).to(weights.device)]  # (rows, vocabulary), a copy
        for which in (rejected & ~q_rows.drawn, rejected & q_rows.drawn):
            self._take_residuals(final, totals, np.flatnonzero(which), ends, accepted, drafted, q_rows)
        last_draws = uniform(seeds, positions + accepted, np.where(rejected, RESAMPLE, SAMPLE))
        last = inverse_cdf(final, last_draws)
        last_p = _pick(weights, ends, last) / _host(totals)[ends]
        last_q = np.zeros(len(rows))
        if len(which := np.flatnonzero(rejected & q_rows.drawn)):
            last_q[which] = q_rows.of(which, accepted[which], last[which])
        columns = (accepted, last, last_p, last_q, last_draws, lengths, p, q, draws)
        return [
            Decision(end, token, end_p, end_q, end_draw, p_row[:n], q_row[:n], draw_row[:n])
            for end, token, end_p, end_q, end_draw, n, p_row, q_row, draw_row in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]

    def _take_residuals(
        self,
        final: torch.Tensor,
        totals: torch.Tensor,
        which: NDArray[np.int64],
        ends: NDArray[np.int64],
        accepted: NDArray[np.int64],
        drafted: NDArray[np.int64],
        q_rows: DraftRows,
    ) -> None:
        """Put the residual in place of p for the rows `which`, where a draft was rejected, of all or none of which q is
        known. `final` (rows, vocabulary) is changed."""
        if not len(which):
            return
        here = torch.from_numpy(which).to(final.device)
        p = final[here] / totals[torch.from_numpy(ends[which]).to(final.device)][:, None]
        tokens = torch.from_numpy(drafted[which, accepted[which]]).to(final.device)
        q = q_rows.whole(which, accepted[which]).to(p.device) if q_rows.drawn[which[0]] else None
        final[here] = self._residual(p, tokens, q)

    def _residual(self, p: torch.Tensor, drafted: torch.Tensor, q: torch.Tensor | None) -> torch.Tensor:
        """The rule's; all arguments as it has them. Nothing is left only if p and q agree to rounding, and then a draw
        from p is the right one."""
        residual = self._rule.residual(p, drafted, q)
        empty = residual.sum(dim=1, keepdim=True) <= 0
        return torch.where(empty, p, residual)


def likeliest(logits: torch.Tensor) -> NDArray[np.int64]:
    """The token of the largest logit of each row (N,), the lowest id among equals. Raises BadLogits.

    Both maxima carry a NaN through, and +inf or a row of −inf is its own maximum, so this one pass over the
    vocabulary also is the check. A single −inf is a token of probability zero and fine.
    """
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        array = logits.detach().numpy()
        best = array.argmax(axis=1)  # 6 times faster than torch's on one core: 0.3 ms for 32 × 49,152
        values = array[np.arange(len(best)), best]
    else:
        top = logits.max(dim=1)
        best, values = top.indices.cpu().numpy(), top.values.float().cpu().numpy()
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        refuse(float(values[bad[0]]), len(bad), len(values))
    return best


def refuse(value: float, bad: int, rows: int) -> NoReturn:
    """Of `rows` rows of logits `bad` have no largest one that is a number; of the first of them it is `value`."""
    raise BadLogits(
        f"the model gave logits that are no numbers ({value}) in {bad} of {rows} rows; "
        "the weights may be damaged, or the precision too low: try float32"
    )


def _groups(sampled: list[int], rows: list[SampleRow], room: int) -> Iterator[list[int]]:
    """Rows whose logits, `room` of them or one row's, are worked on at a time."""
    group: list[int] = []
    held = 0
    for i in sampled:
        size = len(rows[i].drafts) + 1
        if group and held + size > room:
            yield group
            group, held = [], 0
        group.append(i)
        held += size
    if group:
        yield group


def penalised(logits: torch.Tensor, rows: list[SampleRow]) -> torch.Tensor:
    """Logits (n, vocabulary) of `rows`, in order, with their penalties taken; themselves where nobody has any. Of the
    last row n may end before its drafts do."""
    places = penalised_places(rows, len(logits))
    return penalise(logits, places) if places else logits


def penalised_places(rows: list[SampleRow], count: int) -> list[Place]:
    """Of the first `count` rows of their logits, those that penalties are taken at."""
    places: list[Place] = []
    first = 0
    for row in rows:
        if row.penalties is not None:
            own = min(len(row.drafts) + 1, count - first)
            places += [(first + i, row.penalties, row.drafts[:i]) for i in range(own)]
        first += len(row.drafts) + 1
    return places


def _decide_greedy(row: SampleRow, best: NDArray[np.int64], rule: ExactRule | None) -> Decision:
    """One-hot p: a draft is accepted when it is the likeliest token, without a draw; or as `rule` has it."""
    drafts = row.drafts
    equal = [int(token == ours) for token, ours in zip(drafts, best.tolist(), strict=False)]
    accepted = equal.index(0) if 0 in equal else len(drafts)
    draws = [math.nan] * len(drafts)
    if rule is not None and drafts:
        uniforms = uniform(seeds_array([row.seed]), row.position + np.arange(len(drafts)), ACCEPT)
        draws = uniforms.tolist()
        p = np.array(equal, dtype=np.float64)
        accepted = int(leading(rule.accepts(p, np.ones(len(drafts)), uniforms)[None])[0])
    return Decision(
        accepted=accepted,
        last=int(best[accepted]),
        last_p=1.0,
        last_q=0.0,
        last_draw=math.nan,
        p=[float(e) for e in equal],
        q=[1.0] * len(drafts) if row.q_rows is None else _draft_probabilities(row),
        draws=draws,
    )


def outcome(row: SampleRow, decision: Decision) -> Outcome:
    """Tokens with their origins, and the verdict on each drafted token."""
    count, accepted = len(row.drafts), decision.accepted
    tokens = [*row.drafts[:accepted], decision.last]
    if not count:
        return Outcome(tokens, 0, [SAMPLED], [])
    whole = accepted == count
    verdicts = [ACCEPTED] * accepted + ([] if whole else [REJECTED]) + [DISCARDED] * (count - accepted - 1)
    draws = decision.draws[: accepted + 1] + [math.nan] * (count - accepted - 1)  # discarded: none was drawn
    drafts = [
        (row.position + i, row.drafts[i], verdicts[i], decision.p[i], decision.q[i], draws[i]) for i in range(count)
    ]
    end = (row.position + accepted, decision.last, BONUS if whole else RESAMPLED)
    drafts.insert(accepted if whole else accepted + 1, (*end, decision.last_p, decision.last_q, decision.last_draw))
    origins = [_FROM_ACCEPTED] * accepted + [_FROM_BONUS if whole else _FROM_RESAMPLED]
    return Outcome(tokens, accepted, origins, drafts)


def _pick(weights: torch.Tensor, at: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    device = weights.device
    return _host(weights[torch.from_numpy(at).to(device), torch.from_numpy(tokens).to(device)])


def _host(tensor: torch.Tensor) -> NDArray:
    return tensor.cpu().numpy()


def _draft_row(row: SampleRow, i: int) -> torch.Tensor:
    """The distribution (vocabulary,) that its i-th draft was drawn from."""
    return DraftRows([row.q_rows]).whole(np.zeros(1, dtype=np.int64), np.array([i]))[0]


def _draft_probabilities(row: SampleRow) -> list[float]:
    count = len(row.drafts)
    return DraftRows([row.q_rows]).of(np.zeros(count, dtype=np.int64), np.arange(count), np.array(row.drafts)).tolist()
