"""How often drafted tokens are right: by place in the draft, or by how much matched before one that was looked up.

What all sequences show is the measure, and each sequence multiplies it by how much better or worse it did itself. A
token counts when it is examined; those after a rejection tell nothing. The latest count most: of all tokens the last
`_WINDOW`, and when the last few say clearly otherwise, only they.

Deeper places are seldom examined when drafts are short. What was measured there fades with time, towards what the place
before has; so one that drafted badly once is tried again. The first place doesn't fade: there a probe asks anew.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import sqrt

from engine.config import MAX_DRAFT

Result = tuple[int, int, int, int]
"""Of a draft that was verified: its sequence, its tokens, those accepted, and those that matched before it if it was
looked up, else 0."""

_CLASS_ENDS = (1, 2, 3, 4, 6, 9, 14)  # tokens that matched: to 1, to 2, …, beyond 14
_LOOKED_UP = MAX_DRAFT  # the first class of those
CLASSES = _LOOKED_UP + len(_CLASS_ENDS) + 1
_FIRST = {0: 0.6, _LOOKED_UP: 0.4}  # classes that have none before them, and what is thought of them at first
_WEIGHT = 5.0  # tokens, of what is thought of a class before it was examined
_WINDOW = 100  # tokens
_LATEST = 16
_CLEARLY = 2.2  # standard deviations
_FADE, _FADES = 0.94, 10  # what is left of a class that isn't a first one, every so many passes
_OWN_WINDOW = 40  # tokens of one sequence
_OWN_WEIGHT = 4.0  # accepted tokens: until as many were thought right it is mostly taken for one of all
_OWN_FADE = 400  # passes in which half of it is forgotten while nothing is examined


@dataclass(slots=True)
class _Own:
    right: float = 0.0  # tokens accepted of those examined
    thought: float = 0.0  # how many would have been by what all show
    seen: int = 0  # the pass it was last examined in


def _classes(matched: int) -> list[int]:
    """Of each token of a draft. One more token that is right is one more that matched."""
    if not matched:
        return list(range(MAX_DRAFT))
    return [_LOOKED_UP + bisect_left(_CLASS_ENDS, matched + i) for i in range(MAX_DRAFT)]


_MOST = _CLASS_ENDS[-1] + 1
_TABLE = [_classes(matched) for matched in range(_MOST + 1)]


class Acceptance:
    """Of one proposer.

    Attributes:
        rates: (CLASSES) share of examined tokens that are accepted.
    """

    def __init__(self) -> None:
        self._right = [0.0] * CLASSES  # of the window
        self._examined = [0.0] * CLASSES
        self._latest = [0.0] * CLASSES  # share of the latest few
        self._own: dict[int, _Own] = {}
        self._pass = 0
        self.rates = [0.0] * CLASSES
        self._refresh()

    def each(self, matched: int, count: int = MAX_DRAFT) -> list[float]:
        """(count) the rate of each token of a draft, by the tokens that matched before it, 0 if none did."""
        rates = self.rates
        return [rates[kind] for kind in _TABLE[matched if matched < _MOST else _MOST][:count]]

    def of(self, seq: int) -> float:
        """By what factor a sequence is better than all are."""
        own = self._own.get(seq)
        if own is None:
            return 1.0
        keep = self._kept(own)
        return (own.right * keep + _OWN_WEIGHT) / (own.thought * keep + _OWN_WEIGHT)

    def age(self, seq: int) -> int:
        """Passes since it was examined."""
        own = self._own.get(seq)
        return self._pass - (own.seen if own is not None else 0)

    def learn(self, results: list[Result]) -> None:
        """What a pass came to."""
        self._pass += 1
        if self._pass % _FADES == 0:
            for kind in range(CLASSES):
                if kind not in _FIRST:
                    self._right[kind] *= _FADE
                    self._examined[kind] *= _FADE
        elif not results:
            return
        right, examined = [0] * CLASSES, [0] * CLASSES
        for seq, count, accepted, matched in results:
            kinds = _TABLE[min(matched, _MOST)][: min(accepted + 1, count)]
            self._count_own(seq, kinds, accepted)
            for kind in kinds:
                examined[kind] += 1
            for kind in kinds[:accepted]:
                right[kind] += 1
        for kind, count in enumerate(examined):
            if count:
                self._count(kind, right[kind], count)
        self._refresh()

    def forget(self, seq: int) -> None:
        self._own.pop(seq, None)

    def forget_all(self) -> None:
        """Sequences, not the rates of all of them together."""
        self._own.clear()

    def _count(self, kind: int, right: int, count: int) -> None:
        keep = (1 - 1 / _WINDOW) ** count
        latest = self._latest[kind] if self._examined[kind] else right / count
        latest += (1 - (1 - 1 / _LATEST) ** count) * (right / count - latest)
        right = self._right[kind] * keep + right
        examined = self._examined[kind] * keep + count
        rate = right / examined
        if examined > 3 * _LATEST:
            noise = sqrt(max(rate * (1 - rate), 0.02) / (2 * _LATEST))  # an average that forgets has half the variance
            if abs(latest - rate) > _CLEARLY * noise:
                right, examined = latest * _LATEST, float(_LATEST)
        self._right[kind], self._examined[kind], self._latest[kind] = right, examined, latest

    def _count_own(self, seq: int, kinds: list[int], accepted: int) -> None:
        own = self._own.get(seq)
        if own is None:
            own = self._own[seq] = _Own()
        keep = self._kept(own) * (1 - 1 / _OWN_WINDOW) ** len(kinds)
        own.right = own.right * keep + min(accepted, len(kinds))
        own.thought = own.thought * keep + sum(self.rates[kind] for kind in kinds)
        own.seen = self._pass

    def _kept(self, own: _Own) -> float:
        return 0.5 ** ((self._pass - own.seen) / _OWN_FADE)

    def _refresh(self) -> None:
        rate, rates = 0.0, self.rates
        for kind, (right, examined) in enumerate(zip(self._right, self._examined, strict=True)):
            rate = (right + _WEIGHT * _FIRST.get(kind, rate)) / (examined + _WEIGHT)
            rates[kind] = rate
