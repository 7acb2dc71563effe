"""Rotary position embedding, halves form: (x1, x2) → (x1·cos − x2·sin, x2·cos + x1·sin), x1 and x2 a head's halves.

Angles are float32 whatever the dtype of x: in bfloat16 a position above 256 can't even be written.
"""

from __future__ import annotations

import torch


def rope_table(
    positions: torch.Tensor, inverse_frequencies: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """positions (T), inverse_frequencies (d / 2) → cos and signed sin, each (T, 1, d)."""
    angles = positions.float()[:, None] * inverse_frequencies  # (T, d / 2)
    cos, sin = angles.cos(), angles.sin()
    return (
        torch.cat((cos, cos), dim=-1).unsqueeze(1).to(dtype),
        torch.cat((-sin, sin), dim=-1).unsqueeze(1).to(dtype),
    )


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x (T, heads, d); cos and sin from `rope_table`."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)
