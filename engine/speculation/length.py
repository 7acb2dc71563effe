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

Asking for drafts costs time too, also where they are looked up and nothing of them is kept. Where that is more than the
drafts have spared lately, they are asked for in some passes only, from which it is seen when they spare more.

How often tokens are right is in `acceptance`, what passes take in `pass_times`. Reads no clock and draws no number: the
same times and verdicts give the same lengths. What is output never depends on them: a length is settled before a token
is drawn, and only of drafts that are certain (q = 1) is a part dropped after that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from engine.speculation.acceptance import Acceptance, Result
from engine.speculation.pass_times import DraftTimes, PassTimes

PROBING, TRYING = 0.01, 0.005  # of the time
_SAVED = 500  # passes: no more is put by than that share of so many
_STALE = 8  # passes after which a row is worth a probe
_RATE = 40  # passes that the rate is an average of
_EVERY = 4  # passes between two that another number of tokens may be tried in
_ASKING, _RESTING = 4, 8  # passes in a row in which drafts are asked for, and then not, when that doesn't pay
_LATELY = 16  # passes that what is spared by drafts, and what asking takes, are averages of
_OPTIMIST = 1.0  # standard deviations that a pass may take less than expected, when another number of tokens is tried
_HIGHEST = 0.995  # rate that is believed; so that of a row the earlier token is always worth more


class DraftLengths:
    """`line`: → ms of a pass, and of each token of it, as far as that is known when it is first asked for."""

    def __init__(self, line: Callable[[], tuple[float, float]]):
        self._line = line
        self._times: PassTimes | None = None
        self._tokens = self._time = 1.0  # of late, ms: what its tokens would have taken without drafts, and did
        self._to_probe = self._to_try = 0.0  # ms put by
        self._latest = 1  # tokens of the latest pass
        self._count = 0  # passes
        self._gain = 0.0  # ms that the drafts chosen last are expected to spare
        self._known: dict[str, tuple[Acceptance, DraftTimes]] = {}  # by draft method
        self.renew("")

    def renew(self, method: str) -> None:
        """Another proposer drafts, by `method`: what is known is what another one by it showed."""
        self.acceptance, self.draft_times = self._known.setdefault(method, (Acceptance(), DraftTimes()))
        self.acceptance.forget_all()
        self._spared = self._asking = 0.0  # ms a pass lately: by drafts that were looked up, for looking them up
        self._asked = self._rest = 0  # passes: with drafts asked for since the last rest, and of rest that are left

    # --- what was measured ---

    def examined(self, results: list[Result]) -> None:
        """What the drafts of a pass came to."""
        self.acceptance.learn(results)

    def drafted(self, deepest: int, tokens: int, ms: float) -> None:
        """Drafts for which `tokens` tokens were asked together, of one row at most `deepest`, took `ms`."""
        self.draft_times.learn(deepest, tokens, ms)
        self._asking += (min(ms, 2 * self._asking + 0.1) - self._asking) / _LATELY

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

    def rests(self, others: int) -> bool:
        """Whether drafts that are looked up aren't even asked for, in a pass of so many rows."""
        if not self._rest:
            return False
        self._rest -= 1
        self._settle_plain(others)
        return True

    def plan(self, seqs: list[int], limits: list[int], others: int) -> list[int]:
        """The draft length of each of these sequences, at most its limit, by a drafter whose tokens cost time.
        `others`: rows of the coming pass that won't draft."""
        return self._choose(seqs, self._worth(seqs, limits, [0] * len(seqs)), others, self.draft_times)

    def trim(
        self, seqs: list[int], lengths: list[int], matched: list[int], others: int, planned: bool
    ) -> list[int]:
        """How many tokens to keep of drafts that are there and certain. `matched`: tokens that matched before those
        that were looked up, 0 of others. `planned`: some of this pass's drafts were planned."""
        if not seqs and not planned:
            self._settle_plain(others)
            self._weigh(0.0)
        if not seqs:
            return []
        kept = self._choose(seqs, self._worth(seqs, lengths, matched), others, None, not planned)
        if not planned:
            self._weigh(self._gain)
        return kept

    def _weigh(self, spared: float) -> None:
        """Drafts were asked for in this pass and are expected to spare so many ms: whether to ask in the next ones."""
        self._spared += (spared - self._spared) / _LATELY
        self._asked += 1
        if self._asked >= _ASKING and self._spared < self._asking:
            self._asked, self._rest = 0, _RESTING

    def _worth(self, seqs: list[int], limits: list[int], matched: list[int]) -> list[list[float]]:
        """Of each row, up to its limit, the expected accepted tokens of each drafted one."""
        found = []
        for seq, limit, match in zip(seqs, limits, matched, strict=True):
            factor, chance, row = self.acceptance.of(seq), 1.0, []
            for rate in self.acceptance.each(match, limit):
                rate *= factor
                chance *= rate if rate < _HIGHEST else _HIGHEST
                row.append(chance)
            found.append(row)
        return found

    def _choose(
        self,
        seqs: list[int],
        worth: list[list[float]],
        others: int,
        drafting: DraftTimes | None,
        settles: bool = True,
    ) -> list[int]:
        options = _Options(worth, len(seqs) + others, drafting, self.times)
        plain = options.verify[0]
        rate = self._tokens / self._time * options.plain / plain
        best = options.best(rate)
        expected, time = best.tokens, best.time
        self._gain = (expected - options.plain) / rate - (time - plain)
        self._to_probe = min(self._to_probe + PROBING * time, _SAVED * PROBING * time)
        self._to_try = min(self._to_try + TRYING * time, _SAVED * TRYING * time)
        self._count += 1
        taken = best if self._count % _EVERY else self._tried(options, rate, best)
        chosen = options.lengths(taken)
        if taken is best:
            self._probe(seqs, options, chosen, rate)
        self._latest = options.plain + sum(chosen)
        if settles:
            self._settle(expected / options.plain * plain, time)
        return chosen

    def _settle_plain(self, rows: int) -> None:
        """A pass without drafts."""
        time = float(self.times.expected(np.array((rows,)))[0])
        self._settle(time, time)

    def _settle(self, tokens: float, time: float) -> None:
        """A pass is expected to take `time`, and its tokens would without drafts."""
        keep = 1 - 1 / _RATE
        self._tokens, self._time = self._tokens * keep + tokens, self._time * keep + time

    def _tried(self, options: _Options, rate: float, best: _Option) -> _Option:
        """`best`, or what may be better than it, if what that seems to lose was put by."""
        unsure = self.times.unsure(options.plain + np.arange(len(options.verify)), self._latest)
        spared = (np.array(options.verify) * (1 - np.exp(-_OPTIMIST * unsure))).tolist()
        other = options.best(rate, spared)
        loss = (best.tokens - other.tokens) / rate + other.time - best.time  # ms
        if other.drafted == best.drafted or loss > self._to_try:
            return best
        self._to_try -= loss
        return other

    def _probe(self, seqs: list[int], options: _Options, chosen: list[int], rate: float) -> None:
        """Give the row that wasn't examined for longest its first token, if that was put by; `chosen` is changed."""
        idle = [i for i, count in enumerate(chosen) if not count and options.worth[i]]
        if not idle:
            return
        age, row = max((self.acceptance.age(seqs[i]), -i) for i in idle)
        row = -row
        if age < _STALE:
            return
        more = chosen[:]
        more[row] = 1
        cost = max(0.0, options.time_of(more) - options.time_of(chosen) - options.worth[row][0] / rate)
        if cost <= self._to_probe:
            self._to_probe -= cost
            chosen[row] = 1


class _Option(NamedTuple):
    """Of all tokens that could be drafted the `drafted` that are worth most, of those no deeper than `limit`."""

    limit: int
    drafted: int
    tokens: float  # expected of the pass
    time: float  # ms


class _Options:
    """What a pass could draft: tokens in the order of their worth, as many as there are and down to any depth. (Every
    depth takes a model that drafts another turn, so a row's third token can cost more than another row's first.)

    In Python's own numbers: there are some dozens, looked at in every step, and an array's operation takes as long as
    a dozen of theirs.

    Attributes: `worth` of each row's tokens; `plain`: tokens of the pass without drafts; `verify`: ms of it, by tokens
    drafted.
    """

    def __init__(self, worth: list[list[float]], plain: int, drafting: DraftTimes | None, times: PassTimes):
        self.worth, self.plain, self._drafting = worth, plain, drafting
        # (−worth, row, depth): of a row the earlier token comes first, since it is worth more
        self._order = sorted((-w, row, depth) for row, ws in enumerate(worth) for depth, w in enumerate(ws, 1))
        deepest = max(map(len, worth), default=0)
        self._limits = range(1, deepest + 1) if drafting is not None else (deepest,)
        self.verify: list[float] = times.expected(np.arange(plain, plain + len(self._order) + 1)).tolist()

    def best(self, rate: float, spared: list[float] | None = None) -> _Option:
        """The option whose tokens less `rate` times its time are most. `spared`: ms that a pass may take less, by
        tokens drafted."""
        verify, drafting = self.verify, self._drafting
        none = found = _Option(0, 0, float(self.plain), verify[0])
        highest = none.tokens - rate * (none.time - (spared[0] if spared else 0.0))
        for limit in self._limits:
            start, each = drafting.line(limit) if drafting is not None else (0.0, 0.0)
            tokens = float(self.plain)
            for drafted, loss in enumerate([loss for loss, _, depth in self._order if depth <= limit], 1):
                tokens -= loss
                time = verify[drafted] + (start + each * drafted)
                value = tokens - rate * (time - spared[drafted] if spared else time)
                if value > highest:
                    highest, found = value, _Option(limit, drafted, tokens, time)
        return found

    def lengths(self, option: _Option) -> list[int]:
        """(rows)"""
        lengths, left = [0] * len(self.worth), option.drafted
        for _, row, depth in self._order:
            if not left:
                break
            if depth <= option.limit:
                lengths[row] += 1
                left -= 1
        return lengths

    def time_of(self, lengths: list[int]) -> float:
        """ms"""
        drafted = sum(lengths)
        return self.verify[drafted] + (self._drafting.expected(max(lengths), drafted) if self._drafting else 0.0)
