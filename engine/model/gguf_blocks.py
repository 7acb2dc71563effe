"""GGUF's blocks of 32 weights taken apart: codes, scale and minimum of each, number for number, never by way of floats.

Only of the types that are a scale (and a minimum) for 32 codes: Q4_0, Q4_1, Q8_0. As GGUF defines them, d float16,
all little-endian, a block being
  Q4_0  d, 16 bytes: input i in the low half of byte i, input i + 16 in its high half; weight d · (code − 8)
  Q4_1  d, m, 16 bytes alike; weight d · code + m
  Q8_0  d, 32 signed bytes; weight d · code
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}  # of a code


@dataclass(frozen=True)
class Codes:
    """weight = scale · code + minimum; in 8 bits scale · (code − 128), and there is no minimum."""

    codes: NDArray[np.uint8]  # (rows, columns)
    scale: NDArray[np.float16]  # (rows, columns / 32)
    minimum: NDArray[np.float16] | None  # (rows, columns / 32)


def take_apart(blocks: NDArray[np.uint8], kind: str) -> Codes:
    """blocks (rows, groups, bytes of a block), of a type in `BITS`."""
    halves = 2 if kind == "Q4_1" else 1
    factors = np.ascontiguousarray(blocks[:, :, : 2 * halves]).view("<f2")  # (rows, groups, halves)
    scale, data = factors[:, :, 0], blocks[:, :, 2 * halves :]
    rows = len(blocks)
    if kind == "Q8_0":
        return Codes((data ^ 0x80).reshape(rows, -1), scale, None)  # a signed byte + 128 is its top bit turned over
    codes = np.concatenate((data & 15, data >> 4), axis=2).reshape(rows, -1)
    # −8 · d is exact: a power of two. d is far from 8,188, from where on it would be infinite
    return Codes(codes, scale, factors[:, :, 1] if kind == "Q4_1" else scale * np.float16(-8))
