"""Sum and norm in the interpreter: the sum to the bit, the norm against float64 from that sum."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.add_rms_norm import add_rms_norm, add_rms_norm_reference
from tests.kernels.agreement import assert_agrees

EPS = 1e-5
# Beyond the last rounding, float32 has those of the mean, the root and two products.
ROUNDINGS = {torch.float32: 5.0, torch.float16: 1.1, torch.bfloat16: 1.1}


def made(rows: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * width)
    x = torch.randn(rows, width, generator=generator).to(dtype)
    residual = (10 * torch.randn(rows, width, generator=generator)).to(dtype)
    return x, residual, 1 + 0.3 * torch.randn(width, generator=generator)


F32, F16, BF16 = ROUNDINGS
CASES = [
    (0, 64, True, F32), (1, 576, True, F32), (1, 576, False, F16), (1, 576, True, BF16), (17, 100, False, F32),
    (17, 100, True, F16), (17, 100, False, BF16), (100, 64, True, BF16), (100, 64, True, F16), (1025, 8, True, F16),
    (2, 4097, True, F32), (2, 4097, False, BF16), (3, 1, True, BF16),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "width", "added", "dtype"), CASES)
def test_it_is_the_formula(rows, width, added, dtype):
    x, residual, weight = made(rows, width, dtype)
    summed = (x.float() + residual.float()).to(dtype) if added else residual.clone()
    out = torch.full_like(residual, float("nan"))
    add_rms_norm(x if added else None, residual, weight, EPS, out)
    assert torch.equal(residual, summed)
    if rows:
        wanted = torch.empty(rows, width, dtype=torch.float64)
        add_rms_norm_reference(None, summed.double(), weight, EPS, wanted)
        assert_agrees(out, wanted, ROUNDINGS[dtype])


def test_the_norm_may_take_the_place_of_what_was_added():
    x, residual, weight = made(5, 96, torch.bfloat16)
    apart, sum_apart = torch.empty_like(x), residual.clone()
    add_rms_norm(x, sum_apart, weight, EPS, apart)
    add_rms_norm(x, residual, weight, EPS, x)
    assert torch.equal(x, apart) and torch.equal(residual, sum_apart)


def test_a_row_of_zeros_is_zeros():
    out = torch.full((1, 32), float("nan"))
    add_rms_norm(None, torch.zeros(1, 32), torch.ones(32), EPS, out)
    assert (out == 0).all()


def test_rows_may_lie_apart():
    x, residual, weight = made(6, 64, torch.float32)
    wide = torch.full((6, 128), float("nan"))
    wide[:, 32:96] = residual
    out, wanted = torch.empty(6, 64), torch.empty(6, 64)
    add_rms_norm(x, wide[:, 32:96], weight, EPS, out)
    add_rms_norm(x, residual, weight, EPS, wanted)
    assert torch.equal(out, wanted) and torch.equal(wide[:, 32:96], residual)
    assert wide[:, :32].isnan().all() and wide[:, 96:].isnan().all()


def test_what_would_be_read_as_other_numbers_is_refused():
    x, residual, weight = made(2, 32, torch.float32)
    for given in (
        (x[:, :16], residual, weight, EPS, torch.empty_like(x)),
        (x.half(), residual, weight, EPS, torch.empty_like(x)),
        (x, residual, weight[:16], EPS, torch.empty_like(x)),
        (x, residual, weight, EPS, residual),
        (x, torch.empty(32, 2).T, weight, EPS, torch.empty_like(x)),
        (None, torch.empty(1, 20000), torch.ones(20000), EPS, torch.empty(1, 20000)),
    ):
        with pytest.raises(ValueError, match="add_rms_norm"):
            add_rms_norm(*given)
