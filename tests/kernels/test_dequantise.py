"""Weights of 4 and 8 bits made floats again, in the interpreter, against the matrix taken apart by numpy."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.dequantise import DTYPES, dequantise, dequantise_reference
from engine.kernels.quantised_matrix import dequantised, pack_floats
from tests.kernels.guarded import Guarded
from tests.kernels.pairwise import pairwise


def matrix(bits: int, outputs: int, inputs: int):
    return pack_floats(torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(outputs)), bits)


def check(op, bits: int, inputs: int, first: int, rows: int, dtype: torch.dtype) -> None:
    """Three more rows than are asked for."""
    m, out = matrix(bits, first + rows + 3, inputs), Guarded(rows, inputs, dtype)
    op(m.weights, m.scales, m.offsets, out.rows, first)
    wanted = dequantised(m.weights, m.scales, m.offsets, torch.float32)[first : first + rows].to(dtype)
    assert torch.equal(out.rows, wanted), "one rounding of a number worked out in float32"
    out.assert_untouched()


@pytest.mark.parametrize(
    ("bits", "inputs", "first", "rows", "dtype"),
    pairwise((4, 8), (32, 96, 512), (0, 1, 63), (0, 1, 17, 100, 1025), DTYPES),
)
@pytest.mark.parametrize("op", [dequantise, dequantise_reference])
def test_rows_in_order(op, bits, inputs, first, rows, dtype):
    check(op, bits, inputs, first, rows, dtype)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("count", [1, 3, 100])
@pytest.mark.parametrize("op", [dequantise, dequantise_reference])
def test_rows_picked(op, bits, count):
    """As a step's tokens are, some of them twice; into rows that lie apart."""
    m = matrix(bits, 37, 96)
    which = torch.arange(count, dtype=torch.int32) * 7 % 37
    whole = torch.full((count, 128), float("nan"))
    op(m.weights, m.scales, m.offsets, whole[:, :96], 0, which)
    assert torch.equal(whole[:, :96], dequantised(m.weights, m.scales, m.offsets, torch.float32)[which.long()])
    assert whole[:, 96:].isnan().all()


def test_what_would_be_read_as_other_numbers_is_refused():
    m = matrix(4, 16, 64)
    out = torch.zeros(4, 64)
    picked = torch.zeros(4, dtype=torch.int32)
    for wrong in (
        (m.weights, m.scales, None, out),
        (m.weights, m.scales.float(), m.offsets, out),
        (m.weights, m.scales, m.offsets[:, :8], out),
        (m.weights, m.scales, m.offsets, out[:, :32]),
        (m.weights, m.scales, m.offsets, out, 13),
        (m.weights, m.scales, m.offsets, out, 0, picked[:3]),
        (m.weights, m.scales, m.offsets, out, 1, picked),
        (m.weights.transpose(0, 1).contiguous().transpose(0, 1), m.scales, m.offsets, out),
    ):
        with pytest.raises(ValueError, match="dequantise"):
            dequantise(*wrong)
