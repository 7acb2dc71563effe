"""The gated activation of the Llama family: out = silu(gate) · up, silu(g) = g / (1 + e^−g), in float32, rounded once.

Reads each half once and writes the product: 3·T·F·n bytes, which is the whole cost.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.ahead import TYPES, Case
from engine.kernels.interpreted import rounded, widened

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Numbers of a program: 8 a thread, one load of 16 bytes in 2-byte types; a row of 8,192 is 8 programs, so that one row
# alone still is on several multiprocessors.
WIDTH = 1024


@triton.jit
def _silu_mul(gate_up, out, width, gate_up_stride, out_stride, WIDTH: tl.constexpr):
    """Grid (T, pieces of a row)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    real = column < width
    here = gate_up + row * gate_up_stride + column
    gate = widened(tl.load(here, mask=real, other=0.0)).to(tl.float32)
    up = widened(tl.load(here + width, mask=real, other=0.0)).to(tl.float32)
    activated = gate / (1 + tl.exp(-gate))
    tl.store(out + row * out_stride + column, rounded(activated * up, out.dtype.element_ty), mask=real)


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """gate_up (T, 2F), gate first; out (T, F)."""
    rows, width = out.shape
    if gate_up.shape != (rows, 2 * width) or gate_up.dtype != out.dtype or out.dtype not in DTYPES:
        raise ValueError(f"silu_mul: {tuple(gate_up.shape)} {gate_up.dtype} into {tuple(out.shape)} {out.dtype}")
    if gate_up.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError("silu_mul: a row's numbers lie together")
    if rows and width:
        grid = (rows, triton.cdiv(width, WIDTH))
        _silu_mul[grid](gate_up, out, width, gate_up.stride(0), out.stride(0), WIDTH=WIDTH, num_warps=4)


def silu_mul_reference(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """In float32, or float64 if that is what it is given."""
    wide = torch.float64 if gate_up.dtype == torch.float64 else torch.float32
    gate, up = gate_up.to(wide).chunk(2, dim=-1)
    out.copy_(torch.nn.functional.silu(gate) * up)


def ahead() -> list[Case]:
    whole = ("width", "gate_up_stride", "out_stride")
    return [
        Case(
            _silu_mul,
            name,
            {"gate_up": f"*{short}", "out": f"*{short}"} | dict.fromkeys(whole, "i32"),
            {"WIDTH": WIDTH},
            divisible=whole,
        )
        for name, short in TYPES.items()
    ]
