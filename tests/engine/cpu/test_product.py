"""The products: against float64, and a row's bits whichever rows stand beside it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.cpu import product, quantise
from engine.cpu.packed_matrix import dequantise
from tests.engine.cpu.rows import Quantised, matrix, multiply, quantised

BYTES = (4, 8)
BITS = (*BYTES, 16)


def rows_of(count: int, columns: int, seed: int = 1) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(count, columns)) * rng.uniform(0.1, 10, (count, 1))).astype(np.float32)


def ready(bits: int, x: NDArray[np.float32]) -> Quantised:
    """As a product with weights of so many bits wants its rows."""
    return quantised(x, plain=bits == 16)


def assert_is_the_formula(bits: int, outputs: int, columns: int, rows: int) -> None:
    weight, x = matrix(bits, outputs, columns, seed=columns), ready(bits, rows_of(rows, columns, seed=rows))
    rng = np.random.default_rng(2)
    bias = rng.normal(size=weight.padded_rows).astype(np.float32)
    exact = product.reference_floats(weight, x[0]) if bits == 16 else product.reference(weight, *x)
    # the sum of all terms' absolute values says how much a float32 sum of them may be off
    scale = np.abs(x[0]).astype(np.float64) * (1 if bits == 16 else np.repeat(x[1]["scale"], 32, axis=1))
    most = scale @ np.abs(dequantise(weight)).T.astype(np.float64) * (3 if bits == 4 else 1) + 1
    got = multiply(weight, x, bias)
    assert (np.abs(got[:, :outputs] - bias[:outputs] - exact) <= 1e-6 * most).all()
    np.testing.assert_array_equal(got[:, outputs:], np.broadcast_to(bias[outputs:], got[:, outputs:].shape))
    onto = rng.normal(size=got.shape).astype(np.float32)
    added = multiply(weight, x, onto=onto)
    assert (np.abs(added[:, :outputs] - onto[:, :outputs] - exact) <= 1e-6 * most).all()
    np.testing.assert_array_equal(added[:, outputs:], onto[:, outputs:])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("rows", [*range(1, 14), 200])
def test_is_the_formula_for_any_number_of_rows(bits: int, rows: int):
    assert_is_the_formula(bits, 80, 96, rows)  # five tiles: one is left over


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("columns", [32, 64, 160, 576, 1536])
@pytest.mark.parametrize("outputs", [16, 32, 48, 97])
def test_is_the_formula_for_any_shape(bits: int, columns: int, outputs: int):
    assert_is_the_formula(bits, outputs, columns, 7)


@pytest.mark.parametrize("bits", BITS)
def test_a_row_alone_has_the_bits_that_it_has_in_any_batch(bits: int):
    weight, x = matrix(bits, 112, 576), rows_of(200, 576)
    whole = multiply(weight, ready(bits, x))
    for first, count in [(row, 1) for row in range(14)] + [(0, n) for n in range(2, 14)] + [(150, 50), (3, 192)]:
        part = multiply(weight, ready(bits, x[first : first + count]))
        assert part.tobytes() == whole[first : first + count].tobytes()


@pytest.mark.parametrize("bits", BITS)
def test_tiles_may_be_cut_anywhere(bits: int):
    weight, x = matrix(bits, 112, 96), ready(bits, rows_of(5, 96))
    whole = multiply(weight, x)
    for first, last in ((0, 1), (1, 4), (3, 7), (6, 7), (2, 2)):
        part = multiply(weight, x, tiles=(first, last))
        np.testing.assert_array_equal(part[:, 16 * first : 16 * last], whole[:, 16 * first : 16 * last])
        assert (np.delete(part, range(16 * first, 16 * last), axis=1) == 7).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("change", ["outlier", "nan", "infinity", "huge", "zero"])
def test_what_stands_in_one_row_costs_its_batch_mates_nothing(bits: int, change: str):
    """With one scale for the whole batch an outlier in one row would round the others away."""
    weight, x = matrix(bits, 112, 96), rows_of(9, 96)
    plain = multiply(weight, ready(bits, x))
    changed = x.copy()
    if change == "outlier":
        changed[4] *= 50
        changed[4, 7] *= 50
    elif change == "zero":
        changed[4] = 0
    else:
        changed[4, 7] = {"nan": np.nan, "infinity": np.inf, "huge": 1e30}[change]
    got = multiply(weight, ready(bits, changed))
    assert np.delete(got, 4, axis=0).tobytes() == np.delete(plain, 4, axis=0).tobytes()
    finite = np.isfinite(got[4, :112])
    assert not finite.any() if change in ("nan", "infinity") else finite.all()


@pytest.mark.parametrize("bits", BYTES)
def test_an_outlier_costs_its_own_row_one_group(bits: int):
    """The scale is that of 32 numbers, so the row's error stays that of the 31 beside the outlier."""
    weight, x = matrix(bits, 112, 576), rows_of(1, 576)
    loud = x.copy()
    loud[0, 7] = 50 * np.abs(x).max()
    dense = dequantise(weight).T.astype(np.float64)
    errors = [np.abs(multiply(weight, ready(bits, each))[:, :112] - each @ dense).max() for each in (x, loud)]
    half = loud[0, 7] / 127 / 2  # what each of the 31 may be off by
    assert errors[1] < errors[0] + half * np.abs(dense[:32]).sum(axis=0).max()


@pytest.mark.parametrize("bits", BYTES)
def test_numbers_at_the_ends_of_float32(bits: int):
    weight = matrix(bits, 48, 64)
    assert not multiply(weight, ready(bits, np.zeros((3, 64), np.float32)))[:, :48].any()
    x = rows_of(4, 64)
    for size in (1e30, 1e-30):
        small_or_large = multiply(weight, ready(bits, x * np.float32(size)))[:, :48] / size
        np.testing.assert_allclose(small_or_large, product.reference(weight, *quantise.reference(x)), rtol=0.02, atol=1)
    denormal = multiply(weight, ready(bits, x * np.float32(1e-42)))  # no more than nothing, and no NaN
    assert np.abs(denormal).max() < 1e-36


@pytest.mark.parametrize("bits", BYTES)
def test_the_largest_sums_of_bytes(bits: int):
    """Every code and every activation at its end: the sums of products must not saturate."""
    weight = matrix(bits, 16, 1536)
    weight.codes[...] = 255
    for sign in (1, -1):
        x = quantised(np.full((2, 1536), sign * 3, np.float32))
        assert (np.abs(x[0]) == 127).all()
        np.testing.assert_allclose(multiply(weight, x), product.reference(weight, *x), rtol=1e-5)
