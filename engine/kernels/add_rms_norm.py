"""Root-mean-square norm with the residual sum before it: residual += x; out = residual / √(mean(residual²) + ε) · w.

The sum is rounded to the residual's dtype before it is normed, as if it had been written and read again; the norm is
in float32 and rounded once. Reads x and residual, writes residual and out: 4·T·D·n bytes, half of that without x; as
two operations it would be 5·T·D·n. One program a row, which it holds in registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.ahead import TYPES, Case
from engine.kernels.interpreted import rounded, widened

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDEST = 16384  # 32 numbers a thread of 16 warps; the widest model of the family has 16,384


@triton.jit
def _add_rms_norm(
    x, residual, weight, out, width, x_stride, residual_stride, out_stride, eps,
    ADDED: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Grid (T)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    real = column < width
    kept = residual + row * residual_stride + column
    total = widened(tl.load(kept, mask=real, other=0.0)).to(tl.float32)
    if ADDED:
        total += widened(tl.load(x + row * x_stride + column, mask=real, other=0.0)).to(tl.float32)
        summed = rounded(total, residual.dtype.element_ty)
        tl.store(kept, summed, mask=real)
        total = widened(summed).to(tl.float32)
    scale = tl.rsqrt(tl.sum(total * total, 0) / width + eps)
    w = widened(tl.load(weight + column, mask=real, other=0.0)).to(tl.float32)
    tl.store(out + row * out_stride + column, rounded(total * scale * w, out.dtype.element_ty), mask=real)


def add_rms_norm(
    x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
) -> None:
    """x, residual, out (T, D) of one dtype; weight (D) of any. x None: residual stays and is only normed. `out` may be
    x or, where nothing is added, residual."""
    rows, width = residual.shape
    parts = [part for part in (x, residual, out) if part is not None]
    if any(part.shape != residual.shape or part.dtype != residual.dtype for part in parts):
        raise ValueError(f"add_rms_norm: {[(tuple(part.shape), part.dtype) for part in parts]} differ")
    if residual.dtype not in DTYPES or not 0 < width <= WIDEST:
        raise ValueError(f"add_rms_norm: rows of {width} {residual.dtype}; up to {WIDEST} of {DTYPES}")
    if weight.shape != (width,) or weight.stride(0) != 1 or any(part.stride(1) != 1 for part in parts):
        raise ValueError("add_rms_norm: a row's numbers lie together, and there is a weight for each")
    if x is not None and rows and out.data_ptr() == residual.data_ptr():
        raise ValueError("add_rms_norm: the sum and its norm can't be the same tensor")
    if rows:
        padded = triton.next_power_of_2(width)
        given = residual if x is None else x
        _add_rms_norm[(rows,)](
            given, residual, weight, out, width, given.stride(0), residual.stride(0), out.stride(0), eps,
            ADDED=x is not None, WIDTH=padded, num_warps=_warps(padded),
        )  # fmt: skip


def _warps(padded: int) -> int:
    """8 numbers a thread until there are 16 warps: a row alone is then read with few loads one after another."""
    return min(16, max(1, padded // 256))


def add_rms_norm_reference(
    x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
) -> None:
    """In float32, or float64 if that is what it is given."""
    wide = torch.float64 if residual.dtype == torch.float64 else torch.float32
    if x is not None:
        residual.add_(x)
    total = residual.to(wide)
    scale = (total.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    out.copy_(total * scale * weight.to(wide))


def ahead() -> list[Case]:
    whole = ("width", "x_stride", "residual_stride", "out_stride")
    found = []
    for (name, short), width in ((one, width) for one in TYPES.items() for width in (1024, 4096, 16384)):
        pointers = {"x": f"*{short}", "residual": f"*{short}", "weight": "*fp32", "out": f"*{short}"}
        found.append(
            Case(
                _add_rms_norm,
                f"{name}, rows of {width:,}",
                pointers | dict.fromkeys(whole, "i32") | {"eps": "fp32"},
                {"ADDED": True, "WIDTH": width},
                divisible=whole,
                warps=_warps(width),
            )
        )
    return found
