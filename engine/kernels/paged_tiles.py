"""What paged decode and paged prefill attention share: a tile of queries against a stretch of a row's keys.

A tile's lines are queries × the query heads that share a key/value head, so that keys and values are read once for all
of them: line m is query m // GROUP, head m % GROUP. Softmax is online (its maximum `top` and sum `total` follow the
keys, in base 2), in float32; products of float32 are IEEE, never TF32.

A key's slot is read only where a key is: what lies in the rest of a block or of the pool, NaN too, is never loaded.
Where several programs share a row's keys, each leaves its mean and the log2 of its sum, and the last to arrive merges
them in the order of the keys, so that a result doesn't depend on who came last.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.interpreted import rounded, widened


@triton.jit
def attend(
    q, keys, values, table, begin, end, position, scale, top, total, acc,
    MASKED: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr,
):  # fmt: skip
    """q (lines, D_PADDED) over the keys begin..end of one row and head; position (lines): the last key that each sees.
    MASKED: not every key of these tiles is there or is seen."""
    offset = tl.arange(0, TILE)
    column = tl.arange(0, D_PADDED)
    for start in tl.range(begin, end, TILE):
        at = start + offset  # (TILE)
        if MASKED:
            there = at < end
            block = tl.load(table + at // BLOCK, mask=there, other=0)
            slot = block * BLOCK + at % BLOCK
            k_mask = there[None, :] & (column[:, None] < D)
            v_mask = there[:, None] & (column[None, :] < D)
            k = tl.load(keys + slot[None, :] * D + column[:, None], mask=k_mask, other=0.0)  # (D_PADDED, TILE)
            v = tl.load(values + slot[:, None] * D + column[None, :], mask=v_mask, other=0.0)  # (TILE, D_PADDED)
        else:
            block = tl.load(table + at // BLOCK)
            slot = block * BLOCK + at % BLOCK
            if D == D_PADDED:
                k = tl.load(keys + slot[None, :] * D + column[:, None])
                v = tl.load(values + slot[:, None] * D + column[None, :])
            else:
                k = tl.load(keys + slot[None, :] * D + column[:, None], mask=column[:, None] < D, other=0.0)
                v = tl.load(values + slot[:, None] * D + column[None, :], mask=column[None, :] < D, other=0.0)
        scores = tl.dot(q, widened(k), input_precision="ieee") * scale  # (lines, TILE)
        if MASKED:
            scores = tl.where(there[None, :] & (at[None, :] <= position[:, None]), scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, 1))
        if MASKED:  # a line that has seen no key yet
            base = tl.where(highest == float("-inf"), 0.0, highest)
        else:
            base = highest
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weights, 1)
        weights = widened(rounded(weights, v.dtype))
        acc = tl.dot(weights, widened(v), acc * shrink[:, None], input_precision="ieee")
        top = highest
    return top, total, acc


@triton.jit
def attend_stretch(
    q, out, q_stride, out_stride, keys, values, table, first, alive, end, split, splits, scale,
    means, log_sums, arrivals, unit,
    GROUP: tl.constexpr, USED: tl.constexpr, USED_PADDED: tl.constexpr, LINES: tl.constexpr,
    SPLITS_PADDED: tl.constexpr, TWO_LOOPS: tl.constexpr, LEAST_TILES: tl.constexpr, MERGED: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr,
):  # fmt: skip
    """One program. q, out: at the tile's first query and head; first: that query's position; alive: lines that are
    real, of USED; end: keys that the tile sees; split: which stretch of them; unit: the tile's number among all."""
    line = tl.arange(0, LINES)
    column = tl.arange(0, D_PADDED)
    tiles = tl.cdiv(end, TILE)
    share = tl.maximum(tl.cdiv(tiles, splits), LEAST_TILES)  # tiles of a stretch
    active = tl.cdiv(tiles, share)  # stretches that hold keys
    if split < tl.maximum(active, 1):  # who has no keys at all still writes zeros
        begin = split * share * TILE
        until = tl.minimum(end, begin + share * TILE)
        real = (line < alive)[:, None] & (column < D)[None, :]
        place = (line // GROUP)[:, None] * q_stride + (line % GROUP)[:, None] * D + column[None, :]
        tile = widened(tl.load(q + place, mask=real, other=0.0))
        position = first + line // GROUP
        top = tl.full((LINES,), float("-inf"), tl.float32)
        total = tl.zeros((LINES,), tl.float32)
        acc = tl.zeros((LINES, D_PADDED), tl.float32)
        if TWO_LOOPS:  # whole tiles that even the first query sees need no mask
            seen = tl.maximum(begin, tl.minimum(until, (first + 1) // TILE * TILE))
            top, total, acc = attend(
                tile, keys, values, table, begin, seen, position, scale, top, total, acc,
                False, BLOCK, TILE, D, D_PADDED,
            )  # fmt: skip
            begin = seen
        top, total, acc = attend(
            tile, keys, values, table, begin, until, position, scale, top, total, acc,
            True, BLOCK, TILE, D, D_PADDED,
        )  # fmt: skip
        none = total == 0
        mean = acc / tl.where(none, 1.0, total)[:, None]
        if SPLITS_PADDED == 1 or active <= 1:
            spot = (line // GROUP)[:, None] * out_stride + (line % GROUP)[:, None] * D + column[None, :]
            tl.store(out + spot, rounded(mean, out.dtype.element_ty), mask=real)
        else:
            log_sum = tl.where(none, float("-inf"), top + tl.log2(tl.where(none, 1.0, total)))
            at = (unit * splits + split) * USED + line
            tl.store(log_sums + at, log_sum, mask=line < USED)
            kept = (line < USED)[:, None] & (column < D)[None, :]
            tl.store(means + at[:, None] * D + column[None, :], mean, mask=kept)
            # every thread's stores come before the one thread's release; the last to arrive acquires them all
            tl.debug_barrier()
            earlier = tl.atomic_add(arrivals + unit, 1, sem="acq_rel", scope="gpu")
            if earlier == active - 1:
                tl.store(arrivals + unit, 0)  # as the next launch needs it
                merge(
                    out, out_stride, means, log_sums, unit * splits * USED, active, alive,
                    GROUP, USED, USED_PADDED, SPLITS_PADDED, MERGED, D, D_PADDED,
                )  # fmt: skip


@triton.jit
def merge(
    out, out_stride, means, log_sums, base, active, alive,
    GROUP: tl.constexpr, USED: tl.constexpr, USED_PADDED: tl.constexpr, SPLITS_PADDED: tl.constexpr,
    MERGED: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr,
):  # fmt: skip
    """out = Σ 2^(s − top)·mean ÷ Σ 2^(s − top) over the stretches, s their log sums; MERGED stretches at a time. What
    others wrote is read past this multiprocessor's own cache (.cg)."""
    line = tl.arange(0, USED_PADDED)
    column = tl.arange(0, D_PADDED)
    split = tl.arange(0, SPLITS_PADDED)
    every = log_sums + base + split[:, None] * USED + line[None, :]  # (SPLITS_PADDED, lines)
    held = (split < active)[:, None] & (line < USED)[None, :]
    all_sums = tl.load(every, mask=held, other=float("-inf"), cache_modifier=".cg")
    top = tl.max(all_sums, 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp2(all_sums - top[None, :]), 0)
    total = tl.where(total == 0, 1.0, total)
    merged = tl.zeros((USED_PADDED, D_PADDED), tl.float32)
    some = tl.arange(0, MERGED)
    for start in tl.range(0, active, MERGED):
        there = (start + some < active)[:, None] & (line < USED)[None, :]
        at = base + (start + some)[:, None] * USED + line[None, :]  # (MERGED, lines)
        sums = tl.load(log_sums + at, mask=there, other=float("-inf"), cache_modifier=".cg")
        real = there[:, :, None] & (column < D)[None, None, :]
        part = tl.load(means + at[:, :, None] * D + column[None, None, :], mask=real, other=0.0, cache_modifier=".cg")
        merged += tl.sum(part * tl.exp2(sums - top[None, :])[:, :, None], 0)
    spot = (line // GROUP)[:, None] * out_stride + (line % GROUP)[:, None] * D + column[None, :]
    real = (line < alive)[:, None] & (column < D)[None, :]
    tl.store(out + spot, rounded(merged / total[:, None], out.dtype.element_ty), mask=real)
