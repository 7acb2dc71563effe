"""From logits to the distribution that a token is drawn from, and the draw.

Order of the filters, as in vLLM: temperature; then, on the tempered distribution, min-p (keep tokens with at least
min_p times the likeliest one's probability), top-k (keep the k likeliest), and top-p (of what is left,
renormalised, keep the fewest likeliest whose probabilities reach top_p). Among equal logits the lower token id
counts as the likelier, so that results never depend on a sort's mood.

Probabilities are float64 and not renormalised until the end: 'weights' w with p = w ÷ total. Whole batches at a
time, on the device the logits are on. Knows no drafts and no greedy: temperature is above 0 here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

# Likeliest tokens looked at before a top-p row is sorted whole: 0.95 of a row nearly always lies within them.
_HEAD = 1024


class SamplingParams(Protocol):
    """How a row is sampled; 0 switches top_k and min_p off, 1 top_p."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


def weights_of(logits: torch.Tensor, rows: Sequence[SamplingParams], owner: NDArray[np.int64]) -> torch.Tensor:
    """Unnormalised probabilities (n, vocabulary) float64 of logits (n, vocabulary) after temperature and filters;
    `owner` (n,) names each one's row. The largest weight of a row is 1."""

    def column(values: list[float], dtype: torch.dtype = torch.float64) -> torch.Tensor:  # (n, 1)
        return torch.tensor(values, dtype=dtype, device=logits.device)[torch.from_numpy(owner)][:, None]

    x = logits.double() / column([row.temperature for row in rows])
    x -= x.amax(dim=1, keepdim=True)
    if any(row.min_p > 0 for row in rows):
        lowest = column([math.log(row.min_p) if row.min_p > 0 else -math.inf for row in rows])
        x.masked_fill_(x < lowest, -math.inf)
    if any(row.top_k > 0 for row in rows):
        size = x.shape[1]
        counts = column([min(row.top_k, size) if row.top_k > 0 else size for row in rows], torch.int64)
        limited = torch.nonzero(counts[:, 0] < size)[:, 0]
        x[limited] = _keep_largest(x[limited], counts[limited])
    weights = x.exp_()
    if any(row.top_p < 1 for row in rows):
        shares = column([row.top_p for row in rows])
        limited = torch.nonzero(shares[:, 0] < 1)[:, 0]
        weights[limited] = _keep_share(weights[limited], shares[limited])
    return weights


def _keep_largest(x: torch.Tensor, counts: torch.Tensor, empty: float = -math.inf) -> torch.Tensor:
    """x (n, vocabulary) with all but its counts (n, 1) largest entries made `empty`; lower ids win ties."""
    if not len(x):
        return x
    head = x.topk(int(counts.max()), dim=1).values
    least = head.gather(1, counts - 1)  # (n, 1), the smallest value kept
    above = x > least
    level = x == least
    room = counts - above.sum(dim=1, keepdim=True)  # of those level with the least, this many stay
    if bool((level.sum(dim=1, keepdim=True) > room).any()):
        level &= level.cumsum(dim=1) <= room
    return x.masked_fill(~(above | level), empty)


def _keep_share(weights: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """The fewest largest weights of each row (n, vocabulary) whose sum reaches shares (n, 1) of the row's total."""
    wanted = shares * weights.sum(dim=1, keepdim=True)
    size = weights.shape[1]
    head = weights.topk(min(_HEAD, size), dim=1).values.cumsum(dim=1)
    if bool((head[:, -1:] < wanted).any()):
        head = weights.sort(dim=1, descending=True).values.cumsum(dim=1)
    counts = (head < wanted).sum(dim=1, keepdim=True) + 1
    return _keep_largest(weights, counts.clamp(max=size), empty=0.0)


def inverse_cdf(weights: torch.Tensor, draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """The first token (n,) whose cumulative weight exceeds draw × total: never one of weight 0."""
    cumulative = weights.cumsum(dim=1)
    targets = torch.from_numpy(draws).to(weights.device)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets, right=True)[:, 0].cpu().numpy()
