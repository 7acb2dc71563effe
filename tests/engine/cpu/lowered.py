"""What products give here, as a hash; run as a program of its own, for processors that have less than this one.

`NUMBA_CPU_FEATURES` says what the processor is taken to have.
"""

from __future__ import annotations

import hashlib

import numpy as np

from engine.cpu.vector import DOT_256, DOT_512
from tests.engine.cpu.rows import gated, matrix, multiply, normalised, quantised


def digest() -> str:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(13, 96)).astype(np.float32)
    rows = [quantised(x), normalised(x, x[0], 1e-6), gated(x, x[::-1].copy())]
    found = hashlib.sha256(b"".join(array.tobytes() for pair in rows for array in pair))
    for bits in (4, 8):
        for pair in rows:
            found.update(multiply(matrix(bits, 80, 96), pair).tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    print(DOT_512, DOT_256, digest())
