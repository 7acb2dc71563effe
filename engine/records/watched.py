"""What records say of the watched sequence: what might have come next, and how its drafts were decided."""

from __future__ import annotations

import msgspec

from engine.records.commands import Sampling


class TopTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The likeliest next tokens of the watched sequence, after temperature and filters."""

    seq: int
    position: int
    tokens: list[int]
    probabilities: list[float]
    text: list[str] = []


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A token that might have come at a position. `p`: the target's probability of it, after temperature, penalties
    and filters; `q`: the draft's; `left`: its share of max(0, p − q), where that was drawn from. `below`: what all
    tokens of lower ids have together of the distribution that a token was drawn from here."""

    token: int
    text: str
    p: float
    q: float = 0.0
    left: float = 0.0
    below: float = 0.0


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """The token that ended a verification. The number drawn fell on it: below ≤ draw < below + share."""

    token: int
    text: str
    draw: float | None = None  # None: greedy, the likeliest is taken
    share: float = 1.0  # of the distribution that it was drawn from
    below: float = 0.0


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """One position of a verification. A drafted token is accepted if draw · q < p."""

    position: int
    verdict: int  # ACCEPTED, REJECTED, DISCARDED (it was never examined: only the draft's side is told), or BONUS
    token: int | None = None  # drafted; None of a bonus
    text: str = ""
    p: float = 0.0  # of that token
    q: float = 0.0
    draw: float | None = None  # None: greedy, accepted if it is the likeliest
    candidates: list[Candidate] = []  # by p: the target's best and the leftover's, the drafted and the drawn one
    rejection: float = 0.0  # the sum of max(0, p − q): how likely any draft from q was to be rejected here
    drawn: Drawn | None = None  # of a rejection, from max(0, p − q); of a bonus, from p


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """How the drafts of the watched sequence were decided. Of a greedy one p is the model's own, at temperature 1, and
    decides by its largest alone. What an end (a stop, a limit) left out of the output is told here all the same."""

    seq: int
    greedy: bool
    certain: bool  # the draft was deterministic: q is 1 at each of its tokens
    sampling: Sampling = Sampling()  # of the request, every default resolved
    positions: list[Examined]  # of each drafted token, then the bonus if there was one
