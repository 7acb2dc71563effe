"""The gated activation of the Llama family: silu(gate) · up."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up (T, 2F), gate first → (T, F)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
