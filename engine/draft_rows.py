"""The distributions that a batch's drafts were drawn from, one below the other, so that no row is looked at by itself.

They come as drafters leave them: in any float type, not quite summing to 1. What is given out is float64 and does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class DraftRows:
    """`drawn` (rows,): which rows have them; the drafts of the others were certain."""

    def __init__(self, q_rows: Sequence[torch.Tensor | None]):
        """Of each row (γ, vocabulary), γ ≥ 1, or None."""
        self.drawn = np.array([q is not None for q in q_rows], dtype=bool)
        found = [q for q in q_rows if q is not None]
        if not found:
            return
        sizes = np.array([0 if q is None else len(q) for q in q_rows])
        self._first = np.cumsum(sizes) - sizes  # of each row, within all
        self._all = torch.cat(found)  # (Σ γ, vocabulary)
        self._totals = self._all.sum(dim=1, dtype=torch.float64)  # (Σ γ,)

    def whole(self, rows: Ints, drafts: Ints) -> torch.Tensor:
        """(n, vocabulary) of n drafts, those of `rows` with the numbers `drafts`."""
        at = self._at(rows, drafts)
        return self._all[at].double() / self._totals[at][:, None]

    def of(self, rows: Ints, drafts: Ints, tokens: Ints) -> NDArray[np.float64]:
        """(n,): the probability that each of n drafts had of being the token."""
        at = self._at(rows, drafts)
        p = self._all[at, torch.from_numpy(tokens).to(at.device)].double() / self._totals[at]
        return p.cpu().numpy()

    def _at(self, rows: Ints, drafts: Ints) -> torch.Tensor:
        return torch.from_numpy(self._first[rows] + drafts).to(self._all.device)
