"""The gated activation in the interpreter, against float64."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.silu_mul import silu_mul, silu_mul_reference
from tests.kernels.agreement import assert_agrees

# Beyond the last rounding, float32 has those of the exponential, the sum, the quotient and the product.
ROUNDINGS = {torch.float32: 5.0, torch.float16: 1.1, torch.bfloat16: 1.1}


F32, F16, BF16 = ROUNDINGS
CASES = [
    (0, 64, F32), (1, 1, BF16), (1, 1536, F32), (1, 1536, F16), (1, 1536, BF16), (17, 100, F32), (17, 100, F16),
    (17, 100, BF16), (100, 7, F16), (100, 24, BF16), (1025, 8, F32), (3, 2049, BF16),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "width", "dtype"), CASES)
def test_it_is_the_formula(rows, width, dtype):
    generator = torch.Generator().manual_seed(rows + width)
    gate_up = (3 * torch.randn(rows, 2 * width, generator=generator)).to(dtype)
    out = torch.full((rows, width), float("nan"), dtype=dtype)
    silu_mul(gate_up, out)
    wanted = torch.empty(rows, width, dtype=torch.float64)
    silu_mul_reference(gate_up.double(), wanted)
    if rows:
        assert_agrees(out, wanted, ROUNDINGS[dtype])


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # numpy's, in the interpreter: infinity is right
@pytest.mark.parametrize("dtype", ROUNDINGS, ids=str)
def test_gates_far_from_zero_are_shut_or_open(dtype):
    gate_up = torch.tensor([[-30000.0, 30000.0, 0.0, 2.0, 0.5, 3.0]], dtype=dtype)
    out = torch.empty(1, 3, dtype=dtype)
    silu_mul(gate_up, out)
    assert out[0].tolist() == [0, torch.tensor(30000.0, dtype=dtype).item() * 0.5, 0]


def test_rows_may_lie_apart_and_what_lies_between_is_left_alone():
    wide = torch.full((5, 80), float("nan"))
    wide[:, 8:48] = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    out = torch.full((5, 32), 7.0)
    silu_mul(wide[:, 8:48], out[:, :20])
    wanted = torch.empty(5, 20)
    silu_mul_reference(wide[:, 8:48], wanted)
    torch.testing.assert_close(out[:, :20], wanted)
    assert (out[:, 20:] == 7).all()


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
