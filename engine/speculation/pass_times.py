"""What a pass takes by how many tokens it verifies, and what drafting takes: learnt from every step.

A pass over n tokens is no straight line in n: kernels take rows six, four, two at a time, so that four tokens can be
cheaper than three. `budget.StepCost` says about what n tokens take; here is kept by how much each n differs from that,
as a Kalman filter over logarithms. One number more is common to all of them, how fast the machine is just now: another
process that takes a core slows every pass alike, and must not make the n that happens to be in use look dear.
Neighbours are expected to be alike, so what is measured of one tells of the others, less the further they are apart.

Reads no clock: the same times give the same figures.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Tokens of a pass that have a number of their own; between them it is interpolated.
KNOTS = np.array(
    [*range(1, 17), 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512, 1024, 2048, 4096, 8704]
)
_LOG = np.log(KNOTS)
# Relative, all of them.
_ALIKE = 0.3  # the line may be off by that, over a range of tokens
_RANGE = 0.7  # of log tokens: twice as many still tell much of each other
_ROUGH = 0.1  # one n may be off by that and its neighbours not
_NOISE = 0.08  # of a measured pass, at least: how noisy the machine is shows in how far off the last passes were
_SCATTER = 50  # passes that this is an average of
_DRIFT = 0.03  # a pass: the whole machine becomes faster or slower
_FADE, _FADES = 1 / 100, 20  # what was measured of one n is forgotten by that, every so many passes
# Beyond the first `_NEW` passes only each `_SPARE`th of a row of equal ones is learnt from: it takes 20 µs.
_NEW, _SPARE = 100, 3
_SPIKE = 2.5  # standard deviations: a pass beyond counts as that far off
_BELIEVED = 3  # passes in a row that are off on the same side: the machine is another
_LEAP = 0.4  # then it may have changed by that

_PRIOR = _ALIKE**2 * np.exp(-((_LOG[:, None] - _LOG) ** 2) / (2 * _RANGE**2)) + _ROUGH**2 * np.eye(len(KNOTS))


class PassTimes:
    """`fixed` and `each`: ms of a pass, and of each token of it, about."""

    def __init__(self, fixed: float, each: float):
        self._line = max(fixed, 1e-6), max(each, 1e-9)
        count = len(KNOTS)
        self._state = np.zeros(count + 1)  # log of: the machine's speed, then each knot's
        self._spread = np.zeros((count + 1, count + 1))  # covariance
        self._spread[0, 0] = 1.0
        self._spread[1:, 1:] = _PRIOR
        self._streak = 0
        self._scatter = _NOISE
        self._count = self._latest = 0

    def expected(self, tokens: NDArray[np.int64]) -> Floats:
        """(n) ms, of passes over `tokens` (n) tokens."""
        fixed, each = self._line
        off = np.interp(tokens, KNOTS, self._state[1:])
        return (fixed + each * tokens) * np.exp(off + self._state[0])

    def unsure(self, tokens: NDArray[np.int64], beside: int) -> Floats:
        """(n) relative standard deviation of what passes over `tokens` take to what one over `beside` takes."""
        spread = self._spread[1:, 1:]
        along = self._weights(beside)
        towards = spread @ along
        variance = spread.diagonal() + along @ towards - 2 * towards
        return np.interp(tokens, KNOTS, np.sqrt(np.maximum(variance, 0)))

    def learn(self, tokens: int, ms: float) -> None:
        """A pass over `tokens` tokens took `ms`."""
        if ms <= 0:
            return  # a clock that stood still says nothing
        self._count += 1
        if self._count % _FADES == 0:
            self._fade()
        if tokens == self._latest and self._count > _NEW and self._count % _SPARE:
            return
        self._latest = tokens
        spread = self._spread
        spread[0, 0] += _DRIFT**2 + (_LEAP**2 if abs(self._streak) >= _BELIEVED else 0.0)

        measures = np.concatenate(([1.0], self._weights(tokens)))
        along = spread @ measures
        surprise = float(np.log(ms / self.expected(np.array([tokens]))[0]))
        variance = measures @ along + self._scatter**2
        self._scatter += (min(abs(surprise), 1.0) - self._scatter) / _SCATTER
        self._scatter = max(self._scatter, _NOISE)
        reach = _SPIKE * float(np.sqrt(variance))
        side = 0 if abs(surprise) <= reach else 1 if surprise > 0 else -1
        self._streak = self._streak + side if side and self._streak * side >= 0 else side
        self._state += along / variance * min(max(surprise, -reach), reach)
        spread -= np.outer(along, along) / variance

    def _fade(self) -> None:
        spread, keep = self._spread, 1 - _FADE
        self._state[1:] *= keep
        spread[0, 1:] *= keep
        spread[1:, 0] *= keep
        spread[1:, 1:] = spread[1:, 1:] * keep**2 + (1 - keep**2) * _PRIOR

    def _weights(self, tokens: int) -> Floats:
        """(knots) with which `expected` reads them."""
        weights = np.zeros(len(KNOTS))
        after = min(int(np.searchsorted(KNOTS, tokens)), len(KNOTS) - 1)
        if after == 0 or KNOTS[after] <= tokens:
            weights[after] = 1.0
            return weights
        share = (tokens - KNOTS[after - 1]) / (KNOTS[after] - KNOTS[after - 1])
        weights[after - 1], weights[after] = 1 - share, share
        return weights


class DraftTimes:
    """What drafting takes: so much for a pass, for each position that somebody drafts, for each token. ms."""

    def __init__(self) -> None:
        self._prices = [0.0, 0.0, 0.0]
        self._first = np.diag(np.array((1.0, 1.0, 0.3)) ** 2)
        self._spread = self._first.copy()
        self._seen = 0

    def learn(self, deepest: int, tokens: int, ms: float) -> None:
        """Drafts of `tokens` tokens together, the longest of `deepest`, took `ms`."""
        self._seen += 1
        if self._seen > _NEW and self._seen % _SPARE:
            return
        self._spread += (self._first - self._spread) / 200
        work = np.array((1.0, deepest, tokens))
        expected = self.expected(deepest, tokens)
        if self._seen > 3:  # a first draft may compile, and catch up with what it hasn't seen
            ms = min(ms, 2 * expected + 0.1)
        along = self._spread @ work
        gain = along / (work @ along + (0.2 * max(ms, expected) + 0.01) ** 2)
        self._prices = np.maximum(self._prices + gain * (ms - expected), 0).tolist()
        self._spread -= np.outer(gain, along)

    def expected(self, deepest: int, tokens: int) -> float:
        """ms, of drafts as `learn` has them; none of no token."""
        start, each = self.line(deepest)
        return start + each * tokens if tokens else 0.0

    def line(self, deepest: int) -> tuple[float, float]:
        """ms of drafts that deep: before their tokens, and for each."""
        fixed, depth, each = self._prices
        return fixed + depth * deepest, each
