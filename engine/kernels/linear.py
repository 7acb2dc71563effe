"""y = x·Wᵀ + b, with W laid out for the CPU's matrix library once instead of at every call.

Reads W once: at few rows that is the whole cost. Measured here (2 cores, AVX512-BF16), all products of
SmolLM2-135M in ms at 1 / 8 / 32 rows: bfloat16 21 / 34 / 77 by `F.linear`, 14 / 24 / 63 prepacked; float32
20 / 48 / 64 and 22 / 33 / 58. oneDNN's form is private to torch, so it is tried on real numbers before it is
trusted; where it is absent (CUDA, macOS) or disagrees, `F.linear` does it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

# Rows that oneDNN lays W out for. The layout serves any number of rows; a few is where layout matters.
ROWS_HINT = 8
# Largest difference between the two on numbers near 1, relative to the largest result.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


class Linear:
    """One matrix. `bytes`: what it holds."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        self.bias = bias  # (out)
        self.bytes = weight.nbytes + (bias.nbytes if bias is not None else 0)
        self._packed = prepack(weight)  # opaque
        self._width, self._dtype = weight.shape[1], weight.dtype
        self._weight = weight if self._packed is None else None  # (out, in)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x (rows, in) → (rows, out)."""
        if self._packed is None:
            return F.linear(x, self._weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")

    def rows(self, which: torch.Tensor) -> torch.Tensor:
        """(len(which), in) of the matrix. oneDNN's form can't be read, but it can be multiplied."""
        if self._weight is not None:
            return self._weight[which]
        width = self._width
        inputs = torch.eye(width, dtype=self._dtype).split(ROWS_HINT * 8)
        whole = torch.cat([self(some)[:, which] for some in inputs]).T
        return whole if self.bias is None else whole - self.bias[which, None]

    def shares(self, weight: torch.Tensor) -> bool:
        """Whether the matrix held is `weight` itself, not another form of it."""
        return self._weight is weight


def prepack(weight: torch.Tensor) -> torch.Tensor | None:
    """`weight` (out, in) in oneDNN's layout; None where that can't be had or trusted."""
    if weight.device.type != "cpu" or weight.dtype not in TOLERANCE or not torch.backends.mkldnn.is_available():
        return None
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_HINT)
        probe = torch.linspace(-1, 1, 2 * weight.shape[1]).to(weight.dtype).view(2, -1)
        got = torch.ops.mkldnn._linear_pointwise(probe, packed, None, "none", [], "")
    except (AttributeError, RuntimeError):
        return None
    wanted = F.linear(probe, weight)
    error = (got - wanted).abs().max() / wanted.abs().max().clamp_min(1e-6)
    return packed if error <= TOLERANCE[weight.dtype] else None
