"""Root-mean-square norm: y = x / sqrt(mean(x²) + ε) · w, the mean in float32.

Reads and writes each number once: 2·rows·width·n bytes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x (..., width); weight (width), or any shape that broadcasts against x (a row for each head)."""
    width = x.shape[-1:]
    if weight.dim() == 1:
        return F.rms_norm(x, width, weight, eps)
    return F.rms_norm(x, width, None, eps) * weight
