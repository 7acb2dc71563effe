"""The gated activation in the interpreter, against float64."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.silu_mul import DTYPES, silu_mul, silu_mul_reference
from tests.kernels.agreement import assert_agrees
from tests.kernels.guarded import Guarded
from tests.kernels.pairwise import pairwise

# Beyond the last rounding, float32 has those of the exponential, the sum, the quotient and the product.
ROUNDINGS = {torch.float32: 5.0, torch.float16: 1.1, torch.bfloat16: 1.1}


def check(rows: int, width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows + width)
    numbers = (3 * torch.randn(rows, 2 * width, generator=generator)).to(dtype)
    gate_up, out = Guarded(rows, 2 * width, dtype, numbers), Guarded(rows, width, dtype)
    silu_mul(gate_up.rows, out.rows)
    wanted = torch.empty(rows, width, dtype=torch.float64)
    silu_mul_reference(numbers.double(), wanted)
    assert_agrees(out.rows, wanted, ROUNDINGS[dtype])
    out.assert_untouched()


@pytest.mark.parametrize(("rows", "width", "dtype"), pairwise((1, 17, 100, 1025), (1, 7, 1023, 1536), DTYPES))
def test_it_is_the_formula(rows: int, width: int, dtype: torch.dtype):
    """A program has 1,024 numbers of a row."""
    check(rows, width, dtype)


def test_no_rows_are_none():
    silu_mul(torch.empty(0, 128), torch.empty(0, 64))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # numpy's, in the interpreter: infinity is right
@pytest.mark.parametrize("dtype", ROUNDINGS, ids=str)
def test_gates_far_from_zero_are_shut_or_open(dtype):
    gate_up = torch.tensor([[-30000.0, 30000.0, 0.0, 2.0, 0.5, 3.0]], dtype=dtype)
    out = torch.empty(1, 3, dtype=dtype)
    silu_mul(gate_up, out)
    assert out[0].tolist() == [0, torch.tensor(30000.0, dtype=dtype).item() * 0.5, 0]


@pytest.mark.parametrize(
    ("gate_up", "out"),
    [
        (torch.zeros(2, 8), torch.zeros(2, 8)),
        (torch.zeros(2, 8), torch.zeros(2, 4, dtype=torch.float16)),
        (torch.zeros(2, 8, dtype=torch.float64), torch.zeros(2, 4, dtype=torch.float64)),
        (torch.zeros(8, 2).T, torch.zeros(2, 4)),
    ],
)
def test_what_would_be_read_as_other_numbers_is_refused(gate_up, out):
    with pytest.raises(ValueError, match="silu_mul"):
        silu_mul(gate_up, out)
