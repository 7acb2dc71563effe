"""Attention over paged float16 keys and values: against a float64 loop, and the same bits however work is cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.cpu.attention import attend, attend_heads, scratch_floats
from tests.engine.cpu.pools import SHAPES, Pools, Shape, address

BLOCK_SIZES = (8, 16, 32, 128)
_BEFORE, _AFTER = 2, 1  # tokens of other sequences around the sequence's in the batch


class Sequence:
    """`new` tokens at the end of `context`, in a batch with tokens of others."""

    def __init__(self, shape: Shape, block_size: int, context: int, new: int, seed: int = 0, loud: float = 1.0):
        rng = np.random.default_rng(seed)
        self.shape, self.context, self.new = shape, context, new
        dims = (context, shape.kv_heads, shape.head_dim)
        self.keys = (loud * rng.normal(size=dims)).astype(np.float16)
        self.values = rng.normal(size=dims).astype(np.float16)
        blocks = -(-context // block_size)
        self.pools = Pools.unwritten(shape, blocks + 3, block_size)
        self.table = rng.permutation(blocks + 3)[:blocks].astype(np.int64)
        self.pools.write(self.keys, self.values, self.table)
        tokens = _BEFORE + new + _AFTER
        self.qkv = rng.normal(size=(tokens, shape.rows, shape.head_dim)).astype(np.float32)
        self.qkv[:, : shape.heads] *= loud * shape.head_dim**-0.5

    def attend(self, counts: list[int], heads_at_once: int | None = None) -> NDArray[np.float32]:
        """(new, H, d); the new tokens taken `counts` at a time, the heads of a group `heads_at_once`."""
        shape, pools = self.shape, self.pools
        group = shape.heads // shape.kv_heads
        out = np.full((_BEFORE + self.new + _AFTER, shape.heads, shape.head_dim), 7, np.float32)
        done = 0
        for count in counts:
            position = self.context - self.new + done
            for kv_head in range(shape.kv_heads):
                for first in range(0, group, heads_at_once or group):
                    heads = min(heads_at_once or group, group - first)
                    size = scratch_floats(count, heads, position + count)
                    scratch = np.full(size + 16, np.nan, np.float32)
                    scratch[size:] = 7
                    attend_heads(
                        _BEFORE + done, count, position, kv_head, first, heads, address(self.qkv), address(out),
                        shape.heads, shape.kv_heads, shape.head_dim, address(self.table), pools.block_size,
                        address(pools.keys), address(pools.values), pools.num_blocks, address(scratch),
                    )  # fmt: skip
                    assert (scratch[size:] == 7).all()
            done += count
        assert done == self.new
        assert (out[:_BEFORE] == 7).all() and (out[_BEFORE + done :] == 7).all()
        return out[_BEFORE : _BEFORE + done]

    def reference(self) -> NDArray[np.float64]:
        shape, out = self.shape, np.empty((self.new, self.shape.heads, self.shape.head_dim))
        keys, values = self.keys.astype(np.float64), self.values.astype(np.float64)
        for token in range(self.new):
            seen = self.context - self.new + token + 1
            for head in range(shape.heads):
                kv_head = head // (shape.heads // shape.kv_heads)
                scores = keys[:seen, kv_head] @ self.qkv[_BEFORE + token, head].astype(np.float64)
                weights = np.exp(scores - scores.max())
                out[token, head] = weights @ values[:seen, kv_head] / weights.sum()
        return out


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_is_the_formula(shape: Shape, block_size: int) -> None:
    for context, new in ((1, 1), (7, 7), (16, 1), (17, 2), (33, 13), (129, 5), (300, 3), (700, 8)):
        sequence = Sequence(shape, block_size, context, new, seed=context)
        np.testing.assert_allclose(sequence.attend([new]), sequence.reference(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", range(1, 14))
def test_is_the_formula_for_any_number_of_tokens(count: int) -> None:
    for shape in SHAPES[:5]:
        sequence = Sequence(shape, 16, 40 + count, count, seed=count)
        np.testing.assert_allclose(sequence.attend([count]), sequence.reference(), rtol=1e-5, atol=1e-5)


def test_scores_far_apart_are_no_problem() -> None:
    """Weights under e^−87 of the largest are 0, and the largest score's own weight is 1."""
    sequence = Sequence(Shape(9, 3, 64), 16, 200, 9, loud=20)
    np.testing.assert_allclose(sequence.attend([9]), sequence.reference(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_the_same_bits_however_work_is_cut(shape: Shape, block_size: int) -> None:
    for context in (13, 45, 261):
        sequence = Sequence(shape, block_size, context, 13, seed=context)
        one_by_one = sequence.attend([1] * 13, heads_at_once=1)
        for counts in ([13], [2] * 6 + [1], [3, 10], [8, 5], [4, 4, 4, 1], [7, 6]):
            for heads in (None, 1, 2, 3):
                assert sequence.attend(counts, heads).tobytes() == one_by_one.tobytes()


def test_zeros_have_the_same_sign_however_work_is_cut() -> None:
    """Where numbers below 1e−38 are flushed to 0, a sum may be −0 until a later token's + 0 is added to it."""
    sequence = Sequence(Shape(2, 1, 64), 16, 40, 13)
    first, *others = (divmod(position, 16) for position in (0, *range(28, 40)))  # the first new token is 27
    pools, table = sequence.pools, sequence.table
    pools.keys[...], pools.values[...] = 0, np.float16(-6e-8)
    for block, offset in others:
        pools.values[0, table[block], offset] = 1
    pools.values[0, table[first[0]], first[1]] = 0
    pools.keys[0, table[first[0]], :, first[1]] = 1  # a score of 80, all others 0: weights of 1 and e^−80
    sequence.qkv[:, :2] = 80 / 64
    flushes = torch.set_flush_denormal(True)
    try:
        together, alone = sequence.attend([13]), sequence.attend([1] * 13)
    finally:
        torch.set_flush_denormal(False)
    if not flushes:
        pytest.skip("this CPU flushes nothing")
    assert (alone[0] == 0).all()
    assert together.tobytes() == alone.tobytes()


def test_a_block_that_moves_changes_no_bit() -> None:
    one = Sequence(Shape(9, 3, 64), 16, 150, 4)
    other = Sequence(Shape(9, 3, 64), 16, 150, 4)
    other.pools = Pools.unwritten(other.shape, 30, 16)
    other.table = np.arange(29, 19, -1, dtype=np.int64)
    other.pools.write(other.keys, other.values, other.table)
    assert one.attend([4]).tobytes() == other.attend([4]).tobytes()


def test_attend_is_all_heads_of_the_group() -> None:
    sequence = Sequence(Shape(6, 2, 64), 16, 50, 3)
    shape, pools = sequence.shape, sequence.pools
    out = np.zeros((_BEFORE + 3, 6, 64), np.float32)
    scratch = np.empty(scratch_floats(3, 3, 50), np.float32)
    for kv_head in range(2):
        attend(
            _BEFORE, 3, 47, kv_head, address(sequence.qkv), address(out), shape.heads, shape.kv_heads, shape.head_dim,
            address(sequence.table), 16, address(pools.keys), address(pools.values), pools.num_blocks, address(scratch),
        )  # fmt: skip
    assert out[_BEFORE:].tobytes() == sequence.attend([3]).tobytes()
