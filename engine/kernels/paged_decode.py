"""Attention of one query a row over the paged KV pool: out = softmax(q·Kᵀ/√d)·V, softmax in float32.

Reads each row's keys and values once for all heads that share them: 2·context·kv_heads·d·n bytes a row, which is the
whole cost; q and out are 2·rows·heads·d·n. A row's keys are cut among programs (engine/kernels/splits.py), each of
which takes all query heads of one key/value head as the lines of one product. The grid follows from the shapes alone,
so a captured graph serves any contexts; a row of context 0 is empty and gets zeros.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from engine.kernels.ahead import Case
from engine.kernels.paged_prefill import paged_prefill_reference
from engine.kernels.paged_shapes import PoolShape, case, check_pool, constants, tiling
from engine.kernels.paged_tiles import attend_stretch
from engine.kernels.splits import SplitWorkspace, decode_workspace

__all__ = ["decode_workspace", "paged_decode", "paged_decode_reference"]


@triton.jit
def _paged_decode(
    q, keys, values, tables, contexts, out, means, log_sums, arrivals,
    q_stride, out_stride, pool_stride, table_stride, splits, scale,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, USED_PADDED: tl.constexpr, LINES: tl.constexpr,
    SPLITS_PADDED: tl.constexpr, LEAST_TILES: tl.constexpr, MERGED: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr,
):  # fmt: skip
    """Grid (splits, kv_heads, rows)."""
    split, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(contexts + row)
    attend_stretch(
        q + row * q_stride + head * GROUP * D, out + row * out_stride + head * GROUP * D, q_stride, out_stride,
        keys + head.to(tl.int64) * pool_stride, values + head.to(tl.int64) * pool_stride, tables + row * table_stride,
        context - 1, GROUP, context, split, splits, scale,
        means, log_sums, arrivals, row * tl.num_programs(1) + head,
        GROUP, GROUP * QUERIES, USED_PADDED, LINES, SPLITS_PADDED, False, LEAST_TILES, MERGED,
        BLOCK, TILE, D, D_PADDED,
    )  # fmt: skip


def paged_decode(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    contexts: torch.Tensor,
    out: torch.Tensor,
    workspace: SplitWorkspace,
) -> None:
    """q, out (R, heads, d); keys, values (kv_heads, blocks, block_size, d); tables (R, max_blocks) and contexts (R)
    int32, a context counting the query's own token; `workspace` from `decode_workspace`."""
    shape = check_pool(q, keys, values, tables, contexts, out)
    rows, units = q.shape[0], q.shape[0] * shape.kv_heads
    if rows != len(contexts):
        raise ValueError(f"{rows} queries for {len(contexts)} rows")
    if not rows:
        return
    splits = workspace.splits(units, shape.group * shape.d)
    tiles = tiling(shape, shape.group, q.device)
    _paged_decode[(splits, shape.kv_heads, rows)](
        q, keys, values, tables, contexts, out, workspace.means, workspace.log_sums, workspace.arrivals,
        q.stride(0), out.stride(0), keys.stride(0), tables.stride(0), splits, math.log2(math.e) / math.sqrt(shape.d),
        **constants(shape, tiles, 1, splits), num_warps=tiles.warps, num_stages=tiles.stages,
        maxnreg=tiles.registers,
    )  # fmt: skip


def paged_decode_reference(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    contexts: torch.Tensor,
    out: torch.Tensor,
    workspace: SplitWorkspace | None = None,
) -> None:
    row_starts = torch.arange(len(contexts) + 1, dtype=torch.int32, device=q.device)
    paged_prefill_reference(q, keys, values, tables, row_starts, contexts, out, 1)


def ahead() -> list[Case]:
    shapes = (
        ("bfloat16", PoolShape(8, 4, 16, 128, 2)),
        ("bfloat16", PoolShape(3, 3, 128, 64, 2)),
        ("float16", PoolShape(8, 8, 32, 80, 2)),
        ("float16", PoolShape(32, 1, 16, 96, 2)),
        ("float32", PoolShape(3, 3, 16, 64, 4)),
        ("float32", PoolShape(8, 8, 16, 128, 4)),
        ("float32", PoolShape(1, 32, 16, 128, 4)),
        ("float32", PoolShape(2, 20, 16, 64, 4)),
    )
    return [
        case(_paged_decode, "a query a row", shape, 1, 32, type_, roomy)
        for type_, shape in shapes
        for roomy in (True, False)
    ]
