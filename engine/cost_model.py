"""What a step costs by a roofline: max(bytes ÷ bandwidth, FLOPs ÷ peak) of its products, the same of its attention,
and an overhead. The two are added: they run one after the other, and one maximum over the whole lets either hide in the
other's shadow (at 512 tokens of context it promised the CPU engine 70 % more than it gives).

Counts what a forward pass moves and multiplies, from the batch's shape alone; the rates are a device's data sheet times
the share of it that good programs reach, or what `fit` made of measured steps. No torch: the window reads it too.

bytes    weights that a step reads, K/V of each row's context, K/V written
FLOPs    2 a parameter and token, the head only where logits are wanted, 4·L·H·d_h a query-key pair
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.formulas import ridge_point
from engine.profiles import BYTES, Device, ModelProfile

# Of the data sheet's bandwidth: decode kernels of serving engines come to 75–90 % of it on large matrices; this
# project asks 80 % of its own.
BANDWIDTH_SHARE = 0.80
# Of the data sheet's dense bf16 products: large prefill products come to 55–75 % at the clocks that a card sustains.
FLOPS_SHARE = 0.60
# s a step, whatever it computes: a CUDA graph's launch, sampling, and the way of its tokens back to the host.
LAUNCH = 150e-6
# s a layer: some eight kernels, each with 1 to 1.5 µs in which the device drains and fills between two of them.
LAYER = 10e-6
# Queries that share one read of K/V in prefill: the tile of a flash-attention kernel.
TILE = 128


class StepWork(NamedTuple):
    """What one step moves and multiplies; `kv` and `pairs` are attention's part of it."""

    bytes: float
    flops: float
    kv: float = 0.0
    pairs: float = 0.0

    @property
    def intensity(self) -> float:
        """FLOP a byte."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class Counts:
    """What a model makes a step move and multiply.

    Attributes:
        weights: bytes that every step reads. body: parameters in products of every token. head: in those of every row
            of logits. kv: bytes a token of context. pair: FLOPs a query-key pair.
    """

    weights: float
    body: float
    head: float
    kv: float
    pair: float

    def work(
        self, tokens: NDArray[np.int64] | Sequence[int], contexts: NDArray[np.int64] | Sequence[int], logits: int
    ) -> StepWork:
        """A step of rows with so many `tokens` each, which then hold `contexts`."""
        lengths, held = np.asarray(tokens, np.float64), np.asarray(contexts, np.float64)  # (R)
        reads, pairs = attended(lengths, held)
        return self.of(float(lengths.sum()), reads, pairs, logits)

    def of(self, tokens: float, reads: float, pairs: float, logits: float) -> StepWork:
        """The same from sums over a step's rows, of which `attended` makes two; also of many steps, as arrays (S)."""
        kv, attention = self.kv * (reads + tokens), self.pair * pairs
        return StepWork(self.weights + kv, 2 * self.body * tokens + 2 * self.head * logits + attention, kv, attention)


def attended(lengths: NDArray, held: NDArray) -> tuple[float, float]:
    """Tokens of context that rows of so many tokens (R) read, and query-key pairs, where they then hold `held` (R)."""
    read = float((held * np.ceil(lengths / TILE)).sum())
    return read, float((lengths * (held - (lengths - 1) / 2)).sum())  # causal: a row's earlier tokens see fewer


def counts(model: ModelProfile) -> Counts:
    """Embeddings that are no head are looked up, not read."""
    shape = model.shape
    looked_up = 0 if shape.tied else shape.embedding
    return Counts(
        weights=(shape.parameters - looked_up) * BYTES,
        body=shape.products,
        head=shape.embedding,
        kv=model.kv_bytes_per_token,
        pair=4 * shape.layers * shape.heads * shape.head_dim,
    )


@dataclass(frozen=True)
class Rates:
    """What a device reaches. `bandwidth` bytes/s, `flops` FLOP/s, `overhead` s a step; `attention` bytes/s of K/V, as
    `bandwidth` where it isn't told."""

    bandwidth: float
    flops: float
    overhead: float
    attention: float = 0.0

    def seconds(self, work: StepWork) -> float:
        products = max((work.bytes - work.kv) / self.bandwidth, (work.flops - work.pairs) / self.flops)
        attention = max(work.kv / (self.attention or self.bandwidth), work.pairs / self.flops)
        return products + attention + self.overhead

    @property
    def ridge(self) -> float:
        """FLOP a byte above which arithmetic is the limit."""
        return ridge_point(self.flops, self.bandwidth)

    def slower(self, layers: float) -> Rates:
        """The same device, for a part of a model: the share of its layers that run, of the overhead too."""
        return replace(self, overhead=self.overhead * layers)


def reached(device: Device, layers: int) -> Rates:
    """Of a device's data sheet, what a good program comes to."""
    return Rates(device.bandwidth * BANDWIDTH_SHARE, device.flops * FLOPS_SHARE, LAUNCH + layers * LAYER)


def fit(measured: Sequence[tuple[StepWork, float]]) -> Rates:
    """Rates for which the steps measured, decodes' work and s, come out best: the least sum of squared relative errors.

    With max() in it the problem is piecewise linear: each choice of which steps the bandwidth binds, those of lowest
    intensity, is a linear one of its own, and the best that holds together is taken. Times are never negative.
    """
    ordered = sorted(measured, key=lambda each: (each[0].flops - each[0].pairs) / (each[0].bytes - each[0].kv))
    best: tuple[float, Rates] | None = None
    for bound in range(len(ordered) + 1):
        rates = _solve(ordered, bound)
        if rates is None:
            continue
        error = sum((rates.seconds(work) / seconds - 1) ** 2 for work, seconds in ordered)
        if best is None or error < best[0]:
            best = error, rates
    assert best is not None, "no rates fit"
    return best[1]


def _solve(ordered: Sequence[tuple[StepWork, float]], bound: int) -> Rates | None:
    """Rates if the first `bound` steps are bound by bandwidth and the others by arithmetic."""
    rows = [
        [
            (work.bytes - work.kv) / s if i < bound else 0.0,
            (work.flops - work.pairs) / s if i >= bound else 0.0,
            1 / s,
            work.kv / s,
        ]
        for i, (work, s) in enumerate(ordered)
    ]
    matrix, ones = np.array(rows), np.ones(len(rows))
    scale = np.abs(matrix).max(axis=0)
    used = np.flatnonzero(scale)
    kept = used
    while len(kept):
        prices = np.linalg.lstsq(matrix[:, kept] / scale[kept], ones, rcond=None)[0] / scale[kept]
        if (prices >= 0).all():
            break
        kept = kept[prices >= 0]
    else:
        return None
    byte, flop, overhead, kv = np.bincount(kept, prices, minlength=4).tolist()
    if not byte and not flop:
        return None
    return Rates(1 / byte if byte else np.inf, 1 / flop if flop else np.inf, overhead, 1 / kv if kv else np.inf)
