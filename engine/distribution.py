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
    size = x.shape[1]
    counts = column([min(row.top_k, size) if row.top_k > 0 else size for row in rows], torch.int64)
    limited = torch.nonzero(counts[:, 0] < size)[:, 0]
    if len(limited):
        x[limited] = _keep_largest(x[limited], counts[limited])
    weights = x.exp_()
    shares = column([row.top_p for row in rows])
    limited = torch.nonzero(shares[:, 0] < 1)[:, 0]
    if len(limited):
        weights[limited] = _keep_share(weights[limited], shares[limited], int(counts[limited].max()))
    return weights


def _keep_largest(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The counts (n, 1) largest entries of x (n, vocabulary); -inf in place of the others."""
    head = x.topk(int(counts.max()), dim=1).values
    return _keep_from(x, head.gather(1, counts - 1), counts, -math.inf)


def _keep_share(weights: torch.Tensor, shares: torch.Tensor, most: int) -> torch.Tensor:
    """The fewest largest weights of each row (n, vocabulary) whose sum reaches shares (n, 1) of the row's total;
    0 in place of the others. At most `most` weights of a row are above 0."""
    wanted = shares * weights.sum(dim=1, keepdim=True)
    head = weights.topk(min(_HEAD, most), dim=1).values
    sums = head.cumsum(dim=1)
    if head.shape[1] < most and bool((sums[:, -1:] < wanted).any()):
        head = weights.sort(dim=1, descending=True).values
        sums = head.cumsum(dim=1)
    counts = ((sums < wanted).sum(dim=1, keepdim=True) + 1).clamp(max=head.shape[1])
    return _keep_from(weights, head.gather(1, counts - 1), counts, 0.0)


def _keep_from(x: torch.Tensor, least: torch.Tensor, counts: torch.Tensor, empty: float) -> torch.Tensor:
    """x (n, vocabulary) without what is below `least` (n, 1), the counts-th largest; of those equal to it the lower
    ids stay, until counts (n, 1) are kept."""
    kept = x >= least
    if bool((kept.sum(dim=1, keepdim=True) > counts).any()):
        above = x > least
        level = x == least
        kept = above | (level & (level.cumsum(dim=1) <= counts - above.sum(dim=1, keepdim=True)))
    return x.masked_fill(~kept, empty)


def inverse_cdf(weights: torch.Tensor, draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """The first token (n,) whose cumulative weight exceeds draw × total: never one of weight 0."""
    cumulative = weights.cumsum(dim=1)
    targets = torch.from_numpy(draws).to(weights.device)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets, right=True)[:, 0].cpu().numpy()
