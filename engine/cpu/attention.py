"""Causal attention over paged float16 keys and values, for one key head and the query heads that share it.

A *row* is one query: a token and a head of the group. Rows are taken a few at a time (`_ROWS`), so that a key or
value converted from float16 serves them all. Three passes, every score kept in between:

  scores   S[row][key] = q · k. 16 keys are the lanes of a vector; keys lie transposed within a block (`rope`), so
           that one dimension of 16 keys is one load. Two partial sums, even and odd dimensions.
  softmax  keys after a row's own position become −∞; then largest, exp, sum.
  mix      out = Σ p · v ÷ sum, key after key from position 0, 16 dimensions in the lanes of a vector.

The law here: a row's result depends on its own q, k, v and the block size, to the last bit. Neither the rows beside
it nor their number change which operations it sees or their order. Keys that are there only for a later row add an
exact 0, and a sum of −0, which + 0 would change (it takes a thread that flushes numbers near 0), is made + 0 at the
end. Lanes that nobody wrote may hold anything, NaN too: scores of such keys are replaced, their values never read.

While keys are scored their values are asked for, and the keys after the next: a tenth to a quarter faster where the
pool is larger than the caches, nothing lost where it isn't.

Queries come rotated and multiplied by d^−1/2 already. Knows nothing of sequences, threads and layers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from engine.cpu.vector import HOST, LANES, Emitter, Value, f32, i32, i64, vector

_FLOAT, _HALF, _WHOLE = 4, 2, 8  # bytes
# 16 float32 are one of 32 registers with AVX-512, and two of 16 (AVX2) or four of 32 (NEON) without
_WIDE = HOST.get("avx512f", False)
_COLUMNS = 2 if _WIDE else 1  # vectors of 16 keys that a pass over the dimensions scores at once
_STRIPS = 4 if _WIDE else 2  # vectors of 16 dimensions that a pass over the values sums at once
# how many rows to take when 0, 1, 2 … are left, the last number if still more are: at most 24 sums in registers
# (6 without AVX-512), and no row alone that could go with others
_TILES = (0, 1, 2, 3, 4, 3, 6, 4, 4, 6) if _WIDE else (0, 1, 2, 3, 2, 3)
_ROWS = tuple(sorted(set(_TILES[1:])))
_KEYS = _COLUMNS * LANES
_SMALL = 0  # instead of a number of rows: one row, one vector of dimensions
_LARGEST_HEAD = 256
_JOINED = _COLUMNS * LANES * _LARGEST_HEAD * _HALF // _FLOAT  # float32: keys of blocks of 8, joined to sixteens
_LINE = 16  # float32 of a cache line


@njit(nogil=True)
def scratch_floats(count, group, context):
    """float32 that `attend` needs for `count` tokens, `group` query heads and `context` keys (the last token's)."""
    rows = _whole_lines(count * group)
    return 5 * rows + _LINE + _JOINED + count * group * _stride(context)


@njit(nogil=True, inline="always")
def attend(
    token, count, position, kv_head, q, out, heads, kv_heads, head_dim, table, block_size, keys, values, num_blocks,
    scratch,
):  # fmt: skip
    """Tokens `token` … + count − 1 of the batch, which are `position` … of one sequence, for one key head.

    Addresses: q float32 (T, H + 2K, d), of which the first H heads are read; out float32 (T, H · d), of which the
    group's heads are written; table int64, the sequence's blocks; keys float16 (K, blocks, d, block size); values
    float16 (K, blocks, block size, d); scratch float32 (`scratch_floats`), best on a border of 64 bytes.
    d is a multiple of 16 up to 256, the block size a power of two from 8.
    """
    first = np.intp(0)  # a bare 0 is a type of its own: all would be compiled once more for it
    attend_heads(
        token, count, position, kv_head, first, heads // kv_heads, q, out, heads, kv_heads, head_dim, table,
        block_size, keys, values, num_blocks, scratch,
    )  # fmt: skip


@njit(nogil=True)
def attend_heads(
    token, count, position, kv_head, head_first, head_count, q, out, heads, kv_heads, head_dim, table, block_size,
    keys, values, num_blocks, scratch,
):  # fmt: skip
    """`attend` for heads head_first … + head_count − 1 of the group only, to the same bits."""
    rows, total = count * head_count, position + count
    stride = _stride(total) * _FLOAT
    sums = scratch + 4 * _whole_lines(rows) * _FLOAT
    columns = sums + _whole_lines(rows) * _FLOAT
    joined = columns + _LINE * _FLOAT
    scores = joined + _JOINED * _FLOAT
    head = kv_head * (heads // kv_heads) + head_first
    for row in range(rows):
        at, one = token + row // head_count, head + row % head_count
        _write(scratch, 2 * row, q + (at * (heads + 2 * kv_heads) + one) * head_dim * _FLOAT)
        _write(scratch, 2 * row + 1, out + (at * heads + one) * head_dim * _FLOAT)
    page = block_size * head_dim * _HALF
    keys += kv_head * num_blocks * page
    values += kv_head * num_blocks * page

    for first in range(0, total, _KEYS):
        _ask_ahead(first, total, head_dim, table, block_size, keys, values, page)
        for column in range(_COLUMNS):
            # past the end the last vector is scored again: nobody reads those scores
            key = min(first + column * LANES, (total - 1) // LANES * LANES)
            if block_size >= LANES:
                at = keys + _read(table, key // block_size) * page + key % block_size * _HALF
            else:
                at = joined + column * _LARGEST_HEAD * LANES * _HALF
                for part in range(1 + (key + block_size < total)):
                    block = keys + _read(table, key // block_size + part) * page
                    _copy_eights(block, at + part * block_size * _HALF, head_dim)
            _write(columns, column, at)
        row = 0
        while row < rows:
            taken = _tile(rows - row)
            _scores(
                taken, scratch + 2 * row * _WHOLE, columns, max(block_size, LANES) * _HALF, head_dim,
                scores + row * stride + first * _FLOAT, stride,
            )  # fmt: skip
            row += taken

    vectors = (total + LANES - 1) // LANES
    for row in range(rows):
        _softmax(scores + row * stride, vectors, position + row // head_count, sums + row * _FLOAT)

    row = 0
    while row < rows:
        strips = _STRIPS if head_dim >= _STRIPS * LANES else 1  # heads as small as that are of toy models
        taken = _tile(rows - row) if strips == _STRIPS else 1
        for dim in range(0, head_dim, strips * LANES):
            # the last strips may overlap those before: the same numbers are stored twice
            _mix(
                taken if strips == _STRIPS else _SMALL, min(dim, head_dim - strips * LANES), total,
                scratch + 2 * row * _WHOLE, sums + row * _FLOAT, head_dim, table, block_size, values,
                scores + row * stride, stride,
            )  # fmt: skip
        row += taken


@njit(nogil=True)
def _ask_ahead(first, total, head_dim, table, block_size, keys, values, page):
    """Have the values of these keys, and the keys after the next, on their way: blocks lie anywhere in memory, so no
    processor guesses which comes next."""
    for key in range(first, min(first + _KEYS, total), LANES):
        if block_size >= LANES:
            block = _read(table, key // block_size) * page
            _prefetch(values + block + key % block_size * head_dim * _HALF, head_dim // 2)
    ahead = first + 2 * _KEYS
    for key in range(ahead, min(ahead + _KEYS, total), LANES):
        if block_size == LANES:
            _prefetch(keys + _read(table, key // block_size) * page, head_dim // 2)


@njit(nogil=True)
def _whole_lines(number):
    return (number + _LINE - 1) // _LINE * _LINE


@njit(nogil=True)
def _stride(context):
    """Scores from a row to the next: one cache line more than there are, lest all rows share the same few lines."""
    return (context + _KEYS - 1) // _KEYS * _KEYS + _LINE


@njit(nogil=True)
def _tile(rows):
    return _TILES[min(rows, len(_TILES) - 1)]


# --- vector code ---


@intrinsic
def _read(context, list_, index):
    def generate(context, builder, signature, arguments):
        e = Emitter(builder)
        return e.load(e.at(*arguments, _WHOLE), i64)

    return types.intp(types.intp, types.intp), generate


@intrinsic
def _write(context, list_, index, number):
    def generate(context, builder, signature, arguments):
        e = Emitter(builder)
        e.store(arguments[2], e.at(*arguments[:2], _WHOLE))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@intrinsic
def _prefetch(context, address, lines):
    """Ask for that many cache lines from `address` on."""

    def generate(context, builder, signature, arguments):
        e = Emitter(builder)
        address, lines = arguments

        def ask(line: Value, _: list[Value]) -> list[Value]:
            e.prefetch(e.at(address, line, 64))
            return []

        e.loop(lines, [], ask)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic
def _copy_eights(context, source, to, head_dim):
    """float16 (d, 8) → the same with 16 to a dimension, of which 8 are written."""

    def generate(context, builder, signature, arguments):
        e = Emitter(builder)
        source, to, head_dim = arguments

        def copy(dim: Value, _: list[Value]) -> list[Value]:
            eight = e.load(e.at(source, dim, 8 * _HALF), vector(i64, 2))
            e.store(eight, e.at(to, dim, LANES * _HALF))
            return []

        e.loop(head_dim, [], copy)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@intrinsic
def _scores(context, rows, row_list, columns, step, head_dim, scores, stride):
    """scores[row][key] = q[row] · k[key], `rows` (of _ROWS) and _KEYS keys; `step` bytes between dimensions."""

    def generate(context, builder, signature, arguments):
        rows, *others = arguments
        _choose(Emitter(builder), rows, {number: (number,) for number in _ROWS}, _emit_scores, others)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 7), generate


def _emit_scores(
    e: Emitter, rows: int, row_list: Value, columns: Value, step: Value, head_dim: Value, scores: Value, stride: Value
) -> None:
    q = [e.load(e.at(row_list, 2 * _WHOLE * row), i64) for row in range(rows)]
    k = [e.load(e.at(columns, _WHOLE * column), i64) for column in range(_COLUMNS)]

    def two_dims(index: Value, sums: list[Value]) -> list[Value]:
        following = []
        for part in range(2):
            dim = e.b.add(e.b.shl(index, e.whole(1)), e.whole(part))
            offset = e.b.mul(dim, step)
            these = [e.load_halves(e.b.add(at, offset)) for at in k]
            for at in q:
                factor = e.load_splat(e.at(at, dim, _FLOAT), f32)
                for key in these:
                    following.append(e.fma(factor, key, sums[len(following)]))
        return following

    cells = rows * _COLUMNS
    sums = e.loop(e.b.lshr(head_dim, e.whole(1)), [e.constant(0.0, f32)] * (2 * cells), two_dims)
    for cell in range(cells):
        row, column = divmod(cell, _COLUMNS)
        at = e.at(e.b.add(scores, e.b.mul(e.whole(row), stride)), column * LANES * _FLOAT)
        e.store(e.b.fadd(sums[cell], sums[cells + cell]), at)


@intrinsic
def _softmax(context, scores, vectors, last, total):
    """e^(score − largest) in place of the scores of keys 0 … last, 0 of those after; `total` gets their sum."""

    def generate(context, builder, signature, arguments):
        e = Emitter(builder)
        scores, vectors, last, total = arguments
        lanes = ir.Constant(vector(i32), list(range(LANES)))
        last = e.splat(builder.trunc(last, i32))

        def visible(index: Value) -> tuple[Value, Value]:
            at = e.at(scores, index, LANES * _FLOAT)
            key = builder.add(e.splat(builder.trunc(builder.shl(index, e.whole(4)), i32)), lanes)
            seen = builder.icmp_signed("<=", key, last)
            return at, builder.select(seen, e.load(at, vector(f32)), e.constant(float("-inf"), f32))

        def compare(index: Value, most: list[Value]) -> list[Value]:
            return [e.maximum(most[0], visible(index)[1])]

        (most,) = e.loop(vectors, [e.constant(float("-inf"), f32)], compare)
        most = e.splat(e.largest(most))

        def weigh(index: Value, sums: list[Value]) -> list[Value]:
            at, score = visible(index)
            weight = e.exp(builder.fsub(score, most))
            e.store(weight, at)
            return [builder.fadd(sums[0], weight)]

        (sums,) = e.loop(vectors, [e.constant(0.0, f32)], weigh)
        e.store(e.sum(sums), total)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4), generate


@intrinsic
def _mix(context, rows, dim, total, row_list, sums, head_dim, table, block_size, values, weights, stride):
    """out[row][dim …] = Σ weight[row][key] · v[key][dim …] ÷ sum[row], keys 0 … total − 1.

    `rows` of _ROWS and _STRIPS vectors of dimensions, or _SMALL: one row and one vector.
    """

    def generate(context, builder, signature, arguments):
        rows, *others = arguments
        shapes = {number: (number, _STRIPS) for number in _ROWS} | {_SMALL: (1, 1)}
        _choose(Emitter(builder), rows, shapes, _emit_mix, others)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 11), generate


def _emit_mix(
    e: Emitter, rows: int, strips: int, dim: Value, total: Value, row_list: Value, sums: Value, head_dim: Value,
    table: Value, block_size: Value, values: Value, weights: Value, stride: Value,
) -> None:  # fmt: skip
    row_bytes = e.b.mul(head_dim, e.whole(_HALF))
    weight = [e.b.add(weights, e.b.mul(e.whole(row), stride)) for row in range(rows)]

    def block(index: Value, mixed: list[Value]) -> list[Value]:
        first = e.b.mul(index, block_size)
        page = e.b.mul(e.load(e.at(table, index, _WHOLE), i64), block_size)
        at = e.at(e.b.add(values, e.b.mul(page, row_bytes)), dim, _HALF)
        left = e.b.sub(total, first)
        here = e.b.select(e.b.icmp_signed("<", left, block_size), left, block_size)

        def key(index: Value, mixed: list[Value]) -> list[Value]:
            row_at = e.b.add(at, e.b.mul(index, row_bytes))
            v = [e.load_halves(e.at(row_at, strip * LANES * _HALF)) for strip in range(strips)]
            following = []
            for base in weight:
                factor = e.load_splat(e.at(base, e.b.add(first, index), _FLOAT), f32)
                for one in v:
                    following.append(e.fma(factor, one, mixed[len(following)]))
            return following

        return e.loop(here, mixed, key)

    blocks = e.b.udiv(e.b.add(total, e.b.sub(block_size, e.whole(1))), block_size)
    mixed = e.loop(blocks, [e.constant(0.0, f32)] * (rows * strips), block)
    for row in range(rows):
        at = e.at(e.load(e.at(row_list, (2 * row + 1) * _WHOLE), i64), dim, _FLOAT)
        divisor = e.load_splat(e.at(sums, row * _FLOAT), f32)
        for strip in range(strips):
            positive = e.b.fadd(mixed[row * strips + strip], e.constant(0.0, f32))
            e.store(e.b.fdiv(positive, divisor), e.at(at, strip * LANES * _FLOAT))


def _choose(
    e: Emitter, which: Value, shapes: dict[int, tuple[int, ...]], emit: Callable[..., None], arguments: list[Value]
) -> None:
    """The code of every shape, of which that one runs whose number `which` is."""
    end = e.b.append_basic_block("chosen")
    switch = e.b.switch(which, end)
    for number, shape in shapes.items():
        case = e.b.append_basic_block("case")
        switch.add_case(e.whole(number), case)
        e.b.position_at_end(case)
        emit(e, *shape, *arguments)
        e.b.branch(end)
    e.b.position_at_end(end)
