"""Finished requests as columns, so that goodput over a window is two comparisons and not a walk over thousands.

Follows the history's requests, which only grow at their end and drop at their start; holds nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ui.figures import Targets
from ui.latency import KEPT_REQUESTS, FinishedRequest


class Outcomes:
    """Aborted requests and those without a first token are left out, as `figures.met` does."""

    def __init__(self) -> None:
        self._rows = np.zeros((3, 0))  # finish clock (ns), ttft (s), tpot (s; 0 where there was none)
        self._last: FinishedRequest | None = None

    def follow(self, requests: Sequence[FinishedRequest]) -> None:
        """Take those that ended since the last look."""
        if not requests or requests[-1] is self._last:
            return
        new = []
        for request in reversed(requests):
            if request is self._last:
                break
            if not request.aborted and request.ttft is not None:
                new.append((request.finish_clock, request.ttft, request.tpot or 0.0))
        self._last = requests[-1]
        if new:
            rows = np.array(new[::-1]).T
            self._rows = np.concatenate([self._rows, rows], axis=1)[:, -KEPT_REQUESTS:]

    def good(self, since: int, until: int, targets: Targets) -> int:
        """Requests that ended after `since`, up to and with `until` (ns), and met both targets."""
        clock, ttft, tpot = self._rows
        inside = (clock > since) & (clock <= until)
        return int(np.count_nonzero(inside & (ttft <= targets.ttft) & (tpot <= targets.tpot)))
