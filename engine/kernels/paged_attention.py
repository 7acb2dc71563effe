"""Attention of many rows of different lengths over the paged KV pool, without a loop over rows.

out = softmax(q·Kᵀ/√d + mask)·V, softmax in float32. K and V of a group of rows are gathered into
(kv_heads, rows, context, d); the query heads that share a key/value head are folded into the query rows, so
nothing is repeated: 2·context·kv_heads·d·n bytes are read a row, and once more from cache after the gather.

`plan` (once a step, numpy) divides the rows into few groups of similar size; `paged_attention` (every layer)
runs them. A group is padded to its longest query and context; a padded query attends to something harmless
and is dropped, a padded key is masked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

Ints = NDArray[np.int64]

# A chunk of a prompt is cut into pieces of this many queries: each reads keys up to its own last position
# only, which saves nearly half of a causal square, and a piece's scores stay in the CPU's cache.
PIECE = 128
# What a further group costs in every layer, in units of one query head × key; about 60 µs on one core.
GROUP_COST = 40_000
# What gathering a key costs beside scoring it, in query heads.
GATHER_COST = 6
# Padded (queries × heads × keys) of a group at most, and gathered keys at most: bounds the memory of a group
# to some tens of MiB whatever the batch. A single piece may exceed it.
MAX_SCORES = 1 << 22
MAX_KEYS = 1 << 15


@dataclass(frozen=True)
class Group:
    """P pieces padded to Q queries over B blocks each; C = B · block_size keys."""

    queries: torch.Tensor | None  # (P·Q) indices into T; None: they are 0..T-1 as they stand
    blocks: torch.Tensor  # (P·B)
    mask: torch.Tensor  # (1, P, Q·heads per kv head, C): 0, or -inf where a query may not look
    pieces: int
    outputs: torch.Tensor | None  # (valid) positions in P·Q that are real; None: all
    targets: torch.Tensor | None  # (valid) where they go in T


def plan(
    row_starts: Ints,
    contexts: Ints,
    tables: Ints,
    block_size: int,
    shared: int,
    dtype: torch.dtype,
    device: torch.device,
) -> list[Group]:
    """row_starts (R + 1), contexts (R), tables (R, max_blocks); `shared` query heads per key/value head."""
    row, first, count, end = _cut(row_starts, contexts)
    blocks = -(-end // block_size)
    order = np.lexsort((blocks, count))
    groups = []
    for part in _divide(order, count, blocks * block_size, shared):
        groups.append(
            _group(
                row_starts[row[part]] + first[part],
                count[part],
                end[part],
                tables[row[part], : int(blocks[part].max())],
                block_size,
                shared,
                dtype,
                device,
                int(row_starts[-1]),
            )
        )
    return groups


def _cut(row_starts: Ints, contexts: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Pieces: row (P), first query within the row, queries, and keys that its last query sees."""
    lengths = np.diff(row_starts)  # (R)
    pieces = -(-lengths // PIECE)
    row = np.repeat(np.arange(len(lengths)), pieces)
    index = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = index * PIECE
    count = np.minimum(lengths[row] - first, PIECE)
    return row, first, count, (contexts - lengths)[row] + first + count


def _divide(order: Ints, count: Ints, keys: Ints, shared: int) -> list[Ints]:
    """Cut the pieces, sorted, where padding costs more than a further group; and where a group grows too large."""
    if not len(order):
        return []
    q, k, n = count[order] * shared, keys[order], np.arange(1, len(order) + 1)
    head = n * (np.maximum.accumulate(q) + GATHER_COST) * np.maximum.accumulate(k)
    tail = (n * (np.maximum.accumulate(q[::-1]) + GATHER_COST) * np.maximum.accumulate(k[::-1]))[::-1]
    cut = int(np.argmin(head[:-1] + tail[1:])) + 1 if len(order) > 1 else 0
    if cut and head[cut - 1] + tail[cut] + GROUP_COST < head[-1]:
        return _divide(order[:cut], count, keys, shared) + _divide(order[cut:], count, keys, shared)
    largest = max(1, min(MAX_SCORES // int(q.max() * k.max()), MAX_KEYS // int(k.max())))
    return [order[i : i + largest] for i in range(0, len(order), largest)]


def _group(
    start: Ints,
    count: Ints,
    end: Ints,
    tables: Ints,
    block_size: int,
    shared: int,
    dtype: torch.dtype,
    device: torch.device,
    total: int,
) -> Group:
    """start: a piece's first token in T; end: keys its last query sees; tables (P, B)."""
    longest = int(count.max())
    offset = np.arange(longest)
    real = offset < count[:, None]  # (P, Q)
    queries = np.where(real, start[:, None] + offset, start[:, None]).reshape(-1)
    position = np.where(real, (end - count)[:, None] + offset, 0)  # (P, Q); a padded query sees key 0
    hidden = np.arange(tables.shape[1] * block_size) > position[:, :, None]  # (P, Q, C)
    mask = np.zeros(hidden.shape, np.float32)
    mask[hidden] = -np.inf
    mask_t = torch.from_numpy(mask).to(device, dtype)
    as_it_stands = len(queries) == total and bool(real.all()) and bool((np.diff(queries) == 1).all())
    padded = not real.all()

    def tensor(array: Ints) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return Group(
        queries=None if as_it_stands else tensor(queries),
        blocks=tensor(tables.reshape(-1)),
        mask=mask_t.repeat_interleave(shared, dim=1).unsqueeze(0),
        pieces=len(count),
        outputs=tensor(np.flatnonzero(real)) if padded else None,
        targets=None if as_it_stands else tensor(queries[real.reshape(-1)]),
    )


def paged_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, groups: list[Group]
) -> torch.Tensor:
    """q (T, heads, d); keys, values (kv_heads, blocks, block_size, d) → (T, heads · d)."""
    if len(groups) == 1 and groups[0].queries is None:
        return _attend(q, keys, values, groups[0])
    out = torch.empty((q.shape[0], q.shape[1] * q.shape[2]), dtype=q.dtype, device=q.device)
    for group in groups:
        part = _attend(q if group.queries is None else q[group.queries], keys, values, group)
        if group.outputs is not None:
            part = part[group.outputs]
        out[group.targets] = part
    return out


def _attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: Group) -> torch.Tensor:
    """q (P·Q, heads, d) → (P·Q, heads · d)."""
    rows, heads, d = q.shape
    kv_heads, pieces = keys.shape[0], group.pieces
    shape = (kv_heads, pieces, -1, d)
    k = keys.index_select(1, group.blocks).view(shape)  # (kv_heads, P, C, d)
    v = values.index_select(1, group.blocks).view(shape)
    # heads that share K and V become further queries: (kv_heads, P, Q · shared, d)
    folded = q.view(pieces, rows // pieces, kv_heads, heads // kv_heads, d).permute(2, 0, 1, 3, 4).reshape(shape)
    out = attend(folded, k, v, group.mask)
    unfolded = out.view(kv_heads, pieces, rows // pieces, heads // kv_heads, d).permute(1, 2, 0, 3, 4)
    return unfolded.reshape(rows, heads * d)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """q (..., queries, d), k and v (..., keys, d), mask broadcast to (..., queries, keys), added."""
    if q.device.type == "cpu":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.expand(*q.shape[:-1], k.shape[-2]))
    return attend_reference(q, k, v, mask)


def attend_reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The formula, as it stands; on CUDA it serves too, where a fused kernel may round float32 to TF32."""
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5 + mask
    return torch.softmax(scores, dim=-1).to(v.dtype) @ v
