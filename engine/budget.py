"""The token budget that the engine finds itself: as much of a prompt in a step as the streams beside it can bear.

While streams decode, the gap between two of their tokens is one step, and a chunk of a prompt in it makes it longer.
`StepCost` learns from every step what steps take; `AutoBudget` turns that into the tokens of the coming step. Neither
reads a clock: the same times give the same budgets. What was tried with the cost's shape:

- A line in tokens alone: of a decode row the logits are computed, of a prompt's tokens none but the last's, so a long
  time of decoding made prompts look a quarter dearer than they are.
- Least squares that forget alike in all directions: after a minute of equal decode steps the price of a token was
  noise. Here a direction that no step tells of keeps what it had, within `LOOSEST`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from engine.config import AUTO, LiveSettings
from engine.records import StepBudget
from engine.runner.batch import PackedBatch
from engine.sequence import Sequence

AIM = 0.75  # of the allowed gap, for a step: the rest is for what goes on between steps, and for noise
# Of what the decodes take alone. A prompt gets that much even where no room is left, so as not to starve; decodes that
# just keep to AIM are not brought over the gap by it.
STRETCH = 0.25
LEAST = 8  # tokens of prompts in a step, however slow
# ms; a step that no stream waits for. Longer ones compute a token no cheaper, and commands are obeyed between steps.
UNWATCHED = 400.0
# Tokens. A step that large keeps any processor's arithmetic busy, so a larger one only takes more memory.
MOST = 2048
GRAIN = 8  # tokens; so that the number doesn't flicker

# what a step may have cost before anything is known: ms for the step, a token, a row of logits, 1,000 attended pairs
_GUESS = (5.0, 1.0, 0.2, 0.1)
_UNSURE = 3.0  # relative error of the guess
_ATTENTION = 2.0  # times as long as its arithmetic would take at the speed of products; 1 to 3 on what was measured
_NOISE = 0.1  # relative, of a measured step
_DRIFT = 0.05  # relative, a step: the whole machine becomes faster or slower
_SHIFT = 0.01  # relative, a step: one of the prices does
LOOSEST = 0.3  # relative error that a price can come to have for want of steps that tell of it
_OUTLIER = 1.5  # times what was expected: a step beyond counts as that much
_LOWEST = 0.2  # of what it was at first: how far a price can fall and still move as easily
_SMALLEST = 1e-6  # ms

# Steps measured before the first request: rows of so many tokens, each up to four times the work of the one before.
# Those that may take over SEED_MOST ms are left out.
SEEDS = ([1], [1] * 8, [32], [128])
SEED_MOST = 400.0

Work = NDArray[np.float64]  # (4): 1, tokens, rows of logits, 1,000 attended pairs


def work_of(batch: PackedBatch) -> Work:
    """What a step over `batch` has to do."""
    lengths = np.diff(batch.row_starts)
    # a row's last token attends to its whole context, the one before to one less, …
    pairs = float((lengths * batch.contexts - lengths * (lengths - 1) // 2).sum())
    return np.array((1.0, len(batch.tokens), len(batch.logit_index), pairs / 1e3))


class StepCost:
    """What a step takes: so much for the step, and for each token, row of logits and 1,000 attended pairs.

    A Kalman filter over the four prices. Between two steps all may have changed together (another process takes a
    core) by `_DRIFT`, each alone by `_SHIFT`. A step far off what was expected counts as `_OUTLIER` times that, so a
    spike moves little; but when the next is off on the same side it is believed, and the one after entirely.
    """

    def __init__(self) -> None:
        self._prices = np.array(_GUESS)
        self._spread = np.diag((_UNSURE * self._prices) ** 2)  # (4, 4) covariance of the prices
        self._first = self._prices  # before the first step
        self._streak = 0  # outliers in a row, negative when below

    @property
    def prices(self) -> NDArray[np.float64]:
        """(4) ms."""
        return self._prices.copy()

    @property
    def line(self) -> tuple[float, float]:
        """ms of a step, and of each token of it whose logits are wanted."""
        step, token, logits, _ = self._prices.tolist()
        return step, token + logits

    def expected(self, work: Work) -> float:
        """ms."""
        return float(self._prices @ work)

    def learn(self, work: Work, ms: float) -> None:
        """A step with `work` took `ms`."""
        if ms <= 0:
            return  # a clock that stood still says nothing
        expected = self.expected(work)
        self._streak = self._count(ms / expected)
        reach = _OUTLIER ** max(1, abs(self._streak))
        self._loosen(_DRIFT * 4.0 ** max(0, abs(self._streak) - 1))
        self._update(work, min(max(ms, expected / reach), expected * reach) - expected, _NOISE * expected)

    def seed(
        self, run: Callable[[list[int]], tuple[Work, float]], pairs_per_token: float, tokens: int, rows: int
    ) -> None:
        """Learn from steps run for that, of no more tokens in a row and no more rows than said: `run` takes the rows'
        tokens, → their work and ms. `pairs_per_token`: arithmetic of 1,000 attended pairs over a token's; short
        rows don't tell."""
        ms = 0.0
        for lengths in SEEDS:
            if max(lengths) > tokens or len(lengths) > rows or 4 * ms > SEED_MOST:
                continue
            work, ms = run(lengths)
            work[3] = 0
            self._update(work, ms - self.expected(work), _NOISE * ms)
        self._prices[3] = _ATTENTION * pairs_per_token * self._prices[1]
        self._spread[3], self._spread[:, 3] = 0, 0
        self._spread[3, 3] = (0.5 * self._prices[3]) ** 2
        self._first = self._prices

    def _count(self, ratio: float) -> int:
        if 1 / _OUTLIER <= ratio <= _OUTLIER:
            return 0
        side = 1 if ratio > 1 else -1
        return self._streak + side if self._streak * side > 0 else side

    def _loosen(self, drift: float) -> None:
        """What may have changed since the step before: all prices by `drift`, each by `_SHIFT`."""
        scale = np.maximum(self._prices, _LOWEST * self._first)  # so that a price near 0 can come back
        shift = np.where(self._spread.diagonal() < (LOOSEST * scale) ** 2, _SHIFT * scale, 0)
        self._spread += np.diag(shift**2) + np.outer(self._prices, self._prices) * drift**2

    def _update(self, work: Work, surprise: float, noise: float) -> None:
        along = self._spread @ work
        gain = along / (work @ along + noise**2)
        self._prices = np.maximum(self._prices + gain * surprise, _SMALLEST)
        self._spread -= np.outer(gain, along)


class AutoBudget:
    """The budget of a step.

    Attributes:
        cost: what it has learnt.
    """

    def __init__(self) -> None:
        self.cost = StepCost()

    def of(self, settings: LiveSettings, high: int, running: list[Sequence], waiting: list[Sequence]) -> StepBudget:
        """For the coming step, drafts proposed. `high`: the setting's own limit."""
        if settings.token_budget != AUTO:
            return StepBudget(tokens=settings.token_budget)
        if not settings.chunked_prefill:
            return StepBudget(tokens=high)  # a prompt is computed whole
        context = 0  # tokens that the rows that decode hold together
        behind: list[Sequence] = []
        for sequence in running:
            known = len(sequence.tokens)
            if sequence.computed == known - 1 and known > sequence.prompt_tokens:  # it decodes
                context += known
            else:
                behind.append(sequence)
        decodes = len(running) - len(behind)
        prompt = behind[0] if behind else None
        if prompt is None and waiting and len(running) < settings.max_batch:
            prompt = waiting[0]
        found = self.found(
            decodes,
            context,
            prompt.computed if prompt else 0,
            AIM * settings.max_gap if decodes else UNWATCHED,
            min(high, MOST),
        )
        if prompt is not None:
            return found
        # room is kept for prompts, not from drafts
        wished = decodes + sum([len(sequence.drafts) for sequence in running])
        if wished <= found.tokens:
            return found
        return StepBudget(tokens=min(wished, high), goal=found.goal, fixed=found.fixed, each=found.each)

    def found(self, decodes: int, context: int, behind: int, goal: float, most: int) -> StepBudget:
        """The tokens with which a step takes `goal` ms: those of `decodes` rows that hold `context` tokens together,
        and those of a prompt of which `behind` are computed."""
        step, token, logits, pairs = self.cost.prices.tolist()
        pair = pairs / 1e3
        alone = step + (token + logits) * decodes + pair * context
        room = max(goal - alone, STRETCH * alone)
        # n tokens of a prompt take first·n + pair·n²/2
        first = token + pair * behind
        fitting = int(min(2 * room / (first + sqrt(first * first + 2 * pair * room)), most))
        chunk = max(LEAST, fitting // GRAIN * GRAIN)
        each = first + pair * chunk / 2
        return StepBudget(
            tokens=max(decodes, min(decodes + chunk, most)), goal=goal, fixed=alone - each * decodes, each=each
        )

    def learn(self, work: Work, ns: int) -> None:
        self.cost.learn(work, ns / 1e6)
