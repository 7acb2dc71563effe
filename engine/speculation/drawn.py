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
    """logits (n, tokens) of n requests, none of them greedy, at `positions` (n) → weights (n, tokens) float64 that q is
    proportional to, and what was drawn from them (n)."""
    weights = weights_of(logits, list(rows), np.arange(len(rows)))
    return weights, inverse_cdf(weights, uniform(seeds_array([row.seed for row in rows]), positions, DRAFT))
