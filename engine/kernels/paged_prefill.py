"""Attention of rows of consecutive queries over the paged KV pool: out = softmax(q·Kᵀ/√d + causal mask)·V, in float32.

Rows are prompts, chunks of them, verifications (γ + 1 queries) and single decodes, one after the other in q; a row may
be empty. The last of a row's n queries sees its whole context, the one before all but the last key. A tile is queries ×
the heads that share a key/value head: each reads its keys once, 2·context·d·n bytes, and scores half of a causal square
at most. With a `workspace` the keys are cut among programs when tiles are few: verification over a long context is
decode with a few more lines, and would leave most of a card idle otherwise. Grid and splits follow from the shapes and
from `longest`, never from contexts.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from engine.kernels.ahead import Case
from engine.kernels.paged_shapes import PoolShape, case, check_pool, constants, tiling
from engine.kernels.paged_tiles import attend_stretch
from engine.kernels.splits import SplitWorkspace


@triton.jit
def _paged_prefill(
    q, keys, values, tables, row_starts, contexts, out, means, log_sums, arrivals,
    q_stride, out_stride, pool_stride, table_stride, splits, scale,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, USED_PADDED: tl.constexpr, LINES: tl.constexpr,
    SPLITS_PADDED: tl.constexpr, LEAST_TILES: tl.constexpr, MERGED: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of a row · splits, kv_heads, rows); a row's last tiles, which see the most keys, begin first."""
    head, row = tl.program_id(1), tl.program_id(2)
    tiles = tl.num_programs(0) // splits
    tile, split = tiles - 1 - tl.program_id(0) // splits, tl.program_id(0) % splits
    start = tl.load(row_starts + row)
    count = tl.load(row_starts + row + 1) - start
    if tile * QUERIES < count:
        context = tl.load(contexts + row)
        queries = tl.minimum(count - tile * QUERIES, QUERIES)
        first = context - count + tile * QUERIES
        at = (start + tile * QUERIES).to(tl.int64)
        attend_stretch(
            q + at * q_stride + head * GROUP * D, out + at * out_stride + head * GROUP * D, q_stride, out_stride,
            keys + head.to(tl.int64) * pool_stride, values + head.to(tl.int64) * pool_stride,
            tables + row * table_stride, first, queries * GROUP, tl.maximum(first + queries, 0), split, splits, scale,
            means, log_sums, arrivals, (row * tl.num_programs(1) + head) * tiles + tile,
            GROUP, GROUP * QUERIES, USED_PADDED, LINES, SPLITS_PADDED, True, LEAST_TILES, MERGED,
            BLOCK, TILE, D, D_PADDED,
        )  # fmt: skip


def paged_prefill(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    row_starts: torch.Tensor,
    contexts: torch.Tensor,
    out: torch.Tensor,
    longest: int,
    workspace: SplitWorkspace | None = None,
) -> None:
    """q, out (T, heads, d); keys, values (kv_heads, blocks, block_size, d); tables (R, max_blocks), row_starts (R + 1)
    and contexts (R) int32, contexts counting the row's queries; no row has more than `longest` queries. Tokens past
    row_starts[R] keep what `out` has; queries that a context is too short for see nothing and get zeros."""
    shape = check_pool(q, keys, values, tables, contexts, out)
    rows = len(contexts)
    if len(row_starts) != rows + 1 or row_starts.dtype != torch.int32 or not row_starts.is_contiguous():
        raise ValueError(f"paged attention: row_starts is {rows + 1} int32 for {rows} rows")
    if not rows or longest < 1:
        return
    tiles = tiling(shape, longest * shape.group, q.device)
    queries = min(tiles.queries, longest)
    across = -(-longest // queries)  # tiles of the longest row
    units, used = rows * shape.kv_heads * across, queries * shape.group
    splits = 1 if workspace is None else workspace.splits(units, used * shape.d)
    spare = q if workspace is None else workspace.means  # never touched
    _paged_prefill[(across * splits, shape.kv_heads, rows)](
        q, keys, values, tables, row_starts, contexts, out, spare,
        spare if workspace is None else workspace.log_sums, spare if workspace is None else workspace.arrivals,
        q.stride(0), out.stride(0), keys.stride(0), tables.stride(0), splits, math.log2(math.e) / math.sqrt(shape.d),
        **constants(shape, tiles, queries, splits), num_warps=tiles.warps, num_stages=tiles.stages,
        maxnreg=tiles.registers,
    )  # fmt: skip


def paged_prefill_reference(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    row_starts: torch.Tensor,
    contexts: torch.Tensor,
    out: torch.Tensor,
    longest: int,
    workspace: SplitWorkspace | None = None,
) -> None:
    """Row by row, in float32, or float64 if that is what it is given."""
    kv_heads, _, block_size, d = keys.shape
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    starts, lengths = row_starts.tolist(), contexts.tolist()
    for row, context in enumerate(lengths):
        begin, end = starts[row], starts[row + 1]
        if begin == end:
            continue
        at = torch.arange(max(context, 0), device=q.device)
        slots = tables[row].long()[at // block_size] * block_size + at % block_size
        k = keys.flatten(1, 2)[:, slots].to(wide)  # (kv_heads, context, d)
        v = values.flatten(1, 2)[:, slots].to(wide)
        folded = q[begin:end].to(wide).unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3)  # (kv_heads, group, n, d)
        scores = folded @ k.transpose(1, 2).unsqueeze(1) * d**-0.5
        position = context - (end - begin) + torch.arange(end - begin, device=q.device)
        scores.masked_fill_(at > position[:, None], float("-inf"))
        weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)  # a query that sees nothing
        result = weights @ v.unsqueeze(1)
        out[begin:end] = result.permute(2, 0, 1, 3).flatten(1, 2).to(out.dtype)


def ahead() -> list[Case]:
    """Chunks of prompts with and without splits, and verification."""
    work = (
        ("bfloat16", PoolShape(8, 4, 16, 128, 2), 2048, 1),
        ("bfloat16", PoolShape(8, 4, 16, 128, 2), 2048, 4),
        ("bfloat16", PoolShape(8, 4, 16, 128, 2), 5, 32),
        ("bfloat16", PoolShape(8, 8, 32, 128, 2), 8, 32),
        ("bfloat16", PoolShape(3, 3, 16, 64, 2), 2048, 1),
        ("float16", PoolShape(8, 4, 128, 80, 2), 2048, 1),
        ("float32", PoolShape(3, 3, 16, 64, 4), 2048, 1),
        ("float32", PoolShape(8, 4, 16, 128, 4), 2048, 4),
        ("float32", PoolShape(8, 4, 16, 128, 4), 2, 32),
        ("float32", PoolShape(1, 32, 16, 128, 4), 2048, 1),
        ("float32", PoolShape(1, 32, 16, 64, 4), 5, 32),
    )
    return [
        case(_paged_prefill, f"rows of {most}, {splits} splits", shape, most, splits, type_, roomy)
        for type_, shape, most, splits in work
        for roomy in (True, False)
    ]
