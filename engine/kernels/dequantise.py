"""Weights of 4 or 8 bits made floats again: some rows of a matrix, in order or picked.

    out[r] = scale · code + offset of the matrix's row first + r, or which[r]

The matrix is as engine/kernels/quantised_product.py reads it; each number is worked out in float32 and rounded once.
In order it serves products of many rows, a slice of outputs at a time; picked, the embedding of a step's tokens.

Reads ½ + ⅛ byte a number in 4 bits, 1 + 1/16 in 8, and writes 2 or 4. A program's rows of one group lie together in
memory when they are in order; what it writes is 32 numbers of each, whole sectors.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.ahead import TYPES, Case
from engine.kernels.interpreted import rounded
from engine.kernels.quantised_matrix import GROUP, dequantised

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ROWS = 64  # of a program: 2,048 numbers


@triton.jit
def _dequantise(
    weights, scales, offsets, which, out, rows, outputs, first, out_stride,
    BITS: tl.constexpr, PICKED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of rows, groups)."""
    row, group = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1).to(tl.int64)
    there = row < rows
    if PICKED:
        output = tl.load(which + row, mask=there, other=0).to(tl.int64)
    else:
        output = (first + row).to(tl.int64)
    BYTES: tl.constexpr = 4 * BITS
    of_group = group * outputs + output
    here = weights + of_group[:, None] * BYTES + tl.arange(0, BYTES)[None, :]
    codes = tl.load(here, mask=there[:, None], other=0)
    scale = tl.load(scales + of_group, mask=there, other=0.0).to(tl.float32)
    if BITS == 4:
        offset = tl.load(offsets + of_group, mask=there, other=0.0).to(tl.float32)
        pairs = tl.join(codes & 15, codes >> 4).reshape(ROWS, 32)
        x = pairs.to(tl.float32) * scale[:, None] + offset[:, None]
    else:
        x = (codes.to(tl.float32) - 128.0) * scale[:, None]
    to = out + row[:, None].to(tl.int64) * out_stride + group * 32 + tl.arange(0, 32)[None, :]
    tl.store(to, rounded(x, out.dtype.element_ty), mask=there[:, None])


def dequantise(
    weights: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    out: torch.Tensor,
    first: int = 0,
    which: torch.Tensor | None = None,
) -> None:
    """out (n, in) of any float type. which (n) int32 or int64: rows of the matrix; None: those from `first` on."""
    bits, count = check(weights, scales, offsets, out, first, which)
    if not count:
        return
    _dequantise[(triton.cdiv(count, ROWS), len(weights))](
        weights, scales, scales if offsets is None else offsets, scales if which is None else which, out,
        count, weights.shape[1], first, out.stride(0),
        BITS=bits, PICKED=which is not None, ROWS=ROWS, num_warps=4,
    )  # fmt: skip


def dequantise_reference(
    weights: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    out: torch.Tensor,
    first: int = 0,
    which: torch.Tensor | None = None,
) -> None:
    _, count = check(weights, scales, offsets, out, first, which)
    rows = torch.arange(first, first + count, device=out.device) if which is None else which
    some = (part if part is None else part[:, rows] for part in (weights, scales, offsets))
    out.copy_(dequantised(*some, torch.float32))


def check(
    weights: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    out: torch.Tensor,
    first: int,
    which: torch.Tensor | None,
) -> tuple[int, int]:
    """Bits of a code and rows, or ValueError."""
    groups, outputs, width = weights.shape
    bits, count = 4 if offsets is not None else 8, len(out)
    parts = (weights, scales) if offsets is None else (weights, scales, offsets)
    if weights.dtype != torch.uint8 or width != 4 * bits or any(part.shape != (groups, outputs) for part in parts[1:]):
        raise ValueError(f"dequantise: {width} bytes a group of {bits} bits")
    if any(part.dtype != torch.float16 for part in parts[1:]) or not all(part.is_contiguous() for part in parts):
        raise ValueError("dequantise: float16 scales, and a matrix that lies together")
    if out.shape[1] != GROUP * groups or out.dtype not in DTYPES or out.stride(1) != 1:
        raise ValueError(f"dequantise: rows of {GROUP * groups} numbers into {tuple(out.shape)} {out.dtype}")
    if which is None and not 0 <= first <= outputs - count:
        raise ValueError(f"dequantise: rows {first} to {first + count} of {outputs}")
    if which is not None and (which.shape != (count,) or not which.is_contiguous() or first):
        raise ValueError(f"dequantise: {tuple(which.shape)} picked for {count} rows")
    return bits, count


def ahead() -> list[Case]:
    whole = ("rows", "outputs", "first", "out_stride")
    found = []
    for name, short in TYPES.items():
        for bits, picked in ((4, False), (8, False), (4, True), (8, True)):
            types = {"weights": "*u8", "scales": "*fp16", "offsets": "*fp16", "out": f"*{short}"}
            types |= {"which": "*i32" if picked else "*fp16"} | dict.fromkeys(whole, "i32")
            found.append(
                Case(
                    _dequantise,
                    f"{name}, {bits} bits{', picked' if picked else ''}",
                    types,
                    {"BITS": bits, "PICKED": picked, "ROWS": ROWS},
                    divisible=("out_stride",),
                )
            )
    return found
