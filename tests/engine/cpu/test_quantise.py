"""Rows to int8 and their words, alone and with the op before: against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.cpu.packed_matrix import GROUP
from engine.cpu.quantise import reference
from tests.engine.cpu.rows import Quantised, gated, normalised, quantised

WIDTHS = (32, 64, 96, 576, 1536)


def random(rows: int, columns: int, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed + columns)
    return (rng.normal(size=(rows, columns)) * 10 ** rng.uniform(-3, 3, (rows, 1))).astype(np.float32)


def assert_words_belong(codes: NDArray[np.int8], words: NDArray) -> None:
    """The words say of the codes what a product needs to know, exactly."""
    total = codes.reshape(len(codes), -1, GROUP).sum(axis=2, dtype=np.int32)
    np.testing.assert_array_equal(words["offset_sum"], -128 * total)
    np.testing.assert_array_equal(words["scaled_sum"], words["scale"] * total.astype(np.float32))


def assert_quantises(got: Quantised, wanted: NDArray[np.float64]) -> None:
    """Scales to float32's rounding, codes within one; another code only where x / s is next to a half."""
    codes, words = got
    assert_words_belong(codes, words)
    grouped = wanted.reshape(len(wanted), -1, GROUP)
    np.testing.assert_allclose(words["scale"], np.abs(grouped).max(axis=2) / 127, rtol=5e-6, atol=1e-38)
    scale = np.where(words["scale"] > 0, words["scale"], 1).astype(np.float64)[:, :, None]
    steps = np.clip(grouped / scale, -127, 127).reshape(wanted.shape)
    assert (np.abs(steps - codes) < 0.5 + 1e-3).all()


@pytest.mark.parametrize("columns", WIDTHS)
def test_plain_rows_are_numpys_to_the_bit(columns: int):
    x = random(6, columns)
    x[1] = 0
    x[2, ::2] = 0
    x[3, :32] = 0.5 * np.arange(32) * 127  # ties: halves of a step go to the even one
    x[4, -1] = 1e30
    codes, words = quantised(x)
    wanted_codes, wanted_words = reference(x)
    np.testing.assert_array_equal(codes, wanted_codes)
    assert words.tobytes() == wanted_words.tobytes()
    assert not codes[1].any() and not words[1]["scale"].any()
    assert_quantises((codes, words), x.astype(np.float64))


def test_numbers_too_small_for_a_scale_are_nothing():
    x = np.zeros((2, 64), np.float32)
    x[0] = np.float32(1e-40) * np.arange(64)
    x[1, :32] = 1e-37
    codes, words = quantised(x)
    assert not codes.any() and not words["scaled_sum"].any()
    np.testing.assert_array_equal(codes, reference(x)[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_not_hidden(bad: float):
    x = random(3, 96)
    plain = quantised(x)
    for column in (32, 49, 63):
        changed = x.copy()
        changed[1, column] = bad
        codes, words = quantised(changed)
        assert not np.isfinite(words["scale"][1, 1])
        np.testing.assert_array_equal(np.delete(codes, 1, 0), np.delete(plain[0], 1, 0))
        assert words[[0, 2]].tobytes() == plain[1][[0, 2]].tobytes()
        assert words[1, [0, 2]].tobytes() == plain[1][1, [0, 2]].tobytes()


@pytest.mark.parametrize("columns", WIDTHS)
def test_normalised_rows(columns: int):
    x, weight = random(5, columns), np.random.default_rng(1).normal(1, 0.3, columns).astype(np.float32)
    x[1] = 0
    x[2] = 1e-4 * np.sign(x[2])  # not far from √ε
    exact = x.astype(np.float64)
    exact = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-6) * weight
    assert_quantises(normalised(x, weight, 1e-6), exact)


@pytest.mark.parametrize("columns", WIDTHS)
def test_gated_rows(columns: int):
    gate, up = random(5, columns) % 20 - 10, random(5, columns, seed=1)
    gate[1] = 0
    gate[2, :3] = -200, 200, -88
    exact = gate.astype(np.float64)
    exact = exact / (1 + np.exp(-exact)) * up
    codes, words = gated(gate.astype(np.float32), up)
    assert_quantises((codes, words), exact)
    assert not codes[1].any()


def test_a_row_has_the_same_bits_wherever_it_lies():
    x, weight = random(1, 576), np.ones(576, np.float32)
    for function in (quantised, lambda rows: normalised(rows, weight, 1e-6), lambda rows: gated(rows, rows)):
        alone = function(x)
        room = np.zeros(576 + 3, np.float32)
        room[3:] = x[0]
        other = function(room[3:].reshape(1, -1))
        assert alone[0].tobytes() == other[0].tobytes() and alone[1].tobytes() == other[1].tobytes()
