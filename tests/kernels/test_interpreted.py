"""bfloat16 in the interpreter, by way of the helpers, against torch: every number of it, and what carries."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.interpreted import rounded, widened


@triton.jit
def _sum_kernel(x, y, out, n, WIDTH: tl.constexpr):
    at = tl.arange(0, WIDTH)
    left = widened(tl.load(x + at, mask=at < n, other=0.0))
    right = widened(tl.load(y + at, mask=at < n, other=0.0))
    tl.store(out + at, rounded(left + right, out.dtype.element_ty), mask=at < n)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    _sum_kernel[(1,)](x, y, out, len(x), WIDTH=triton.next_power_of_2(len(x)))
    return out


def test_every_bfloat16_passes_unchanged():
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    numbers = bits.view(torch.bfloat16)
    got = add(numbers, torch.zeros_like(numbers))
    assert torch.equal(got.nan_to_num(7), (numbers + 0).nan_to_num(7))
    assert torch.equal(got.isnan(), numbers.isnan())


def test_sums_round_as_torch_does_in_each_dtype():
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(5000, generator=generator).to(dtype)
        y = torch.randn(5000, generator=generator).to(dtype)
        assert torch.equal(add(x, y), x + y), dtype


def test_a_carry_reaches_the_exponent():
    x = torch.tensor([1.9921875, -1.9921875, 3.984375], dtype=torch.bfloat16)  # the last before a power of two
    y = torch.tensor([0.0078125, -0.0078125, 0.01], dtype=torch.bfloat16)
    assert torch.equal(add(x, y), x + y)
    assert add(x, y)[0] == 2
