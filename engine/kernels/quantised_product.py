"""Product with weights of 4 or 8 bits for few rows: out = x·Wᵀ, sums in float32.

A weight is scale · code + offset, code of 4 bits, or scale · (code − 128), code of 8; scale and offset float16 for
every 32 inputs of an output: the numbers of engine/cpu/packed_matrix.py and of GGUF's Q4_0, Q4_1, Q8_0, one for one.

Reads each weight once whatever the rows: out·in·(½ + ⅛) bytes in 4 bits, out·in·(1 + 1/16) in 8, which is the whole
cost until the rows fill the tensor cores. From about 64 rows on a plain product with `dequantised` is better.

Layout. A group of 32 inputs is the outer axis, so that what a program reads at once, one group of its outputs, lies
together in memory:
  weights  (in / 32, out, 16 or 32) uint8; in 4 bits byte i holds input 2·i in its low half and 2·i + 1 in its high one
  scales   (in / 32, out) float16
  offsets  (in / 32, out) float16, in 4 bits only

Codes are whole numbers up to 255 and so exact in every float, so it is they that are multiplied, on tensor cores where
x has 2 bytes; scales then multiply the sum of a group, in float32. No weight is ever rounded. What lies in a program is
transposed, outputs × rows: 16 rows fill a tensor core's short side. With a workspace the groups are cut among programs
(the outputs of one matrix alone don't fill a card) and the last to arrive adds their sums up, in order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from engine.kernels.ahead import TYPES, Case
from engine.kernels.interpreted import rounded, widened
from engine.kernels.quantised_matrix import GROUP, dequantised
from engine.kernels.splits import MULTIPROCESSORS_UNKNOWN, SplitWorkspace, choose

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Rows of a tile at most, by the bytes of a number of x; more rows take more tiles, which read the weights again.
MOST_ROWS = {2: 64, 4: 32}
# Outputs of a program, by bits: a thread's share of a group is then one load of 16 bytes. float32 has fewer, of either
# bits: it is done without tensor cores, and more spill. From 64 on Triton 3.6 would even use those of sm_100, in tf32.
OUTPUTS = {4: 128, 8: 64}
OUTPUTS_FLOAT32 = 32
# Of a thread, as a card has them for four programs of 4 warps. Left alone, ptxas aims at 80 or 96 and spills 8 bytes.
REGISTERS_FLOAT32 = 128
# Groups on their way while one is multiplied. 2 KiB each, and some programs share a multiprocessor: enough bytes in
# flight to fill the bandwidth of any card there is.
STAGES = 5
PROGRAMS_PER_MULTIPROCESSOR = 6
LEAST_GROUPS = 8  # of a split, so that what its sums cost to write and read stays small


@triton.jit
def _quantised_product(
    x, weights, scales, offsets, out, sums, arrivals,
    rows, outputs, groups, x_stride, out_stride,
    BITS: tl.constexpr, SPLITS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of outputs, splits, tiles of rows)."""
    split = tl.program_id(1)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    there = output < outputs
    real = row < rows
    BYTES: tl.constexpr = 4 * BITS
    byte = tl.arange(0, BYTES)
    share = tl.cdiv(groups, SPLITS)
    begin = split * share
    until = tl.minimum(groups, begin + share)
    here = weights + output[:, None].to(tl.int64) * BYTES + byte[None, :]
    of_x = x + row[None, :].to(tl.int64) * x_stride + tl.arange(0, 32)[:, None]
    step = outputs.to(tl.int64) * BYTES
    acc = tl.zeros((OUTPUTS, ROWS), tl.float32)
    for group in tl.range(begin, until, num_stages=STAGES):
        codes = tl.load(here + group * step, mask=there[:, None], other=0)
        scale = tl.load(scales + group * outputs + output, mask=there, other=0.0).to(tl.float32)
        some = widened(tl.load(of_x + group * 32, mask=real[None, :], other=0.0))  # (32, ROWS)
        if BITS == 4:
            offset = tl.load(offsets + group * outputs + output, mask=there, other=0.0).to(tl.float32)
            pairs = tl.join(codes & 15, codes >> 4).reshape(OUTPUTS, 32)
            part = tl.dot(pairs.to(tl.float32).to(some.dtype), some, input_precision="ieee")
            if some.dtype == tl.float32:
                of_group = tl.sum(some, 0)[None, :]
            else:
                # x used in products alone goes to shared memory ahead of time, and they have room for one with ones
                of_group = tl.dot(tl.full((OUTPUTS, 32), 1.0, some.dtype), some)
            acc += part * scale[:, None] + of_group * offset[:, None]
        else:
            signed = (codes.to(tl.float32) - 128.0).to(some.dtype)
            acc += tl.dot(signed, some, input_precision="ieee") * scale[:, None]

    stored = there[:, None] & real[None, :]
    to = out + row[None, :].to(tl.int64) * out_stride + output[:, None]
    if SPLITS == 1:
        tl.store(to, rounded(acc, out.dtype.element_ty), mask=stored)
    else:
        of_row = row[None, :] * outputs + output[:, None]
        between = rows * outputs
        tl.store(sums + split * between + of_row, acc, mask=stored)
        # every thread's stores come before the one thread's release; the last to arrive acquires them all
        tl.debug_barrier()
        unit = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
        earlier = tl.atomic_add(arrivals + unit, 1, sem="acq_rel", scope="gpu")
        if earlier == SPLITS - 1:
            tl.store(arrivals + unit, 0)  # as the next launch needs it
            total = tl.zeros((OUTPUTS, ROWS), tl.float32)
            for other in tl.range(0, SPLITS):
                total += tl.load(sums + other * between + of_row, mask=stored, other=0.0, cache_modifier=".cg")
            tl.store(to, rounded(total, out.dtype.element_ty), mask=stored)


def quantised_product(
    x: torch.Tensor,
    weights: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    out: torch.Tensor,
    workspace: SplitWorkspace | None = None,
) -> None:
    """x (T, in), out (T, out) of one dtype; the matrix as above, by engine/kernels/quantised_matrix.py."""
    bits = check(x, weights, scales, offsets, out)
    rows, outputs, groups = len(x), out.shape[1], len(weights)
    if not rows or not outputs:
        return
    tile = _tile(bits, rows, x.element_size())
    across, down = triton.cdiv(outputs, tile.outputs), triton.cdiv(rows, tile.rows)
    splits = _splits(workspace, across * down, rows * outputs, groups)
    _quantised_product[(across, splits, down)](
        x, weights, scales, scales if offsets is None else offsets, out,
        scales if splits == 1 else workspace.means, scales if splits == 1 else workspace.arrivals,
        rows, outputs, groups, x.stride(0), out.stride(0),
        BITS=bits, SPLITS=splits, OUTPUTS=tile.outputs, ROWS=tile.rows, STAGES=STAGES,
        num_warps=tile.warps, maxnreg=tile.registers,
    )  # fmt: skip


def check(
    x: torch.Tensor, weights: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None, out: torch.Tensor
) -> int:
    """Bits of a code, or ValueError."""
    groups, outputs, width = weights.shape
    bits = 4 if offsets is not None else 8
    _need(weights.dtype == torch.uint8 and width == 4 * bits, f"{width} bytes a group of {bits} bits")
    _need(scales.shape == (groups, outputs) and scales.dtype == torch.float16, "a float16 scale for each group")
    _need(offsets is None or (offsets.shape == scales.shape and offsets.dtype == torch.float16), "offsets as scales")
    _need(x.shape[1] == GROUP * groups and out.shape == (len(x), outputs), f"{tuple(x.shape)} into {tuple(out.shape)}")
    _need(x.dtype == out.dtype and x.dtype in DTYPES, f"x {x.dtype} into {out.dtype}")
    parts = (weights, scales) if offsets is None else (weights, scales, offsets)
    _need(all(part.is_contiguous() for part in parts), "the matrix lies together")
    _need(x.stride(1) == 1 and out.stride(1) == 1, "a row's numbers lie together")
    _need(len(x) * outputs < 2**31 and groups * outputs < 2**31, "fewer than 2³¹ results and groups")
    return bits


def product_workspace(
    rows: int, widest: int, device: torch.device, multiprocessors: int | None = None
) -> SplitWorkspace:
    """For up to `rows` rows into at most `widest` outputs. Launches that may run at the same time must not share it."""
    if multiprocessors is None:
        multiprocessors = (
            torch.cuda.get_device_properties(device).multi_processor_count
            if device.type == "cuda"
            else MULTIPROCESSORS_UNKNOWN
        )
    programs = multiprocessors * PROGRAMS_PER_MULTIPROCESSOR
    tile = MOST_ROWS[2] * OUTPUTS[8]
    # a matrix of few outputs is cut into many splits, one of many into few: two rounds of the card's programs at most
    numbers = max(2 * programs * tile, 4 * rows * widest)
    units = triton.cdiv(widest, OUTPUTS_FLOAT32) * triton.cdiv(rows, min(16, rows or 1))
    return SplitWorkspace(
        torch.zeros(numbers, dtype=torch.float32, device=device),
        torch.zeros(0, dtype=torch.float32, device=device),
        torch.zeros(max(units, 1), dtype=torch.int32, device=device),
        programs,
    )


def _splits(workspace: SplitWorkspace | None, units: int, numbers: int, groups: int) -> int:
    if workspace is None or units > len(workspace.arrivals):
        return 1
    most = min(groups // LEAST_GROUPS, len(workspace.means) // numbers)
    return max(1, min(choose(units, workspace.programs), most))


class Tile(NamedTuple):
    outputs: int
    rows: int
    warps: int
    registers: int | None  # of a thread at most; None: as ptxas likes


def _tile(bits: int, rows: int, width: int) -> Tile:
    """Of a program, for x of numbers of `width` bytes."""
    rows = min(MOST_ROWS[width], max(16, triton.next_power_of_2(rows)))
    if width == 4:
        return Tile(OUTPUTS_FLOAT32, rows, 4, REGISTERS_FLOAT32)
    # three sums of 128 × 64 are more than 4 warps hold
    return Tile(OUTPUTS[bits], rows, 8 if bits == 4 and rows == 64 else 4, None)


def quantised_product_reference(
    x: torch.Tensor,
    weights: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    out: torch.Tensor,
    workspace: SplitWorkspace | None = None,
) -> None:
    """In float32, or float64 if that is what it is given."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    out.copy_(x.to(wide) @ dequantised(weights, scales, offsets, wide).T)


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(f"quantised_product: {otherwise}")


def ahead() -> list[Case]:
    """For 1 and for many rows, whole and cut into splits."""
    whole = ("rows", "outputs", "groups", "x_stride", "out_stride")
    found = []
    for name, short in TYPES.items():
        for bits, most, splits in ((4, 1, 8), (8, 1, 8), (4, 32, 1), (4, 64, 1), (8, 64, 1)):
            if name == "float32" and most == MOST_ROWS[4]:
                continue  # the same as for 64
            tile = _tile(bits, most, 4 if name == "float32" else 2)
            types = {"x": f"*{short}", "out": f"*{short}", "weights": "*u8", "scales": "*fp16", "offsets": "*fp16"}
            types |= {"sums": "*fp32" if splits > 1 else "*fp16", "arrivals": "*i32" if splits > 1 else "*fp16"}
            constants = {"BITS": bits, "SPLITS": splits, "OUTPUTS": tile.outputs, "ROWS": tile.rows}
            found.append(
                Case(
                    _quantised_product,
                    f"{name}, {bits} bits, tiles of {tile.rows} rows{', split' if splits > 1 else ''}",
                    types | dict.fromkeys(whole, "i32"),
                    constants | {"STAGES": STAGES},
                    divisible=("outputs", "groups", "x_stride", "out_stride"),
                    warps=tile.warps,
                    registers=tile.registers,
                )
            )
    return found
