"""One row of a packed matrix, dequantised: the embedding of a token, from the head itself where the two are tied."""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from engine.cpu.packed_matrix import GROUP, OFFSET, TILE
from engine.cpu.vector import Emitter, f16, f32, i8, i16, i32, i64, number_at


@intrinsic
def _byte(context, address):
    def generate(context, builder, signature, arguments):
        return builder.zext(Emitter(builder).load(arguments[0], i8), i64)

    return types.int64(types.int64), generate


@intrinsic
def _half(context, address):
    def generate(context, builder, signature, arguments):
        return builder.fpext(Emitter(builder).load(arguments[0], f16), f32)

    return types.float32(types.int64), generate


@intrinsic
def _upper_half(context, address):
    def generate(context, builder, signature, arguments):
        bits = builder.zext(Emitter(builder).load(arguments[0], i16), i32)
        return builder.bitcast(builder.shl(bits, i32(16)), f32)

    return types.float32(types.int64), generate


@intrinsic
def _put(context, value, address):
    def generate(context, builder, signature, arguments):
        Emitter(builder).store(*arguments, align=4)
        return context.get_dummy_value()

    return types.void(types.float32, types.int64), generate


@njit(nogil=True)
def embed(matrix, token_at, out):
    """matrix: a record of product.MATRIX; token_at: address of the token's int64; out: address of (columns) float32."""
    token = number_at(token_at)
    tile, lane = token // TILE, token % TILE
    for g in range(matrix.groups):
        group = tile * matrix.groups + g
        if matrix.bits == 16:
            at = matrix.codes + group * 64 * 16 + 2 * lane
            for i in range(GROUP):
                _put(_upper_half(at + 2 * TILE * i), out + 4 * (g * GROUP + i))
            continue
        codes = matrix.codes + group * 64 * matrix.bits + 4 * lane
        scales = matrix.scales + group * (2 * TILE * (2 if matrix.bits == 4 else 1)) + 2 * lane
        d = _half(scales)
        for i in range(GROUP):
            line, byte = i // 4, i % 4
            if matrix.bits == 4:
                code = (_byte(codes + 64 * (line % 4) + byte) >> (4 * (line // 4))) & 15
                value = d * np.float32(code) + _half(scales + 2 * TILE)
            else:
                value = d * np.float32(_byte(codes + 64 * line + byte) - OFFSET)
            _put(value, out + 4 * (g * GROUP + i))
