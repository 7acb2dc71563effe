"""Rows of float32 → int8 with a scale for each group of 32: what goes into a product, with the op before it.

    s = max |x| / 127,  a = round(x / s)        over the 32 numbers of a group of one row

The scale is a row's own and a group's own: a large number in one row, or elsewhere in the same row, costs the others
nothing. Rows that meet weights of 16 bits stay float32 (`plain`). Three ways to come by x, each read once: as it is,
after RMSNorm (x · w / √(mean x² + ε); Zhang and Sennrich 2019), and as silu(gate) · up (Shazeer 2020).
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from engine.cpu.packed_matrix import GROUP, OFFSET
from engine.cpu.product import WORDS
from engine.cpu.vector import LANES, Emitter, f32, i8, i16, i32, vector

_BYTES = 4 * GROUP  # of a group in float32
_HALF = 4 * LANES
_LEAST = float(np.float32(1e-38))  # a scale up to here is 0: 1 / s would be infinite


def _store_group(e: Emitter, low, high, codes, words) -> None:
    """Two vectors of 16 → 32 int8 at `codes`, and their WORDS."""
    b = e.b
    largest = e.largest(e.maximum(e.absolute(low), e.absolute(high)))
    one = ir.Constant(f32, 1.0)
    # maxnum passes over a NaN; the scale must not, or a damaged weight would give numbers that look sound
    broken = b.icmp_unsigned("!=", b.bitcast(b.fcmp_unordered("uno", low, high), i16), ir.Constant(i16, 0))
    scale = b.fmul(largest, ir.Constant(f32, float(np.float32(1 / 127))))
    scale = b.select(broken, ir.Constant(f32, float("nan")), scale)
    something = b.fcmp_ordered(">", scale, ir.Constant(f32, _LEAST))
    inverse = e.splat(b.select(something, b.fdiv(one, scale), ir.Constant(f32, 0.0)))
    limit = e.constant(127.0, f32)
    whole = []
    for part, values in enumerate((low, high)):
        held = e.maximum(e.minimum(e.nearest(b.fmul(values, inverse)), limit), e.constant(-127.0, f32))
        numbers = b.fptosi(held, vector(i32))
        e.store(b.trunc(numbers, vector(i8)), e.at(codes, LANES * part), LANES)
        whole.append(numbers)
    total = e.sum(b.add(*whole))
    e.store(scale, words, 4)
    e.store(b.fmul(scale, b.sitofp(total, f32)), e.at(words, 4), 4)
    e.store(b.mul(total, ir.Constant(i32, -OFFSET)), e.at(words, 8), 4)


def _groups(e: Emitter, columns):
    return e.b.sdiv(columns, e.whole(GROUP))


def _each_group(e: Emitter, plain, columns, codes, words, numbers) -> None:
    """`numbers(offset in bytes) → two vectors` of each group; at `codes` as float32 if `plain`."""

    def quantised(g, _):
        low, high = numbers(e.b.mul(g, e.whole(_BYTES)))
        _store_group(e, low, high, e.at(codes, g, GROUP), e.at(words, g, WORDS.itemsize))
        return []

    def as_they_are(g, _):
        offset = e.b.mul(g, e.whole(_BYTES))
        for part, values in enumerate(numbers(offset)):
            e.store(values, e.at(e.at(codes, offset), _HALF * part), 4)
        return []

    with e.b.if_else(e.b.icmp_signed("!=", plain, e.whole(0))) as (then, otherwise):
        with then:
            e.loop(_groups(e, columns), [], as_they_are)
        with otherwise:
            e.loop(_groups(e, columns), [], quantised)


def _pair(e: Emitter, base, offset):
    at = e.at(base, offset)
    return e.load(at, vector(f32), 4), e.load(e.at(at, _HALF), vector(f32), 4)


@intrinsic
def quantise_row(context, plain, columns, x, codes, words):
    """One row of `columns` float32 (a multiple of 32); addresses."""

    def generate(context, builder, signature, arguments):
        plain, columns, x, codes, words = arguments
        e = Emitter(builder)
        _each_group(e, plain, columns, codes, words, lambda offset: _pair(e, x, offset))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


@intrinsic
def normalise_row(context, plain, columns, x, weight, epsilon, codes, words):
    """RMSNorm of one row, then quantised. epsilon: float32."""

    def generate(context, builder, signature, arguments):
        plain, columns, x, weight, epsilon, codes, words = arguments
        e = Emitter(builder)

        def squares(g, sums):
            values = _pair(e, x, builder.mul(g, e.whole(_BYTES)))
            return [e.fma(value, value, total) for value, total in zip(values, sums, strict=True)]

        low, high = e.loop(_groups(e, columns), [e.constant(0.0, f32)] * 2, squares)
        mean = builder.fdiv(e.sum(builder.fadd(low, high)), builder.sitofp(columns, f32))
        root = builder.call(builder.module.declare_intrinsic("llvm.sqrt", [f32]), [builder.fadd(mean, epsilon)])
        inverse = e.splat(builder.fdiv(ir.Constant(f32, 1.0), root))

        def numbers(offset):
            values, weights = _pair(e, x, offset), _pair(e, weight, offset)
            return [builder.fmul(builder.fmul(v, inverse), w) for v, w in zip(values, weights, strict=True)]

        _each_group(e, plain, columns, codes, words, numbers)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4, types.float32, types.int64, types.int64), generate


@intrinsic
def swiglu_row(context, plain, columns, gate, up, codes, words):
    """silu(gate) · up of one row, then quantised."""

    def generate(context, builder, signature, arguments):
        plain, columns, gate, up, codes, words = arguments
        e = Emitter(builder)
        one = e.constant(1.0, f32)

        def silu(g):
            return builder.fdiv(g, builder.fadd(one, e.exp(builder.fneg(g))))

        def numbers(offset):
            gates, ups = _pair(e, gate, offset), _pair(e, up, offset)
            return [builder.fmul(silu(g), u) for g, u in zip(gates, ups, strict=True)]

        _each_group(e, plain, columns, codes, words, numbers)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), generate


def reference(x: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray]:
    """(rows, K) → codes (rows, K) and WORDS (rows, K / 32)."""
    rows, columns = x.shape
    grouped = x.reshape(rows, -1, GROUP)
    scale = np.abs(grouped).max(axis=2) * np.float32(1 / 127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > _LEAST)
    with np.errstate(invalid="ignore"):  # infinity times 0
        whole = np.nan_to_num(np.rint(grouped * inverse[:, :, None]), nan=127)
    codes = np.clip(whole, -127, 127).astype(np.int8)
    total = codes.astype(np.int32).sum(axis=2)
    words = np.zeros(scale.shape, WORDS)
    words["scale"], words["scaled_sum"], words["offset_sum"] = scale, scale * total.astype(np.float32), -OFFSET * total
    return codes.reshape(rows, columns), words
