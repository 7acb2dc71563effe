"""Products with 4- and 8-bit weights in the interpreter, against float64 over the same weights; and their layout,
against the CPU's packed matrices and a file's codes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.cpu.packed_matrix import dequantise, halve, quantise, quantise_small
from engine.kernels.quantised_matrix import dequantised, pack_codes, pack_floats, pack_matrix
from engine.kernels.quantised_product import (
    DTYPES,
    product_workspace,
    quantised_product,
    quantised_product_reference,
)
from tests.kernels.agreement import assert_agrees
from tests.kernels.guarded import Guarded
from tests.kernels.pairwise import pairwise

# Weights and their scales are exact; float32 rounds its sums of some hundred products, no other dtype before the end.
ROUNDINGS = {torch.float32: 16.0, torch.float16: 1.1, torch.bfloat16: 1.1}
F32, F16, BF16 = ROUNDINGS


def floats(outputs: int, inputs: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(outputs + inputs)
    return torch.randn(outputs, inputs, generator=generator) * (0.2 + torch.rand(outputs, 1, generator=generator))


def given(bits: int, rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    matrix = pack_floats(floats(outputs, inputs), bits)
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows)).to(dtype)
    out = torch.full((rows, outputs), float("nan"), dtype=dtype)
    return x, matrix.weights, matrix.scales, matrix.offsets, out


def formula(x: torch.Tensor, *matrix: torch.Tensor) -> torch.Tensor:
    out = torch.empty(len(x), matrix[0].shape[1], dtype=torch.float64)
    quantised_product_reference(x.double(), *matrix, out)
    return out


def check(bits: int, rows: int, outputs: int, inputs: int, dtype: torch.dtype, split: bool) -> None:
    numbers, *matrix, _ = given(bits, rows, outputs, inputs, dtype)
    x, out = Guarded(rows, inputs, dtype, numbers), Guarded(rows, outputs, dtype)
    workspace = product_workspace(rows, outputs, numbers.device) if split else None
    if workspace is not None:
        workspace.means.fill_(torch.nan)  # what an earlier launch left
    quantised_product(x.rows, *matrix, out.rows, workspace)
    assert_agrees(out.rows, formula(numbers, *matrix), ROUNDINGS[dtype])
    out.assert_untouched()
    assert workspace is None or not workspace.arrivals.any()


@pytest.mark.parametrize(
    ("bits", "rows", "outputs", "inputs", "dtype", "split"),
    pairwise((4, 8), (1, 17, 100, 1025), (3, 65, 128), (32, 96, 512), DTYPES, (False, True)),
)
def test_it_is_the_formula(bits: int, rows: int, outputs: int, inputs: int, dtype: torch.dtype, split: bool):
    """Of the inputs, only 512 are enough groups to be cut."""
    check(bits, rows, outputs, inputs, dtype, split)


def test_no_rows_are_none():
    x, *matrix, out = given(4, 0, 16, 64, F32)
    quantised_product(x, *matrix, out)


def test_groups_are_cut_among_programs_and_the_workspace_serves_again():
    """512 inputs are 16 groups: two programs of 8 each; the second launch finds the arrivals as it needs them."""
    x, *matrix, out = given(8, 2, 64, 512, F32)
    workspace = product_workspace(2, 64, x.device)
    for _ in range(2):
        workspace.means.fill_(float("nan"))
        out.fill_(float("nan"))
        quantised_product(x, *matrix, out, workspace)
        assert workspace.means.isfinite().sum() == 2 * out.numel(), "not in two parts"
        assert not workspace.arrivals.any()
        assert_agrees(out, formula(x, *matrix), ROUNDINGS[F32])


def test_nan_of_other_rows_stays_there():
    x, *matrix, out = given(4, 5, 40, 64, F16)
    x[3] = float("nan")
    quantised_product(x, *matrix, out)
    assert out[3].isnan().all() and out[[0, 1, 2, 4]].isfinite().all()


@pytest.mark.parametrize(("bits", "make"), [(4, quantise_small), (8, quantise)])
def test_the_numbers_are_those_of_the_cpu(bits, make):
    packed = make(floats(37, 96).numpy())
    matrix = pack_matrix(packed)
    wanted = torch.from_numpy(dequantise(packed))
    assert torch.equal(dequantised(matrix.weights, matrix.scales, matrix.offsets, torch.float32), wanted)
    assert matrix.bytes == 37 * 3 * (16 + 4 if bits == 4 else 32 + 2)


def test_a_files_codes_are_taken_as_they_are():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (5, 64), np.uint8)
    scale, minimum = (rng.standard_normal((5, 2)).astype(np.float16) for _ in range(2))
    matrix = pack_codes(codes, scale, minimum)
    by_group = codes.reshape(5, 2, 32).astype(np.float32)
    wanted = by_group * scale[:, :, None].astype(np.float32) + minimum[:, :, None].astype(np.float32)
    got = dequantised(matrix.weights, matrix.scales, matrix.offsets, torch.float32)
    assert np.array_equal(got.numpy(), wanted.reshape(5, 64))


def test_what_has_no_codes_or_no_groups_is_refused():
    with pytest.raises(ValueError, match="16 bits"):
        pack_matrix(halve(floats(16, 32).numpy()))
    with pytest.raises(ValueError, match="groups of 32"):
        pack_codes(np.zeros((2, 40), np.uint8), np.zeros((2, 1), np.float16), None)


def test_what_would_be_read_as_other_numbers_is_refused():
    x, weights, scales, offsets, out = given(4, 2, 16, 64, F32)
    for wrong in (
        (x, weights, scales, None, out),
        (x[:, :32], weights, scales, offsets, out),
        (x, weights, scales.float(), offsets, out),
        (x, weights, scales, offsets[:, :8], out),
        (x.half(), weights, scales, offsets, out),
        (x, weights, scales, offsets, out[:, :8]),
        (x, weights.transpose(0, 1).contiguous().transpose(0, 1), scales, offsets, out),
    ):
        with pytest.raises(ValueError, match="quantised_product"):
            quantised_product(*wrong)
