"""What preemption costs: tokens computed again as a share of all computed, and time spent swapping as a share of all
step time. Named in words once it is most of what anybody would notice. Pure functions of the history, no Qt."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ui.history import Columns, History

STEPS = 50  # looked back on: a few seconds at serving speed
THRASH = 0.2  # of the work, from which on the pool is too small for what runs in it


class Pressure(NamedTuple):
    """Shares, 0..1."""

    recomputed: float  # of the tokens
    swapping: float  # of the time

    @property
    def thrashes(self) -> bool:
        return max(self) > THRASH

    @property
    def words(self) -> str:
        """'thrashing: 34 % of the tokens computed again, 3 % of the time swapping'; "" without any."""
        parts = [
            f"{100 * share:.0f} % of the {what}"
            for share, what in ((self.recomputed, "tokens computed again"), (self.swapping, "time swapping"))
            if round(100 * share)
        ]
        return ("thrashing: " if self.thrashes else "") + ", ".join(parts)


def lately(history: History, step: int) -> Pressure:
    """Over the last STEPS steps up to `step`."""
    columns = history.slice(max(history.first, step - STEPS + 1), step)
    tokens, time = int(tokens_of(columns).sum()), int(time_of(columns).sum())
    return Pressure(
        int(columns.recomputed.sum()) / tokens if tokens else 0.0, int(columns.swap.sum()) / time if time else 0.0
    )


def shares(columns: Columns) -> NDArray[np.float64]:
    """(2, steps): both shares of each step."""
    return np.stack(
        [columns.recomputed / np.maximum(1, tokens_of(columns)), columns.swap / np.maximum(1, time_of(columns))]
    )


def tokens_of(columns: Columns) -> NDArray:
    """Tokens computed by each step, drafts included."""
    return columns.decode + columns.accepted + columns.rejected + columns.prefill


def time_of(columns: Columns) -> NDArray:
    return columns.schedule + columns.draft + columns.swap + columns.forward + columns.sample + columns.commit
