"""A draft model's draw of the next token: under the request's own temperature and filters, by numbers of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from engine.distribution import inverse_cdf, weights_of
from engine.random_numbers import DRAFT, seeds_array, uniform
from engine.sampler import SampleRow


def draw(
    logits: torch.Tensor, rows: Sequence[SampleRow], positions: NDArray[np.int64]
) -> tuple[torch.Tensor, NDArray[np.int64]]:
    """logits (n, tokens) of n requests, none of them greedy, at `positions` (n) → q (n, tokens) float32, a distribution
    each, and what was drawn from it (n).

    Drawn from the very numbers that are kept, and that verification will divide by: a token that float64 leaves a
    chance, and float32 none, would be examined with q = 0.
    """
    weights = weights_of(logits, list(rows), np.arange(len(rows)))
    q = (weights / weights.sum(dim=1, keepdim=True)).float()
    return q, inverse_cdf(q.double(), uniform(seeds_array([row.seed for row in rows]), positions, DRAFT))
