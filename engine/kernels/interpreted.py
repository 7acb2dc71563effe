"""What a kernel needs so that Triton's interpreter computes what a GPU would.

The interpreter (TRITON_INTERPRET=1, read when triton is first imported) runs kernels as numpy on CPU tensors: it is how
they are tested, and the CUDA runner driven, without a GPU. Its bfloat16 is the raw 16 bits as whole numbers: a sum or a
product of two adds or multiplies their bits, and its rounding from float32 loses the carry into the exponent (one
number in 800 comes out up to twice too small). So a kernel widens every bfloat16 it loads with `widened` and rounds
what it stores with `rounded`. Compiled, the first does nothing and the second is an ordinary conversion: a GPU's
tensor cores are given bfloat16 as it is.

Kernel modules are made for one of the two when they are imported: to compile kernels where the interpreter is on,
start a process without TRITON_INTERPRET.
"""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def widened(x):
    """x for use in arithmetic: interpreted bfloat16 becomes float32, anything else is itself."""
    if INTERPRETED and x.dtype == tl.bfloat16:
        bits = x.to(tl.int16, bitcast=True).to(tl.int32) << 16
        x = bits.to(tl.float32, bitcast=True)
    return x


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """x (float32) rounded to nearest even in `dtype`, for a store or as the operand of a product."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.float32).to(tl.int32, bitcast=True)
        carried = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        carried = tl.where(x != x, 0x7FC0, carried)
        y = carried.to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        y = x.to(dtype)
    return y
