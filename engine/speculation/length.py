"""The draft length that looks after itself: of every row as many drafted tokens as pay, in this very step.

A drafted token is worth the chance that it is accepted, which is the product of those before it and its own; it costs
what the pass takes longer for it, and its drafting. Tokens a second are the aim, over all steps, so a token pays when
its worth is more than what as much time has brought lately: the rate R (Dinkelbach 1967: maximise tokens − R·time, and
let R be what comes of it). Of all rows the tokens are taken in the order of their worth, and what it comes to is looked
at for every number of them, not only until one doesn't pay: a pass over four tokens can take less than one over three.

What isn't tried isn't known, so a little is spent on trying. `PROBING` of the time is put by, and when it pays for that
a row that doesn't draft, the one that wasn't examined for longest, gets a token; from as much as `TRYING`, another
number of tokens is taken whose time isn't sure. So drafts that stopped paying are taken up again when they pay, and
what both cost is at most the sum of the two shares, 1.5 % of the time.

How often tokens are right is in `acceptance`, what passes take in `pass_times`. Reads no clock and draws no number: the
same times and verdicts give the same lengths. What is output never depends on them: a length is settled before a token
is drawn, and only of drafts that are certain (q = 1) is a part dropped after that.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from engine.config import MAX_DRAFT
from engine.speculation.acceptance import Acceptance, Result
from engine.speculation.pass_times import DraftTimes, PassTimes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PROBING, TRYING = 0.01, 0.005  # of the time
_SAVED = 500  # passes: no more is put by than that share of so many
_STALE = 8  # passes after which a row is worth a probe
_RATE = 40  # passes that the rate is an average of
_EVERY = 4  # passes between two that another number of tokens may be tried in
_OPTIMIST = 1.0  # standard deviations that a pass may take less than expected, when another number of tokens is tried
_HIGHEST = 0.995  # rate that is believed; so that of a row the earlier token is always worth more
_DEPTHS = np.arange(MAX_DRAFT)


class DraftLengths:
    """`line`: → ms of a pass, and of each token of it, as far as that is known when it is first asked for."""

    def __init__(self, line: Callable[[], tuple[float, float]]):
        self._line = line
        self._times: PassTimes | None = None
        self._tokens = self._time = 1.0  # of late, ms: what its tokens would have taken without drafts, and did
        self._to_probe = self._to_try = 0.0  # ms put by
        self._latest = 1  # tokens of the latest pass
        self._count = 0  # passes
        self._known: dict[str, tuple[Acceptance, DraftTimes]] = {}  # by draft method
        self.renew("")

    def renew(self, method: str) -> None:
        """Another proposer drafts, by `method`: what is known is what another one by it showed."""
        self.acceptance, self.draft_times = self._known.setdefault(method, (Acceptance(), DraftTimes()))
        self.acceptance.forget_all()

    # --- what was measured ---

    def examined(self, results: list[Result]) -> None:
        """What the drafts of a pass came to."""
        self.acceptance.learn(results)

    def drafted(self, deepest: int, tokens: int, ms: float) -> None:
        """Drafts for which `tokens` tokens were asked together, of one row at most `deepest`, took `ms`."""
        self.draft_times.learn(deepest, tokens, ms)

    def passed(self, tokens: int, ms: float) -> None:
        """A pass over `tokens` tokens, each with its logits, took `ms` without drafting."""
        self.times.learn(tokens, ms)

    def forget(self, seq: int) -> None:
        self.acceptance.forget(seq)

    @property
    def times(self) -> PassTimes:
        if self._times is None:
            self._times = PassTimes(*self._line())
        return self._times

    # --- what is chosen ---

    def plan(self, seqs: list[int], limits: list[int], others: int) -> list[int]:
        """The draft length of each of these sequences, at most its limit, by a drafter whose tokens cost time.
        `others`: rows of the coming pass that won't draft."""
        return self._choose(seqs, self._worth(seqs, limits, [0] * len(seqs)), others, self.draft_times)

    def trim(
        self, seqs: list[int], lengths: list[int], matched: list[int], others: int, planned: bool
    ) -> list[int]:
        """How many tokens to keep of drafts that are there and certain. `matched`: tokens that matched before those
        that were looked up, 0 of others. `planned`: some of this pass's drafts were planned."""
        if seqs:
            return self._choose(seqs, self._worth(seqs, lengths, matched), others, None, not planned)
        if not planned:
            time = float(self.times.expected(np.array((others,)))[0])
            self._settle(time, time)
        return []

    def _worth(self, seqs: list[int], limits: list[int], matched: list[int]) -> Floats:
        """(rows, MAX_DRAFT) expected accepted tokens of each drafted one, 0 beyond the limits."""
        worth = np.minimum(self.acceptance.each(matched) * self.acceptance.of(seqs)[:, None], _HIGHEST).cumprod(axis=1)
        worth[np.array(limits)[:, None] <= _DEPTHS] = 0
        return worth

    def _choose(
        self, seqs: list[int], worth: Floats, others: int, drafting: DraftTimes | None, settles: bool = True
    ) -> list[int]:
        options = _Options(worth, len(seqs) + others, drafting, self.times)
        rate = self._tokens / self._time * options.plain / options.verify[0]
        value = options.tokens - rate * options.time
        best = int(np.argmax(value))
        expected, time = float(options.tokens.flat[best]), float(options.time.flat[best])
        self._to_probe = min(self._to_probe + PROBING * time, _SAVED * PROBING * time)
        self._to_try = min(self._to_try + TRYING * time, _SAVED * TRYING * time)
        self._count += 1
        taken = best if self._count % _EVERY else self._tried(options, value, rate, best)
        chosen = options.lengths(taken)
        if taken == best:
            self._probe(seqs, options, chosen, rate)
        self._latest = options.plain + int(chosen.sum())
        if settles:
            self._settle(expected / options.plain * float(options.verify[0]), time)
        return chosen.tolist()

    def _settle(self, tokens: float, time: float) -> None:
        """A pass is expected to take `time`, and its tokens would without drafts."""
        keep = 1 - 1 / _RATE
        self._tokens, self._time = self._tokens * keep + tokens, self._time * keep + time

    def _tried(self, options: _Options, value: Floats, rate: float, best: int) -> int:
        """`best`, or what may be better than it, if what that seems to lose was put by."""
        unsure = self.times.unsure(options.plain + np.arange(len(options.verify)), self._latest)
        spared = options.verify * (1 - np.exp(-_OPTIMIST * unsure))
        hoped = value + rate * spared[options.drafted]
        other = int(np.argmax(hoped))
        loss = float(value.flat[best] - value.flat[other]) / rate  # ms
        if options.drafted.flat[other] == options.drafted.flat[best] or loss > self._to_try:
            return best
        self._to_try -= loss
        return other

    def _probe(self, seqs: list[int], options: _Options, chosen: Ints, rate: float) -> None:
        """Give the row that wasn't examined for longest its first token, if that was put by; `chosen` is changed."""
        first = options.worth[:, 0]
        idle = np.flatnonzero((chosen == 0) & (first > 0)).tolist()
        if not idle:
            return
        age, row = max((self.acceptance.age(seqs[i]), -i) for i in idle)
        row = -row
        if age < _STALE:
            return
        more = chosen.copy()
        more[row] = 1
        cost = max(0.0, options.time_of(more) - options.time_of(chosen) - float(first[row]) / rate)
        if cost <= self._to_probe:
            self._to_probe -= cost
            chosen[row] = 1


class _Options:
    """What a pass could draft: tokens in the order of their worth, as many as there are and down to any depth. (Every
    depth takes a model that drafts another turn, so a row's third token can cost more than another row's first.)

    Arrays are (depths, n): of the n tokens that are worth most those no deeper than that.
    Attributes: `worth` (rows, MAX_DRAFT); `plain`: tokens of the pass without drafts; `verify`: ms of it, by tokens
    drafted; `drafted` tokens, `tokens` expected and `time` in ms, of each option.
    """

    def __init__(self, worth: Floats, plain: int, drafting: DraftTimes | None, times: PassTimes):
        self.worth, self.plain, self._drafting, self._times = worth, plain, drafting, times
        order = np.argsort(-worth, axis=None, kind="stable")
        gains = worth.ravel()[order]
        count = int(np.count_nonzero(gains > 0))
        order, gains = order[:count], gains[:count]
        self._rows, self._depths = order // MAX_DRAFT, order % MAX_DRAFT + 1
        deepest = int(self._depths.max(initial=1))
        self._limits = np.arange(1, deepest + 1) if drafting is not None else np.array((deepest,))
        within = self._depths <= self._limits[:, None]
        self.drafted = np.zeros((len(self._limits), count + 1), dtype=np.int64)
        np.cumsum(within, axis=1, out=self.drafted[:, 1:])
        self.tokens = np.full((len(self._limits), count + 1), float(plain))
        self.tokens[:, 1:] += np.cumsum(gains * within, axis=1)
        self.verify = times.expected(np.arange(plain, plain + count + 1))
        self.time = self.verify[self.drafted]
        if drafting is not None:
            self.time = self.time + drafting.expected(self._limits[:, None], self.drafted)

    def lengths(self, option: int) -> Ints:
        """(rows)"""
        limit, count = divmod(option, self.drafted.shape[1])
        rows = self._rows[:count][self._depths[:count] <= self._limits[limit]]
        return np.bincount(rows, minlength=len(self.worth))

    def time_of(self, lengths: Ints) -> float:
        """ms"""
        drafted = int(lengths.sum())
        drafting = self._drafting
        draft = 0.0 if drafting is None else float(drafting.expected(np.array(lengths.max()), np.array(drafted)))
        return float(self._times.expected(np.array((self.plain + drafted,)))[0]) + draft
