"""Uniform random numbers that depend on a request's seed and a token's position, and on nothing else.

There is no generator whose state would have to be carried, saved at a preemption or shared by a batch: number
(seed, position, lane) is a hash of these three, so that a request draws the same numbers alone or among 31
others, before or after it was preempted. Knows nothing of what the numbers decide.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# One lane for each kind of decision at a position, so that no two decisions share a number.
SAMPLE, ACCEPT, RESAMPLE, DRAFT = 0, 1, 2, 3

_MASK = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 ÷ golden ratio: steps of it spread over the whole range


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele et al. 2014, Stafford's variant 13): every input bit flips half of
    the output bits."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def seeds_array(seeds: list[int]) -> NDArray[np.uint64]:
    """Any Python integers, negative ones too, as 64 bits each."""
    return np.array([seed & _MASK for seed in seeds], dtype=np.uint64)


def uniform(
    seeds: NDArray[np.uint64], positions: NDArray[np.int64], lane: int | NDArray[np.int64]
) -> NDArray[np.float64]:
    """Numbers in [0, 1), one for each (seed, position, lane); the arguments broadcast.

    52 bits, not 53: the largest number is 1 − 2⁻⁵², whose product with a total t is below t after rounding, so
    an inverse CDF never runs off its end.
    """
    with np.errstate(over="ignore"):  # wrapping is what 64-bit hashing is made of
        z = _mix(np.atleast_1d(np.asarray(seeds, dtype=np.uint64)) + _GOLDEN)
        z = _mix((z ^ np.asarray(positions).astype(np.uint64)) + _GOLDEN)
        z = _mix((z ^ np.asarray(lane).astype(np.uint64)) + _GOLDEN)
    return (z >> np.uint64(12)).astype(np.float64) * 2.0**-52
