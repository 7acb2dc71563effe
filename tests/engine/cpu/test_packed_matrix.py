"""Packing and what comes out again; rounding to 8 bits; and a token's embedding out of a packed matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.cpu import product
from engine.cpu.embedding import embed
from engine.cpu.packed_matrix import GROUP, dequantise, halve, pack, quantise
from engine.cpu.product import MATRIX
from tests.engine.cpu.pools import address
from tests.engine.cpu.rows import matrix


@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (16, 64), (17, 96), (97, 576)])
def test_what_is_packed_comes_out(rows: int, columns: int):
    rng = np.random.default_rng(rows)
    scale = rng.normal(size=(rows, columns // GROUP)).astype(np.float16)
    minimum = rng.normal(size=scale.shape).astype(np.float16)
    wide = np.repeat(scale.astype(np.float32), GROUP, axis=1)
    for bits in (4, 8):
        codes = rng.integers(0, 1 << bits, (rows, columns), np.uint8)
        packed = pack(codes, scale, minimum if bits == 4 else None)
        wanted = codes.astype(np.float32) if bits == 4 else codes.astype(np.float32) - 128
        wanted = wanted * wide + (np.repeat(minimum.astype(np.float32), GROUP, axis=1) if bits == 4 else 0)
        np.testing.assert_array_equal(dequantise(packed), wanted)
        assert (packed.bits, packed.rows, packed.columns) == (bits, rows, columns)
        assert packed.padded_rows % 16 == 0 and packed.padded_rows - rows < 16
        assert packed.codes.ctypes.data % 64 == 0
        assert packed.bytes == packed.padded_rows * columns // GROUP * (4 * bits + (4 if bits == 4 else 2))


def test_rounding_is_within_half_a_step():
    weight = np.random.default_rng(0).normal(size=(50, 320)).astype(np.float32)
    weight[3, :32] = 0
    weight[4, 5] = 300  # an outlier costs its own 32 only
    packed = quantise(weight)
    scale = np.repeat(np.abs(weight.reshape(50, -1, GROUP)).max(axis=2) / 127, GROUP, axis=1)
    # the scale is rounded to float16: its last bit is 2⁻¹¹ of it, times 127 at most
    assert (np.abs(dequantise(packed) - weight) <= scale * (0.5 + 127 * 2**-11) + 1e-12).all()
    assert not dequantise(packed)[3, :32].any()


def test_rounding_what_is_rounded_changes_nothing():
    once = dequantise(matrix(8, 40, 96))
    np.testing.assert_array_equal(dequantise(quantise(once)), once)


@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (17, 96), (97, 576)])
def test_bfloat16_is_rounded_as_torch_rounds_it(rows: int, columns: int):
    weight = np.random.default_rng(rows).normal(size=(rows, columns)).astype(np.float32)
    weight[0, :6] = np.nan, np.inf, -np.inf, 0, -0.0, 3.3961776e38  # the last rounds to infinity
    weight[0, 6:10] = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF], np.uint32).view(np.float32)  # halves
    packed = halve(weight)
    wanted = torch.from_numpy(weight).bfloat16().float().numpy()
    np.testing.assert_array_equal(dequantise(packed), wanted)
    assert (packed.bits, packed.rows, packed.columns) == (16, rows, columns)
    assert packed.bytes == packed.padded_rows * columns * 2 and packed.codes.ctypes.data % 64 == 0


def test_rows_that_are_no_groups_are_refused():
    with pytest.raises(ValueError, match="groups of 32"):
        quantise(np.zeros((4, 40), np.float32))
    with pytest.raises(ValueError, match="groups of 32"):
        halve(np.zeros((4, 40), np.float32))
    with pytest.raises(ValueError, match="groups of 32"):
        pack(np.zeros((4, 40), np.uint8), np.zeros((4, 2), np.float16), None)


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize(("rows", "columns"), [(97, 64), (33, 576)])
def test_an_embedding_is_a_dequantised_row_to_the_bit(bits: int, rows: int, columns: int):
    packed = matrix(bits, rows, columns)
    record = np.array([product.describe(packed, None)], MATRIX)
    wanted = dequantise(packed)
    for token in (0, 1, 15, 16, rows - 1):
        tokens, out = np.array([5, token]), np.full(columns + 1, 7, np.float32)
        embed(record[0], address(tokens) + 8, address(out))
        assert out[:columns].tobytes() == wanted[token].tobytes() and out[columns] == 7
