"""How close a kernel must come to the formula in float64, by dtype.

One rounding of a result is half a unit in its last place: at most 2⁻²⁴, 2⁻¹¹, 2⁻⁸ of it in float32, float16, bfloat16.
What a kernel rounds on the way a test knows, and gives as `roundings`: how many may add up. The same of the largest
number of the result is allowed besides, for sums that cancel to near zero.
"""

from __future__ import annotations

import torch

UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def assert_agrees(got: torch.Tensor, wanted: torch.Tensor, roundings: float = 1.0) -> None:
    """`wanted`: float64, from the very numbers (already rounded to the dtype) that the kernel was given."""
    assert got.shape == wanted.shape
    assert torch.isfinite(got).all(), "not finite where the formula is"
    unit = UNIT[got.dtype] * roundings
    error = (got.double() - wanted).abs()
    allowed = unit * (wanted.abs() + wanted.abs().max())
    worst = (error - allowed).max().item() if error.numel() else 0.0
    assert worst <= 0, f"off by {error.max():.3g}, {(error / allowed.clamp_min(1e-300)).max():.2f}× what is allowed"
