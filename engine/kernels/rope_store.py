"""Rotary position embedding, halves form, and the KV store with it: q turned into out_q, k turned and v as it is into
the pool. (x1, x2) → (x1·cos − x2·sin, x2·cos + x1·sin), x1 and x2 a head's halves; with q_norm and k_norm each head is
first normed as in Qwen3. All in float32, rounded once.

Reads qkv and writes as much: 2·T·(H + 2K)·d·n bytes. A program takes some heads of one token.

An angle is a float32 product, as everywhere else, but a card's own cosine is only good near zero and libdevice's keeps
an array in local memory for large ones. So the quarter turns are taken off in float64, three operations an angle, and
a polynomial does the rest: right to a unit or two in the last place at any position.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.ahead import TYPES, Case
from engine.kernels.interpreted import rounded, widened

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HALVES = 512  # pairs of a program at most: 4 a thread
WARPS = 4


@triton.jit
def _cos_sin(angle):
    """Of float32 angles. π/2 is two float32 that add up to it within 10⁻¹⁵; the polynomials are Cephes'."""
    turns = tl.floor(angle * 0.63661977236758134 + 0.5)  # quarter turns, 2/π; which of two, halfway, doesn't matter
    wide = turns.to(tl.float64)
    left = angle.to(tl.float64) - wide * 1.57079637050628662109375 + wide * 4.37113900018624283e-8
    r = left.to(tl.float32)
    z = r * r
    sin = r + r * z * (-1.6666654611e-1 + z * (8.3321608736e-3 - z * 1.9515295891e-4))
    cos = 1.0 - 0.5 * z + z * z * (4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5))
    quarter = turns.to(tl.int32) & 3
    odd = (quarter & 1) == 1
    turned_cos = tl.where(odd, sin, cos)
    turned_sin = tl.where(odd, cos, sin)
    turned_cos = tl.where((quarter == 1) | (quarter == 2), -turned_cos, turned_cos)
    turned_sin = tl.where(quarter >= 2, -turned_sin, turned_sin)
    return turned_cos, turned_sin


@triton.jit
def _rope_store(
    qkv, positions, inverse_frequencies, slots, keys, values, out_q, q_norm, k_norm,
    qkv_stride, out_stride, pool_stride, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, NORMED: tl.constexpr,
    SOME: tl.constexpr, HALF_PADDED: tl.constexpr,
):  # fmt: skip
    """Grid (T, pieces of H + 2K heads, SOME heads each)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * SOME + tl.arange(0, SOME)
    column = tl.arange(0, HALF_PADDED)
    half: tl.constexpr = D // 2
    inside = column < half
    is_q = head < HEADS
    is_k = (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_v = (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
    real = (head < HEADS + 2 * KV_HEADS)[:, None] & inside[None, :]
    at = head[:, None] * D + column[None, :]  # (SOME, half)
    here = qkv + token * qkv_stride + at
    first = widened(tl.load(here, mask=real, other=0.0)).to(tl.float32)
    second = widened(tl.load(here + half, mask=real, other=0.0)).to(tl.float32)
    turns = is_q | is_k
    x1, x2 = first, second
    if NORMED:
        scale = tl.rsqrt((tl.sum(x1 * x1, 1) + tl.sum(x2 * x2, 1)) / D + eps)
        of_q = is_q[:, None] & inside[None, :]
        of_k = is_k[:, None] & inside[None, :]
        nothing = tl.zeros((SOME, 1), tl.int32)
        place = nothing + column[None, :]
        w1 = widened(tl.load(q_norm + place, mask=of_q, other=0.0)).to(tl.float32)
        w1 += widened(tl.load(k_norm + place, mask=of_k, other=0.0)).to(tl.float32)
        w2 = widened(tl.load(q_norm + half + place, mask=of_q, other=0.0)).to(tl.float32)
        w2 += widened(tl.load(k_norm + half + place, mask=of_k, other=0.0)).to(tl.float32)
        x1 = x1 * scale[:, None] * w1
        x2 = x2 * scale[:, None] * w2
    position = tl.load(positions + token).to(tl.float32)
    cos, sin = _cos_sin(position * tl.load(inverse_frequencies + column, mask=inside, other=0.0))
    y1 = tl.where(turns[:, None], x1 * cos[None, :] - x2 * sin[None, :], first)
    y2 = tl.where(turns[:, None], x2 * cos[None, :] + x1 * sin[None, :], second)
    y1 = rounded(y1, out_q.dtype.element_ty)
    y2 = rounded(y2, out_q.dtype.element_ty)

    to_q = out_q + token * out_stride + at
    tl.store(to_q, y1, mask=real & is_q[:, None])
    tl.store(to_q + half, y2, mask=real & is_q[:, None])
    slot = tl.load(slots + token).to(tl.int64)
    of_pool = slot * D + column[None, :]
    stored = real & (of_pool >= 0)  # slot −1: below zero in every column
    to_k = keys + (head - HEADS).to(tl.int64)[:, None] * pool_stride + of_pool
    tl.store(to_k, y1, mask=stored & is_k[:, None])
    tl.store(to_k + half, y2, mask=stored & is_k[:, None])
    to_v = values + (head - HEADS - KV_HEADS).to(tl.int64)[:, None] * pool_stride + of_pool
    tl.store(to_v, y1, mask=stored & is_v[:, None])
    tl.store(to_v + half, y2, mask=stored & is_v[:, None])


def rope_store(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    inverse_frequencies: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    heads: int,
    kv_heads: int,
    out_q: torch.Tensor,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """qkv (T, (H + 2K)·d), q first; positions, slots (T) int32 or int64, a slot of −1 isn't written; keys, values (K,
    blocks, block_size, d); out_q (T, H, d); inverse_frequencies (d / 2) float32; q_norm, k_norm (d). Two tokens of one
    launch must not have the same slot."""
    d = keys.shape[-1]
    tokens = len(qkv)
    _need(qkv.shape == (tokens, (heads + 2 * kv_heads) * d), f"qkv {tuple(qkv.shape)} for heads of {d}")
    _need(out_q.shape == (tokens, heads, d), f"out_q {tuple(out_q.shape)}")
    _need(
        qkv.dtype in DTYPES and {qkv.dtype} == {keys.dtype, values.dtype, out_q.dtype}, "float32, float16 or bfloat16"
    )
    _need(qkv.stride(1) == 1 and (not tokens or out_q[0].is_contiguous()), "a token's heads lie together")
    _need(keys.shape == values.shape and keys.stride() == values.stride(), "keys and values are laid out alike")
    _need(len(keys) == kv_heads and keys[0].is_contiguous(), f"a pool of {len(keys)} heads that each lie together")
    _need(positions.shape == slots.shape == (tokens,), "a position and a slot for each token")
    _need({positions.dtype, slots.dtype} <= {torch.int32, torch.int64}, "positions and slots are whole numbers")
    _need(positions.is_contiguous() and slots.is_contiguous(), "positions and slots lie together")
    _need(inverse_frequencies.shape == (d // 2,) and inverse_frequencies.dtype == torch.float32, "d / 2 frequencies")
    _need(d % 2 == 0 and (q_norm is None) == (k_norm is None), "heads have halves; q and k are normed both or neither")
    _need(all(norm is None or norm.shape == (d,) for norm in (q_norm, k_norm)), f"norms of {d}")
    if not tokens:
        return
    some, half_padded = _tile(heads + 2 * kv_heads, d)
    _rope_store[(tokens, triton.cdiv(heads + 2 * kv_heads, some))](
        qkv, positions, inverse_frequencies, slots, keys, values, out_q,
        qkv if q_norm is None else q_norm, qkv if k_norm is None else k_norm,
        qkv.stride(0), out_q.stride(0), keys.stride(0), eps,
        HEADS=heads, KV_HEADS=kv_heads, D=d, NORMED=q_norm is not None, SOME=some, HALF_PADDED=half_padded,
        num_warps=WARPS,
    )  # fmt: skip


def _tile(heads: int, d: int) -> tuple[int, int]:
    """Heads of a program, and the width of a half, padded."""
    half = triton.next_power_of_2(d // 2)
    return max(1, min(HALVES // half, triton.next_power_of_2(heads))), half


def rope_store_reference(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    inverse_frequencies: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    heads: int,
    kv_heads: int,
    out_q: torch.Tensor,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """In float32, or float64 if that is what it is given; angles are float32 products in either."""
    wide = torch.float64 if qkv.dtype == torch.float64 else torch.float32
    d = keys.shape[-1]
    q, k, v = qkv.view(len(qkv), -1, d).split((heads, kv_heads, kv_heads), dim=1)
    angles = (positions.float()[:, None] * inverse_frequencies).to(wide)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]  # (T, 1, d / 2)

    def turned(x: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        x = x.to(wide)
        if norm is not None:
            x = x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * norm.to(wide)
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)

    out_q.copy_(turned(q, q_norm))
    stored = slots >= 0
    for pool, new in ((keys, turned(k, k_norm)), (values, v)):
        pool.flatten(1, 2)[:, slots[stored].long()] = new[stored].transpose(0, 1).to(pool.dtype)


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(f"rope_store: {otherwise}")


# As Llama 3 8B has its heads, and Qwen3 with their norms; the default model's, and a size that is no power of two.
STRIDES = ("qkv_stride", "out_stride", "pool_stride")
SHAPES = ((32, 8, 128, False), (32, 8, 128, True), (9, 3, 64, False), (32, 32, 80, False))


def ahead() -> list[Case]:
    found = []
    for name, short in TYPES.items():
        for heads, kv_heads, d, normed in SHAPES if name == "bfloat16" else SHAPES[1:3]:
            floats = ("qkv", "keys", "values", "out_q")
            types = dict.fromkeys(floats, f"*{short}") | {"inverse_frequencies": "*fp32", "eps": "fp32"}
            types |= {"q_norm": "*fp32" if normed else f"*{short}", "k_norm": "*fp32" if normed else f"*{short}"}
            types |= {"positions": "*i64", "slots": "*i64"} | dict.fromkeys(STRIDES, "i32")
            some, half_padded = _tile(heads + 2 * kv_heads, d)
            constants = {"HEADS": heads, "KV_HEADS": kv_heads, "D": d, "NORMED": normed}
            found.append(
                Case(
                    _rope_store,
                    f"{name}, {heads}/{kv_heads} heads of {d}{', normed' if normed else ''}",
                    types,
                    constants | {"SOME": some, "HALF_PADDED": half_padded},
                    divisible=STRIDES,
                    warps=WARPS,
                )
            )
    return found
