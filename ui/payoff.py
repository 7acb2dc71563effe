"""Whether drafting pays at a moment: figures measured from the steps just before it.

A *drafting step* has decode rows, some with drafts, and no prefill; a *plain step* has decode rows only. The ratio is
the tokens/s of all steps without prefill under the γ in force, whether something was drafted in them or not, over what
plain steps at the same batch would have given. The time of those comes from plain steps seen lately at a similar batch
("measured"), else from a straight line through the times of recent decode steps over their token counts ("derived").
Knows arrays and formulas, no Qt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.formulas import expected_accepted, expected_tokens_per_pass, speedup

LEAST_PASSES = 8  # fewer say nothing of a rate
LEAST_PLAIN = 5  # plain steps whose mean is a step time, not an accident
SIMILAR = 0.25  # a plain step counts when its batch is within a quarter of the drafting steps' mean
MANY = 50  # passes or steps after which a draft that never fits will not begin to
HARDLY = 0.05  # α below which a draft and these texts have nothing to do with each other

State = Literal["off", "method_off", "idle", "no_matches", "resting", "too_few", "known"]


class StepColumns(Protocol):
    """The columns of the history that are read here; times in ns, counts of tokens."""

    step: NDArray
    gamma: NDArray
    prefill: NDArray
    decode: NDArray
    accepted: NDArray
    rejected: NDArray
    schedule: NDArray
    draft: NDArray
    swap: NDArray
    forward: NDArray
    sample: NDArray
    commit: NDArray


@dataclass(frozen=True)
class Verified:
    """Drafts by position (MAX_DRAFT,): examined, accepted; and how many passes accepted 0, 1, … MAX_DRAFT of them."""

    examined: NDArray
    accepted: NDArray
    lengths: NDArray


@dataclass(frozen=True)
class Costs:
    """Where time goes, ns per emitted token. `verify`: of the target's pass and the verification what was spent on
    tokens that came out; `rejected`: on drafts that didn't. `other`: scheduling, tables, copies."""

    draft: float
    verify: float
    rejected: float
    other: float

    @property
    def total(self) -> float:
        return self.draft + self.verify + self.rejected + self.other


@dataclass(frozen=True)
class Payoff:
    """Times are ns, means.

    ratio: speed-up against not drafting; None while unknown. steps: those that it is taken over.
    formula: (E[accepted] + 1)·T_p / (γ·T_q + T_v(γ + 1)) with measured α and times.
    batch: decode rows a step. share: of those rows, had drafts.
    tokens_per_row: tokens a row got per step, rows and steps without drafts included.
    tokens_per_pass: accepted + 1, over rows that had drafts; expected: (1 − α^(γ+1))/(1 − α), the mean length for γ.
    draft, verify, pass_tokens: of a drafting step: proposing, all else, and how many tokens it computes.
    """

    state: State
    ratio: float | None = None
    formula: float | None = None
    steps: int = 0
    alpha: float = 0.0
    draft_length: float = 0.0
    passes: int = 0
    batch: float = 0.0
    share: float = 0.0
    tokens_per_row: float = 1.0
    tokens_per_pass: float = 1.0
    expected: float = 1.0
    plain: float = 0.0
    plain_from: Literal["measured", "derived"] = "measured"
    plain_steps: int = 0
    draft: float = 0.0
    verify: float = 0.0
    pass_tokens: float = 0.0
    costs: Costs | None = None
    break_even: float | None = None

    @property
    def hopeless(self) -> bool:
        """Enough was drafted to say that next to nothing of it is ever kept."""
        return self.passes >= MANY and self.alpha < HARDLY


def measure(
    columns: StepColumns, verified: Verified, gamma: int, method: str, first: int = 0, adaptive: bool = False
) -> Payoff:
    """Figures of the steps in `columns` from step `first` on; those before it, under other drafts, only tell what
    plain steps take. `verified` counts over the same steps from `first` on."""
    if method == "off":
        return Payoff(state="method_off")
    if gamma == 0:
        return Payoff(state="off")
    drafted = columns.accepted.astype(np.int64) + columns.rejected
    pure = (columns.prefill == 0) & (columns.decode > 0)
    mine = pure & (columns.gamma == gamma) & (columns.step >= first)
    drafting, plain = mine & (drafted > 0), pure & (drafted == 0)
    passes, steps = int(verified.lengths.sum()), int(np.count_nonzero(mine))
    batch = float(columns.decode[mine].mean()) if steps else 0.0
    if passes == 0:
        state: State = "idle" if not steps else "resting" if adaptive else "no_matches"
        return Payoff(state=state, steps=steps, batch=batch)
    kept, tried = int(verified.accepted.sum()), int(verified.examined.sum())
    alpha, length = kept / max(tried, 1), float(drafted[(columns.step >= first)].sum()) / passes
    common = {
        "steps": steps,
        "batch": batch,
        "alpha": alpha,
        "draft_length": length,
        "passes": passes,
        "tokens_per_pass": 1 + kept / passes,
        "expected": expected_tokens_per_pass(alpha, length),  # type: ignore[arg-type]  # a mean is no integer
    }
    if passes < LEAST_PASSES or not drafting.any():
        return Payoff(state="too_few", **common)
    total = columns.schedule + columns.draft + columns.swap + columns.forward + columns.sample + columns.commit
    rows = float(columns.decode[mine].sum())
    took, spent = float(total[drafting].mean()), float(columns.draft[drafting].mean())
    share = min(1.0, float(drafted[mine].sum()) / max(length, 1e-9) / rows)
    common |= {
        "share": share,
        "tokens_per_row": (rows + float(columns.accepted[mine].sum())) / rows,
        "draft": spent,
        "verify": took - spent,
        "pass_tokens": float((columns.decode + drafted)[drafting].mean()),
        "costs": _costs(columns, drafted, mine),
    }
    tokens = columns.decode + drafted
    base, source, seen = plain_time(total - columns.draft, columns.decode, tokens, plain, pure, batch)
    if base is None:
        return Payoff(state="too_few", **common)
    mean = float(total[mine].mean())
    return Payoff(
        state="known",
        ratio=speedup(common["tokens_per_row"], base, 0, mean),  # type: ignore[arg-type]
        formula=speedup(expected_accepted(alpha, length) + 1, base, spent, took - spent),  # type: ignore[arg-type]
        plain=base,
        plain_from=source,
        plain_steps=seen,
        break_even=break_even(mean / base, share, length),
        **common,
    )


def _costs(columns: StepColumns, drafted: NDArray, chosen: NDArray) -> Costs:
    """A pass is paid for by the tokens in it, each the same: those rejected or discarded bore their part of it."""
    emitted = float((columns.decode + columns.accepted)[chosen].sum())
    passes = (columns.forward + columns.sample)[chosen].astype(float)
    lost = passes * columns.rejected[chosen] / (columns.decode + drafted)[chosen]
    other = (columns.schedule + columns.swap + columns.commit)[chosen]
    return Costs(
        draft=float(columns.draft[chosen].sum()) / emitted,
        verify=float((passes - lost).sum()) / emitted,
        rejected=float(lost.sum()) / emitted,
        other=float(other.sum()) / emitted,
    )


def plain_time(
    total: NDArray, rows: NDArray, tokens: NDArray, plain: NDArray, pure: NDArray, batch: float
) -> tuple[float | None, Literal["measured", "derived"], int]:
    """The time of a plain step over `batch` rows, where it comes from and how many plain steps told it; None when
    nothing tells."""
    near = plain & (np.abs(rows - batch) <= max(0.5, SIMILAR * batch))
    seen = int(np.count_nonzero(near))
    if seen >= LEAST_PLAIN:
        return float(total[near].mean()), "measured", seen  # a mean, as of the steps it is compared with
    x, y = tokens[pure].astype(float), total[pure].astype(float)
    if len(x) < LEAST_PASSES or np.ptp(x) < 1:
        return None, "derived", 0
    slope, base = np.polyfit(x, y, 1)
    if slope < 0:  # noise: more tokens never take less time
        slope, base = 0.0, float(np.median(y))
    # the line's end must stay a possible step time: never under half of the fastest step seen
    return max(float(base + slope * batch), 0.5 * float(y.min())), "derived", 0


def break_even(cost: float, share: float, length: float) -> float | None:
    """The α at which a step, `cost` plain ones long, gives as many tokens as it costs; `share` of its rows have drafts
    of `length` tokens. 0 when it costs nothing, None when no α < 1 is enough."""
    if cost <= 1:
        return 0.0
    if 1 + share * length < cost:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if 1 + share * expected_accepted(middle, length) < cost:  # type: ignore[arg-type]
            low = middle
        else:
            high = middle
    return high
