"""Rotates the queries and keys of a batch and puts keys and values into the paged pools.

The rotation is that of `engine.kernels.rope`: (x1, x2) → (x1·cos − x2·sin, x2·cos + x1·sin), x1 and x2 a head's
halves. A model with norms of its heads (Qwen3) has them applied first. Queries stay where they are, float32, and
leave here multiplied by d^−1/2, so that attention needn't.

A pool holds float16. Keys lie transposed within a block, (K, blocks, d, block size): sixteen following positions of
one dimension are side by side, which is what attention multiplies. Values lie (K, blocks, block size, d). What
float16 can't hold is stored as ±65504, never as an infinity.

Knows nothing of sequences: a token has a slot, block · block size + offset, and that is all.
"""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from engine.cpu.vector import LANES, Emitter, Value, f32, i32, i64, vector

_HALF_LANES = 8  # half a head is a multiple of 8, not of 16
_FLOAT, _HALF = 4, 2  # bytes


@njit(nogil=True)
def rotate_and_store(
    first, last, qkv, rotation, qk_norm, eps, heads, kv_heads, head_dim, slots, block_size, keys, values, num_blocks
):
    """Tokens first … last − 1 of the batch. All but `eps` and the numbers of things are addresses:

    qkv float32 (T, H + 2K, d); rotation float32 (T, 2, d / 2), cos then sin; qk_norm float32 (H + K, d), or 0 for a
    model without; slots int64 (T), −1 for a token that isn't stored; keys and values the float16 pools of a layer. d is
    a multiple of 16.
    """
    head_bytes = head_dim * _FLOAT
    for token in range(first, last):
        head = qkv + token * (heads + 2 * kv_heads) * head_bytes
        turn = rotation + token * head_bytes
        for index in range(heads + kv_heads):
            if qk_norm != 0:
                _normalise(head, qk_norm + index * head_bytes, head_dim, eps)
            _rotate(head, turn, head_dim, head_dim**-0.5 if index < heads else 1.0)
            head += head_bytes
        slot = _slot(slots, token)
        if slot < 0:
            continue
        block, offset = slot // block_size, slot % block_size
        for kv_head in range(kv_heads):
            page = (kv_head * num_blocks + block) * block_size * head_dim
            key = head + (kv_head - kv_heads) * head_bytes
            _store_key(key, keys + (page + offset) * _HALF, block_size * _HALF, head_dim)
            _store_value(head + kv_head * head_bytes, values + (page + offset * head_dim) * _HALF, head_dim)


@intrinsic
def _slot(context, slots, token):
    def generate(context, builder, signature, arguments):
        e = Emitter(builder)
        slots, token = arguments
        return e.load(e.at(slots, token, 8), i64)

    return types.intp(types.intp, types.intp), generate


@intrinsic
def _normalise(context, head, weight, head_dim, eps):
    """head[i] · weight[i] / √(mean of squares + eps), in place."""

    def generate(context, builder, signature, arguments):
        e = Emitter(builder)
        head, weight, head_dim, eps = arguments
        vectors = builder.lshr(head_dim, e.whole(4))

        def add_square(index: Value, total: list[Value]) -> list[Value]:
            x = e.load(e.at(head, index, LANES * _FLOAT), vector(f32))
            return [e.fma(x, x, total[0])]

        (squares,) = e.loop(vectors, [e.constant(0.0, f32)], add_square)
        mean = builder.fdiv(e.sum(squares), builder.sitofp(head_dim, f32))
        root = e.call("llvm.sqrt.f32", f32, builder.fadd(mean, eps))
        factor = e.splat(builder.fdiv(ir.Constant(f32, 1.0), root))

        def scale(index: Value, _: list[Value]) -> list[Value]:
            at = e.at(head, index, LANES * _FLOAT)
            x = builder.fmul(e.load(at, vector(f32)), factor)
            e.store(builder.fmul(x, e.load(e.at(weight, index, LANES * _FLOAT), vector(f32))), at)
            return []

        e.loop(vectors, [], scale)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.float32), generate


@intrinsic
def _rotate(context, head, rotation, head_dim, factor):
    """The head turned by its token's angles and multiplied by `factor`, in place."""

    def generate(context, builder, signature, arguments):
        e = Emitter(builder)
        head, rotation, head_dim, factor = arguments
        factor = e.splat(factor, _HALF_LANES)
        half = builder.lshr(head_dim, e.whole(1))

        def turn(index: Value, _: list[Value]) -> list[Value]:
            low = [e.at(base, index, _HALF_LANES * _FLOAT) for base in (head, rotation)]
            high = [e.at(base, half, _FLOAT) for base in low]
            x1, cos, x2, sin = (e.load(at, vector(f32, _HALF_LANES)) for at in (*low, *high))
            y1 = e.fma(x1, cos, builder.fneg(builder.fmul(x2, sin)))
            y2 = e.fma(x2, cos, builder.fmul(x1, sin))
            e.store(builder.fmul(y1, factor), low[0])
            e.store(builder.fmul(y2, factor), high[0])
            return []

        e.loop(builder.lshr(head_dim, e.whole(4)), [], turn)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.float32), generate


@intrinsic
def _store_key(context, head, at, step, head_dim):
    """float32 (d) → float16, dimension i at `at` + i · step bytes."""

    def generate(context, builder, signature, arguments):
        e = Emitter(builder)
        head, at, step, head_dim = arguments

        def scatter(index: Value, place: list[Value]) -> list[Value]:
            halves = e.to_half(e.load(e.at(head, index, LANES * _FLOAT), vector(f32)))
            to = place[0]
            for lane in range(LANES):
                e.store(builder.extract_element(halves, ir.Constant(i32, lane)), to, align=2)
                to = builder.add(to, step)
            return [to]

        e.loop(builder.lshr(head_dim, e.whole(4)), [at], scatter)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.intp), generate


@intrinsic
def _store_value(context, head, at, head_dim):
    """float32 (d) → float16 (d)."""

    def generate(context, builder, signature, arguments):
        e = Emitter(builder)
        head, at, head_dim = arguments

        def convert(index: Value, _: list[Value]) -> list[Value]:
            halves = e.to_half(e.load(e.at(head, index, LANES * _FLOAT), vector(f32)))
            e.store(halves, e.at(at, index, LANES * _HALF), align=2)
            return []

        e.loop(builder.lshr(head_dim, e.whole(4)), [], convert)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate
