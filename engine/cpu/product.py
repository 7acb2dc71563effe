"""y = start + x · Wᵀ, x in int8 with a scale for each row and group, W packed: what a step spends its time in.

For a row r, an output n and the groups g of 32 inputs, with x = s · a and w = d · c + m:

    y[r, n] = start[r, n] + Σ_g  s[r, g] · d[n, g] · Σ_i a[r, i] · c[n, i]  +  m[n, g] · s[r, g] · Σ_i a[r, i]

The sums over i are whole numbers and exact; the sum over g runs in order, in float32. Weights of 16 bits are
multiplied as float32, by rows that stayed float32, input after input in order. What is computed for a row is
the same whichever rows stand beside it: a batch changes no bit of a row's result.

Bytes: each weight once for a tile's sweep over all rows (from the cache after the first of them); products: rows · N ·
K, 64 of them in an instruction where the CPU has one for bytes.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from engine.cpu.packed_matrix import GROUP, OFFSET, PackedMatrix, dequantise
from engine.cpu.vector import LANES, Emitter, f32, i8, i16, i32, literal, vector

# A row's group of 32 as the product reads it: its scale s, s · Σa, and Σa · −128 (what the codes of 8 bits are off by).
WORDS = np.dtype([("scale", np.float32), ("scaled_sum", np.float32), ("offset_sum", np.int32), ("unused", np.int32)])
_WORDS = WORDS.itemsize
_SOME = 4  # inputs that a turn of the loop over bfloat16 weights takes: more only takes longer to compile

# A matrix by its addresses; what the compiled program is given.
MATRIX = np.dtype([(name, np.int64) for name in ("codes", "scales", "start", "bits", "tiles", "groups")])


def describe(matrix: PackedMatrix, start: NDArray[np.float32] | None) -> tuple[int, ...]:
    """A row of MATRIX. `start`: (N) the bias, padded; None for a product that adds to what is there."""
    tiles, groups, _ = matrix.codes.shape
    address = 0 if start is None else start.ctypes.data
    return matrix.codes.ctypes.data, matrix.scales.ctypes.data, address, matrix.bits, tiles, groups


@intrinsic(prefer_literal=True)
def _sweep(context, rows, tiles, bits, codes, scales, groups, x, words, start, start_stride, out, out_stride):
    """`rows` rows by `tiles` tiles over all groups. Addresses; strides in bytes. rows, tiles, bits: literals."""
    if not all(isinstance(kind, types.IntegerLiteral) for kind in (rows, tiles, bits)):
        return None
    count, wide, width = literal(rows), literal(tiles), literal(bits)

    def generate(context, builder, signature, arguments):
        codes, scales, groups, x, words, start, start_stride, out, out_stride = arguments[3:]
        e = Emitter(builder)
        each_row, each_tile = range(count), range(wide)
        line_bytes, scale_bytes = 64 * width, (2 if width == 4 else 1) * 2 * LANES
        x_stride, word_stride = builder.mul(groups, e.whole(GROUP)), builder.mul(groups, e.whole(_WORDS))
        x_rows = [e.at(x, builder.mul(x_stride, e.whole(r))) for r in each_row]
        word_rows = [e.at(words, builder.mul(word_stride, e.whole(r))) for r in each_row]
        code_tiles = [e.at(codes, builder.mul(groups, e.whole(t * line_bytes))) for t in each_tile]
        scale_tiles = [e.at(scales, builder.mul(groups, e.whole(t * scale_bytes))) for t in each_tile]
        place = lambda base, stride, r, t: e.at(base, e.at(builder.mul(stride, e.whole(r)), 64 * t))  # noqa: E731

        def group(g, sums):
            x_at = [e.at(row, g, GROUP) for row in x_rows]
            words_at = [e.at(row, g, _WORDS) for row in word_rows]
            codes_at = [e.at(tile, g, line_bytes) for tile in code_tiles]
            scales_at = [e.at(tile, g, scale_bytes) for tile in scale_tiles]
            if width == 8:
                dots = [[e.load_splat(e.at(at, 8), i32)] * wide for at in words_at]
            else:
                dots = [[e.constant(0, i32)] * wide for _ in each_row]
            for q in range(GROUP // 4):
                lines = [_line(e, at, q, width) for at in codes_at]
                for r in each_row:
                    a = builder.bitcast(e.load_splat(e.at(x_at[r], 4 * q), i32), vector(i8, 64))
                    dots[r] = [e.dot_bytes(dots[r][t], lines[t], a) for t in each_tile]
            d = [e.load_halves(at) for at in scales_at]
            m = [e.load_halves(e.at(at, 2 * LANES)) for at in scales_at] if width == 4 else None
            result = []
            for r in each_row:
                s = e.load_splat(words_at[r], f32)
                for t in each_tile:
                    value = builder.sitofp(dots[r][t], vector(f32))
                    total = e.fma(value, builder.fmul(d[t], s), sums[r * wide + t])
                    if m is not None:
                        total = e.fma(m[t], e.load_splat(e.at(words_at[r], 4), f32), total)
                    result.append(total)
            return result

        first = [e.load(place(start, start_stride, r, t), vector(f32), 4) for r in each_row for t in each_tile]
        sums = e.loop(groups, first, group)
        for r in each_row:
            for t in each_tile:
                e.store(sums[r * wide + t], place(out, out_stride, r, t), 4)
        return context.get_dummy_value()

    return types.void(rows, tiles, bits, *[types.int64] * 9), generate


@intrinsic(prefer_literal=True)
def _sweep_floats(context, rows, tiles, codes, groups, x, start, start_stride, out, out_stride):
    """`_sweep` for bfloat16 weights and float32 rows."""
    if not all(isinstance(kind, types.IntegerLiteral) for kind in (rows, tiles)):
        return None
    count, wide = literal(rows), literal(tiles)

    def generate(context, builder, signature, arguments):
        codes, groups, x, start, start_stride, out, out_stride = arguments[2:]
        e = Emitter(builder)
        each_row, each_tile = range(count), range(wide)
        row_bytes, tile_bytes = e.at(e.whole(0), groups, 4 * GROUP), e.at(e.whole(0), groups, 64 * 16)
        x_rows = [e.at(x, builder.mul(row_bytes, e.whole(r))) for r in each_row]
        code_tiles = [e.at(codes, builder.mul(tile_bytes, e.whole(t))) for t in each_tile]
        place = lambda base, stride, r, t: e.at(base, e.at(builder.mul(stride, e.whole(r)), 64 * t))  # noqa: E731

        def some(index, sums):
            x_at = [e.at(row, index, 4 * _SOME) for row in x_rows]
            codes_at = [e.at(tile, index, 2 * LANES * _SOME) for tile in code_tiles]
            sums = list(sums)
            for i in range(_SOME):
                weights = [e.load_upper_halves(e.at(at, 2 * LANES * i)) for at in codes_at]
                for r in each_row:
                    a = e.load_splat(e.at(x_at[r], 4 * i), f32)
                    for t in each_tile:
                        sums[r * wide + t] = e.fma(weights[t], a, sums[r * wide + t])
            return sums

        first = [e.load(place(start, start_stride, r, t), vector(f32), 4) for r in each_row for t in each_tile]
        sums = e.loop(builder.mul(groups, e.whole(GROUP // _SOME)), first, some)
        for r in each_row:
            for t in each_tile:
                e.store(sums[r * wide + t], place(out, out_stride, r, t), 4)
        return context.get_dummy_value()

    return types.void(rows, tiles, *[types.int64] * 7), generate


def _line(e: Emitter, codes, q: int, bits: int):
    """64 codes, one to a byte: inputs 4 q … 4 q + 3 of 16 outputs."""
    half = GROUP // 8
    line = e.load(e.at(codes, 64 * (q % half if bits == 4 else q)), vector(i8, 64), 64)
    if bits == 8:
        return line
    if q >= half:  # there's no shift of bytes, and the bits that come in from the neighbour are cleared anyway
        pairs = e.b.lshr(e.b.bitcast(line, vector(i16, 32)), e.constant(4, i16, 32))
        line = e.b.bitcast(pairs, vector(i8, 64))
    return e.b.and_(line, e.constant(15, i8, 64))


@njit(nogil=True)
def _sweep_rows(rows, tiles, bits, codes, scales, groups, x, words, start, start_stride, out, out_stride):
    """One or two tiles for any number of rows, at most 6 at a time: the 2 · 12 sums of 6 rows and 2 tiles stay in the
    32 registers of AVX-512 with a weight line of each tile. What is left over is done at once for bytes, since a draft
    verified is 2 to 6 rows: in two sweeps, 3 rows took longer than 4."""
    row = 0
    while row < rows:
        left = rows - row
        a, w = x + row * groups * GROUP * (4 if bits == 16 else 1), words + row * groups * _WORDS
        s, o = start + row * start_stride, out + row * out_stride
        if bits == 4:
            if tiles == 1:
                _sweep(1, 1, 4, codes, scales, groups, a, w, s, start_stride, o, out_stride)
                row += 1
            elif left >= 6:
                _sweep(6, 2, 4, codes, scales, groups, a, w, s, start_stride, o, out_stride)
                row += 6
            elif left == 5:
                _sweep(5, 2, 4, codes, scales, groups, a, w, s, start_stride, o, out_stride)
                row += 5
            elif left == 4:
                _sweep(4, 2, 4, codes, scales, groups, a, w, s, start_stride, o, out_stride)
                row += 4
            elif left == 3:
                _sweep(3, 2, 4, codes, scales, groups, a, w, s, start_stride, o, out_stride)
                row += 3
            elif left == 2:
                _sweep(2, 2, 4, codes, scales, groups, a, w, s, start_stride, o, out_stride)
                row += 2
            else:
                _sweep(1, 2, 4, codes, scales, groups, a, w, s, start_stride, o, out_stride)
                row += 1
        elif bits == 16:
            if tiles == 1:
                _sweep_floats(1, 1, codes, groups, a, s, start_stride, o, out_stride)
                row += 1
            elif left >= 6:
                _sweep_floats(6, 2, codes, groups, a, s, start_stride, o, out_stride)
                row += 6
            elif left >= 4:
                _sweep_floats(4, 2, codes, groups, a, s, start_stride, o, out_stride)
                row += 4
            elif left >= 2:
                _sweep_floats(2, 2, codes, groups, a, s, start_stride, o, out_stride)
                row += 2
            else:
                _sweep_floats(1, 2, codes, groups, a, s, start_stride, o, out_stride)
                row += 1
        elif tiles == 1:
            _sweep(1, 1, 8, codes, scales, groups, a, w, s, start_stride, o, out_stride)
            row += 1
        elif left >= 6:
            _sweep(6, 2, 8, codes, scales, groups, a, w, s, start_stride, o, out_stride)
            row += 6
        elif left == 5:
            _sweep(5, 2, 8, codes, scales, groups, a, w, s, start_stride, o, out_stride)
            row += 5
        elif left == 4:
            _sweep(4, 2, 8, codes, scales, groups, a, w, s, start_stride, o, out_stride)
            row += 4
        elif left == 3:
            _sweep(3, 2, 8, codes, scales, groups, a, w, s, start_stride, o, out_stride)
            row += 3
        elif left == 2:
            _sweep(2, 2, 8, codes, scales, groups, a, w, s, start_stride, o, out_stride)
            row += 2
        else:
            _sweep(1, 2, 8, codes, scales, groups, a, w, s, start_stride, o, out_stride)
            row += 1


@njit(nogil=True)
def product(first, last, rows, matrix, x, words, start, start_stride, out, out_stride):
    """Outputs of the tiles first … last − 1 for all rows.

    x: int8 (rows, K), or float32 for 16 bits; words: WORDS (rows, K / 32); start and out: float32 with strides in
    bytes between rows (0 for a bias that all rows share); all by address. `matrix`: a record of MATRIX.
    """
    tile = first
    code_bytes, scale_bytes = matrix.groups * 64 * matrix.bits, matrix.groups * (128 if matrix.bits == 4 else 64) // 2
    while tile < last:
        tiles = min(2, last - tile)
        _sweep_rows(
            rows, tiles, matrix.bits,
            matrix.codes + tile * code_bytes, matrix.scales + tile * scale_bytes, matrix.groups,
            x, words, start + tile * 64, start_stride, out + tile * 64, out_stride,
        )  # fmt: skip
        tile += tiles


def reference_floats(matrix: PackedMatrix, x: NDArray[np.float32]) -> NDArray[np.float64]:
    """(rows, N) of float32 rows, in float64; for 16 bits."""
    return x.astype(np.float64) @ dequantise(matrix).astype(np.float64).T


def reference(matrix: PackedMatrix, codes: NDArray[np.int8], words: NDArray) -> NDArray[np.float64]:
    """(rows, N) of quantised rows, in float64."""
    scale = np.repeat(words["scale"].astype(np.float64), GROUP, axis=1)
    return (codes * scale) @ dequantise(matrix).astype(np.float64).T


assert OFFSET == 128  # the offset sum of WORDS
