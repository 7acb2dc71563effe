"""Rotation and KV store in the interpreter, against float64; and its own cosine at positions where a card's is off."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl

from engine.kernels.rope_store import DTYPES, _cos_sin, rope_store, rope_store_reference
from tests.kernels.agreement import assert_agrees
from tests.kernels.guarded import Guarded
from tests.kernels.pairwise import pairwise

# float32 rounds cosine and sine (two units each, at worst), two products and their sum, and a norm before them.
ROUNDINGS = {torch.float32: 12.0, torch.float16: 1.2, torch.bfloat16: 1.2}
F32, F16, BF16 = ROUNDINGS
BLOCK = 16


@triton.jit
def _of_angles(angles, cos, sin, n, WIDTH: tl.constexpr):
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    c, s = _cos_sin(tl.load(angles + at, mask=at < n, other=0.0))
    tl.store(cos + at, c, mask=at < n)
    tl.store(sin + at, s, mask=at < n)


def test_angles_of_any_position_have_their_cosine():
    """As far as a context of a million tokens, the first frequency being 1."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.rand(20000, generator=generator) * torch.logspace(-6, 6, 20000)
    corners = (torch.arange(0, 4000).double() * (math.pi / 4)).float()
    angles = torch.cat((spread, corners, torch.arange(0, 1_000_000, 997).float()))
    cos, sin = torch.empty_like(angles), torch.empty_like(angles)
    _of_angles[(triton.cdiv(len(angles), 4096),)](angles, cos, sin, len(angles), WIDTH=4096)
    for got, wanted in ((cos, angles.double().cos()), (sin, angles.double().sin())):
        assert (got - wanted).abs().max() < 1.5 * 2.0**-23
        assert ((got - wanted).abs() <= 2 * 2.0**-23 * wanted.abs() + 1e-9).all()  # near its zeros too


def frequencies(d: int, base: float = 10_000.0) -> torch.Tensor:
    return base ** -(torch.arange(0, d, 2).float() / d)


def case(
    tokens: int, heads: int, kv_heads: int, d: int, dtype: torch.dtype, normed: bool = False, block_size: int = BLOCK
) -> dict:
    """Slots in no order, some tokens not stored, and NaN wherever nothing was written yet."""
    generator = torch.Generator().manual_seed(tokens + 7 * d)
    blocks = tokens // block_size + 2
    slots = torch.randperm(blocks * block_size, generator=generator)[:tokens]
    slots[1::5] = -1
    pool = torch.full((kv_heads, blocks, block_size, d), float("nan"), dtype=dtype)
    return {
        "qkv": torch.randn(tokens, (heads + 2 * kv_heads) * d, generator=generator).to(dtype),
        "positions": torch.randint(0, 130_000, (tokens,), generator=generator),
        "inverse_frequencies": frequencies(d),
        "slots": slots,
        "keys": pool,
        "values": pool.clone(),
        "heads": heads,
        "kv_heads": kv_heads,
        "out_q": torch.full((tokens, heads, d), float("nan"), dtype=dtype),
        "q_norm": 1 + 0.3 * torch.randn(d, generator=generator) if normed else None,
        "k_norm": 1 + 0.3 * torch.randn(d, generator=generator) if normed else None,
        "eps": 1e-6,
    }


def in_float64(given: dict) -> dict:
    floats = ("qkv", "keys", "values", "out_q")
    return {name: value.double() if name in floats else value for name, value in given.items()}


def check(
    tokens: int, d: int, group: int, block_size: int, dtype: torch.dtype, normed: bool, kv_heads: int = 1
) -> None:
    given = case(tokens, group * kv_heads, kv_heads, d, dtype, normed, block_size)
    wanted = in_float64(given)
    qkv = Guarded(*given["qkv"].shape, dtype, given["qkv"])
    rope_store(**{**given, "qkv": qkv.rows})
    rope_store_reference(**wanted)
    assert_agrees(given["out_q"], wanted["out_q"], ROUNDINGS[dtype])
    for name in ("keys", "values"):
        written = ~wanted[name].isnan()
        assert torch.equal(written, ~given[name].isnan()), f"{name}: written elsewhere than told"
        assert_agrees(given[name][written], wanted[name][written], ROUNDINGS[dtype])
    stored = given["slots"] >= 0
    v = given["qkv"].view(tokens, -1, d)[:, -kv_heads:]
    assert torch.equal(given["values"].flatten(1, 2)[:, given["slots"][stored]], v[stored].transpose(0, 1))


# A token is a program of its own, which takes the interpreter 4 ms: 1,025 of them once, beside the cover.
SIZES = ((1, 17, 100), (64, 80, 96, 128), (1, 3, 4, 8), (16, 32, 128), DTYPES, (False, True))


@pytest.mark.parametrize(("tokens", "d", "group", "block_size", "dtype", "normed"), pairwise(*SIZES))
def test_it_is_the_formula(tokens: int, d: int, group: int, block_size: int, dtype: torch.dtype, normed: bool):
    check(tokens, d, group, block_size, dtype, normed, kv_heads=3 if group < 4 else 1)


@pytest.mark.slow
def test_many_tokens():
    check(1025, 80, 3, 32, BF16, True)


def test_nothing_is_stored_for_padding():
    given = case(4, 2, 1, 64, F32)
    given["slots"] = torch.full((4,), -1)
    rope_store(**given)
    assert given["keys"].isnan().all() and given["values"].isnan().all() and given["out_q"].isfinite().all()


def test_whole_numbers_of_32_bits_do_as_well_and_no_tokens_are_none():
    given, other = case(17, 4, 2, 64, F32), case(17, 4, 2, 64, F32)
    rope_store(**given)
    rope_store(**{**other, "slots": other["slots"].int(), "positions": other["positions"].int()})
    assert torch.equal(given["out_q"], other["out_q"])
    assert torch.equal(given["keys"].nan_to_num(), other["keys"].nan_to_num())
    rope_store(**case(0, 4, 2, 64, F32))


@pytest.mark.parametrize(
    "changed",
    [
        {"heads": 5},
        {"out_q": torch.empty(3, 4, 32)},
        {"slots": torch.zeros(2, dtype=torch.int64)},
        {"positions": torch.zeros(3)},
        {"inverse_frequencies": torch.zeros(32, dtype=torch.float64)},
        {"k_norm": torch.ones(64)},
        {"values": torch.zeros(2, 2, BLOCK, 64, dtype=torch.float16)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_would_be_read_as_other_numbers_is_refused(changed):
    with pytest.raises(ValueError, match="rope_store"):
        rope_store(**{**case(3, 4, 2, 64, F32), **changed})
