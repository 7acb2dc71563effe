"""Whether drafting pays at a moment: figures measured from the steps just before it.

A *drafting step* has decode rows, some with drafts, and no prefill; a *plain step* has decode rows only. The
ratio is the tokens/s of the drafting steps over what plain steps at the same batch would have given. The time of
those comes from plain steps seen lately at a similar batch ("measured"), else from a straight line through the
times of recent decode steps over their token counts ("derived"). Knows arrays and formulas, no Qt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.formulas import expected_accepted, expected_tokens_per_pass

LEAST_PASSES = 8  # fewer say nothing of a rate
LEAST_PLAIN = 3  # plain steps whose median is a step time, not an accident
SIMILAR = 0.25  # a plain step counts when its batch is within a quarter of the drafting steps' mean


class StepColumns(Protocol):
    """The columns of the history that are read here; times in ns, counts of tokens."""

    prefill: NDArray
    decode: NDArray
    accepted: NDArray
    rejected: NDArray
    schedule: NDArray
    draft: NDArray
    forward: NDArray
    sample: NDArray
    commit: NDArray


@dataclass(frozen=True)
class Payoff:
    """Times are ns, means over the drafting steps.

    ratio: speed-up against not drafting; None while unknown.
    tokens_per_row: tokens a decode row got per drafting step, rows without drafts included.
    tokens_per_pass: accepted + 1, over rows that had drafts.
    expected: (1 − α^(γ+1))/(1 − α) with the mean draft length for γ.
    """

    state: Literal["off", "method_off", "idle", "no_matches", "too_few", "known"]
    ratio: float | None = None
    alpha: float = 0.0
    draft_length: float = 0.0
    passes: int = 0
    tokens_per_row: float = 1.0
    tokens_per_pass: float = 1.0
    expected: float = 1.0
    plain: float = 0.0
    plain_from: Literal["measured", "derived"] = "measured"
    draft: float = 0.0
    verify: float = 0.0
    break_even: float | None = None


def measure(columns: StepColumns, examined: NDArray, accepted: NDArray, gamma: int, method: str) -> Payoff:
    """Figures of the steps in `columns`; `examined` and `accepted` count drafts by position over the same steps."""
    if method == "off":
        return Payoff(state="method_off")
    if gamma == 0:
        return Payoff(state="off")
    drafted = columns.accepted.astype(np.int64) + columns.rejected
    pure = (columns.prefill == 0) & (columns.decode > 0)
    drafting, plain = pure & (drafted > 0), pure & (drafted == 0)
    passes = int(examined[0]) if len(examined) else 0
    if passes == 0:
        return Payoff(state="no_matches" if np.any(columns.decode > 0) else "idle")
    kept, tried = int(np.sum(accepted)), int(np.sum(examined))
    alpha, length = kept / tried, float(np.sum(drafted)) / passes
    common = {
        "alpha": alpha,
        "draft_length": length,
        "passes": passes,
        "tokens_per_pass": 1 + kept / passes,
        "expected": expected_tokens_per_pass(alpha, length),  # type: ignore[arg-type]  # a mean is no integer
    }
    if passes < LEAST_PASSES or not drafting.any():
        return Payoff(state="too_few", **common)
    rows = columns.decode[drafting].astype(float)
    total = columns.schedule + columns.draft + columns.forward + columns.sample + columns.commit
    took, spent = float(total[drafting].mean()), float(columns.draft[drafting].mean())
    per_row = float((rows + columns.accepted[drafting]).sum() / rows.sum())
    tokens = columns.decode + drafted
    base, source = plain_time(total - columns.draft, columns.decode, tokens, plain, pure, float(rows.mean()))
    if base is None:
        return Payoff(state="too_few", tokens_per_row=per_row, draft=spent, verify=took - spent, **common)
    drafting_rows = _drafting_share(columns, drafting, drafted, length)
    return Payoff(
        state="known",
        ratio=per_row * base / took,
        tokens_per_row=per_row,
        plain=base,
        plain_from=source,
        draft=spent,
        verify=took - spent,
        break_even=break_even(took / base, drafting_rows, length),
        **common,
    )


def plain_time(
    total: NDArray, rows: NDArray, tokens: NDArray, plain: NDArray, pure: NDArray, batch: float
) -> tuple[float | None, Literal["measured", "derived"]]:
    """The time of a plain step over `batch` rows, and where it comes from; None when nothing tells."""
    near = plain & (np.abs(rows - batch) <= max(0.5, SIMILAR * batch))
    if np.count_nonzero(near) >= LEAST_PLAIN:
        return float(np.median(total[near])), "measured"
    x, y = tokens[pure].astype(float), total[pure].astype(float)
    if len(x) < LEAST_PASSES or np.ptp(x) < 1:
        return None, "derived"
    slope, base = np.polyfit(x, y, 1)
    if slope < 0:  # noise: more tokens never take less time
        slope, base = 0.0, float(np.median(y))
    # the line's end must stay a possible step time: never under half of the fastest step seen
    return max(float(base + slope * batch), 0.5 * float(y.min())), "derived"


def break_even(cost: float, share: float, length: float) -> float | None:
    """The α at which a drafting step, `cost` plain steps long, gives as many tokens as it costs; `share` of its
    rows have drafts of `length` tokens. 0 when it costs nothing, None when no α < 1 is enough."""
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


def _drafting_share(columns: StepColumns, drafting: NDArray, drafted: NDArray, length: float) -> float:
    """Share of the decode rows that had drafts: drafted tokens ÷ mean draft length ÷ rows."""
    rows = float(columns.decode[drafting].sum())
    return min(1.0, float(drafted[drafting].sum()) / max(length, 1e-9) / rows)
