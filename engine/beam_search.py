"""Beam search: of all continuations of a prompt, follow the W likeliest at once and keep the W best that ended.

Glossary, used so everywhere:
  lane         one of W places, 0 to W−1, in which a beam lives; the engine holds a sequence for each
  beam         a live continuation: its tokens since the prompt and their summed log-probability
  candidate    a beam with one more token
  parent       the lane whose beam a candidate continues
  ended        a candidate whose token ends the sequence, or that is as long as is allowed: nobody continues it
  hypothesis   an ended candidate that was kept, with its score
  score        summed log-probability ÷ tokens ^ length_penalty; the ending token counts as one
  died         a beam none of whose candidates lives on

A step ranks the candidates of all beams together. Those among the first W that ended become hypotheses (and the best W
hypotheses of the whole search are kept); the first W that did not end are the next beams. With e ending tokens, e·W
candidates can have ended at most, so the first (1 + e)·W hold W that did not, and no less will do: of one beam's
likeliest tokens all of these may be, which is why every beam has to give that many. Where nothing ends a sequence but
its length, transformers takes 2·W, and so it is here: the count decides nothing then, since all end at once.

It is over when nothing can improve (see `_improvable`), when all candidates have ended, or, with early stopping, once
W hypotheses are kept. These are the rules of transformers' generate, whose best sequence this finds; where two sums
are equal, the earlier rank of the parent goes first, then the lower token, which its top-k leaves open. Sums are
float64, since hundreds of terms are added and near-ties decide.

Lanes are given so that few K/V blocks are copied: a beam's best continuation stays in the beam's lane, and further ones
take lanes of beams that died. So `parents[parents[lane]] == parents[lane]`: who is copied from stays where it is. Only
where fewer than before live on (a vocabulary of a few tokens) may a beam move, so that lanes in use are the first ones.

Knows tokens and log-probabilities: no sequences, no blocks, no model. Width 1 is greedy search but for its end: it
goes on after its first hypothesis while the score could improve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from engine.config import MAX_BEAMS, MAX_LENGTH_PENALTY

IDLE = -1  # in a step's parents and tokens: nobody lives in this lane

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, slots=True)
class Candidates:
    """One beam's likeliest next tokens, likeliest first, the lower token first among equals."""

    tokens: NDArray[np.int64]  # (n,)
    logprobs: NDArray[np.float64]  # (n,)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """An ended continuation, its ending token included."""

    tokens: tuple[int, ...]
    logprob: float
    score: float
    lane: int  # where its parent lived
    stopped: bool  # by its last token; else by its length


@dataclass(frozen=True, slots=True)
class BeamStep:
    """What a step decided. `parents` and `tokens` go by lane: whose beam it continues and with which token, or IDLE."""

    parents: list[int]
    tokens: list[int]
    ended: list[Hypothesis]  # kept ones that ended in this step, best first
    died: list[int]  # lanes; another beam's child may live there now
    over: bool  # nobody lives on: all parents are IDLE


@dataclass(frozen=True, slots=True)
class _Beam:
    tokens: tuple[int, ...]
    logprob: float
    rank: int  # among the beams of its step


@dataclass(frozen=True, slots=True)
class _Candidate:
    parent: int
    token: int
    logprob: float
    ends: bool


class BeamSearch:
    """The search after one prompt. Starts with one empty beam in lane 0, which gives the first step's candidates.

    `early_stopping`: False stops when a heuristic sees no improvement, "never" only when none is possible, True also
    as soon as `width` hypotheses are kept.
    """

    def __init__(
        self,
        width: int,
        max_new_tokens: int,
        eos_ids: Sequence[int] | frozenset[int] = (),
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
    ):
        if not 1 <= width <= MAX_BEAMS:
            raise ValueError(f"{width} beams; 1 to {MAX_BEAMS} are possible")
        if max_new_tokens < 1:
            raise ValueError(f"a search for {max_new_tokens} tokens; at least 1 is needed")
        if not abs(length_penalty) <= MAX_LENGTH_PENALTY:
            raise ValueError(f"a length penalty of {length_penalty}; {-MAX_LENGTH_PENALTY:g} to {MAX_LENGTH_PENALTY:g}")
        if early_stopping not in (True, False, "never"):
            raise ValueError(f"early stopping {early_stopping!r}; it is True, False or 'never'")
        self.width = width
        self.max_new_tokens = max_new_tokens
        self.eos_ids = frozenset(eos_ids)
        self.length_penalty = length_penalty
        self.early_stopping = early_stopping
        self.over = False
        self.length = 0  # tokens of each live beam
        self._beams: dict[int, _Beam] = {0: _Beam((), 0.0, 0)}  # by lane
        self._kept: list[Hypothesis] = []  # best first, at most `width`

    @property
    def lanes(self) -> list[int]:
        """Where a beam lives: the first ones; none once the search is over."""
        return sorted(self._beams)

    @property
    def needed(self) -> int:
        """How many candidates each beam has to give; fewer only where the vocabulary has no more."""
        return max(2, 1 + len(self.eos_ids)) * self.width

    def advance(self, candidates: Mapping[int, Candidates]) -> BeamStep:
        """One token further, from the candidates of every live lane."""
        if self.over:
            raise ValueError("the search is over")
        if sorted(candidates) != self.lanes:
            raise ValueError(f"candidates of lanes {sorted(candidates)}, beams live in {self.lanes}")
        self.length += 1
        ranked = self._rank(candidates)
        ended = self._keep(ranked[: self.width])
        going = [c for c in ranked if not c.ends][: self.width]
        # nobody going on: the length's limit, or a model that gives every other token the probability zero
        self.over = not going or not self._improvable(going[0].logprob)
        if self.early_stopping is True and len(self._kept) == self.width:
            self.over = True
        placed = {} if self.over else self._place(going)
        parents = {c.parent for c in placed.values()}
        died = [lane for lane in self.lanes if lane not in parents]
        self._beams = {
            lane: _Beam((*self._beams[c.parent].tokens, c.token), c.logprob, going.index(c))
            for lane, c in placed.items()
        }
        lanes = range(self.width)
        return BeamStep(
            parents=[placed[lane].parent if lane in placed else IDLE for lane in lanes],
            tokens=[placed[lane].token if lane in placed else IDLE for lane in lanes],
            ended=ended,
            died=died,
            over=self.over,
        )

    def hypotheses(self) -> list[Hypothesis]:
        """What was kept so far, best score first."""
        return list(self._kept)

    def close(self) -> list[Hypothesis]:
        """End the search where it stands, as if its length were the limit: the best of kept and live ones."""
        if not self.over and self.length:
            beams = sorted(self._beams.items(), key=lambda item: item[1].rank)
            self._merge([self._hypothesis(beam.tokens, beam.logprob, lane) for lane, beam in beams])
        self.over = True
        self._beams = {}
        return self.hypotheses()

    def _rank(self, candidates: Mapping[int, Candidates]) -> list[_Candidate]:
        """The likeliest `needed` of all, best first; stable, so that order among equals is the parents' and tokens'."""
        last = self.length == self.max_new_tokens
        found = [
            _Candidate(lane, token, beam.logprob + logprob, last or token in self.eos_ids)
            for lane, beam in sorted(self._beams.items(), key=lambda item: item[1].rank)
            for token, logprob in zip(candidates[lane].tokens.tolist(), candidates[lane].logprobs.tolist(), strict=True)
            if logprob > -math.inf
        ]
        return sorted(found, key=lambda c: -c.logprob)[: self.needed]

    def _keep(self, first: list[_Candidate]) -> list[Hypothesis]:
        """Those of the first W that ended, as far as they are among the W best hypotheses."""
        return self._merge(
            [self._hypothesis((*self._beams[c.parent].tokens, c.token), c.logprob, c.parent) for c in first if c.ends]
        )

    def _merge(self, new: list[Hypothesis]) -> list[Hypothesis]:
        """Those of the new that are kept. The earlier stays among equals."""
        self._kept = sorted([*self._kept, *new], key=lambda h: -h.score)[: self.width]
        return [h for h in self._kept if h in new]

    def _hypothesis(self, tokens: tuple[int, ...], logprob: float, lane: int) -> Hypothesis:
        return Hypothesis(tokens, logprob, self._score(logprob, len(tokens)), lane, tokens[-1] in self.eos_ids)

    def _score(self, logprob: float, length: int) -> float:
        return logprob / length**self.length_penalty

    def _improvable(self, best: float) -> bool:
        """May a beam, the best of which has this summed log-probability, still displace the worst hypothesis?

        Sums only fall, but a positive penalty rewards length, so that a longer sequence may score better than its
        beginning does. "never" takes the length that flatters most, and so never stops too early. The others take
        the present length: transformers' heuristic, which found better texts than the rigorous bound does.
        """
        if len(self._kept) < self.width:
            return True
        rigorous = self.early_stopping == "never" and self.length_penalty > 0
        length = self.max_new_tokens if rigorous else self.length
        return self._score(best, length) > self._kept[-1].score

    def _place(self, going: list[_Candidate]) -> dict[int, _Candidate]:
        """A lane for each of the next beams, given best first: as many as they are, from 0 on."""
        placed: dict[int, _Candidate] = {}
        further = []
        for candidate in going:
            if candidate.parent in placed or candidate.parent >= len(going):
                further.append(candidate)
            else:
                placed[candidate.parent] = candidate
        free = (lane for lane in range(len(going)) if lane not in placed)
        placed.update(zip(free, further, strict=True))
        return placed
