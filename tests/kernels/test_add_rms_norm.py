"""Sum and norm in the interpreter: the sum to the bit, the norm against float64 from that sum."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.add_rms_norm import DTYPES, add_rms_norm, add_rms_norm_reference
from tests.kernels.agreement import assert_agrees
from tests.kernels.guarded import Guarded
from tests.kernels.pairwise import pairwise

EPS = 1e-5
# Beyond the last rounding, float32 has those of the mean, the root and two products.
ROUNDINGS = {torch.float32: 5.0, torch.float16: 1.1, torch.bfloat16: 1.1}


def made(rows: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * width)
    x = torch.randn(rows, width, generator=generator).to(dtype)
    residual = (10 * torch.randn(rows, width, generator=generator)).to(dtype)
    return x, residual, 1 + 0.3 * torch.randn(width, generator=generator)


def check(rows: int, width: int, added: bool, dtype: torch.dtype) -> None:
    x, residual, weight = made(rows, width, dtype)
    summed = (x.float() + residual.float()).to(dtype) if added else residual.clone()
    given, kept, out = (Guarded(rows, width, dtype, numbers) for numbers in (x, residual, None))
    add_rms_norm(given.rows if added else None, kept.rows, weight, EPS, out.rows)
    assert torch.equal(kept.rows, summed)
    wanted = torch.empty(rows, width, dtype=torch.float64)
    add_rms_norm_reference(None, summed.double(), weight, EPS, wanted)
    assert_agrees(out.rows, wanted, ROUNDINGS[dtype])
    for one in (given, kept, out):
        one.assert_untouched()


@pytest.mark.parametrize(
    ("rows", "width", "added", "dtype"), pairwise((1, 17, 100, 1025), (1, 100, 576, 4097), (True, False), DTYPES)
)
def test_it_is_the_formula(rows: int, width: int, added: bool, dtype: torch.dtype):
    """Rows of more than 4,096 numbers are held by 16 warps, and padded to twice as many."""
    check(rows, width, added, dtype)


def test_no_rows_are_none():
    x, residual, weight = made(0, 64, torch.float32)
    add_rms_norm(x, residual, weight, EPS, torch.empty_like(x))


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
