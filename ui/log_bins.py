"""Bins of a logarithmic time axis, the same for every histogram on it. Numbers in, numbers out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PER_DECADE = 12  # a bin is a fifth wider than the one before it
LOWEST, HIGHEST = -4, 5  # powers of ten of a second: under the shortest step, over a day
BINS = (HIGHEST - LOWEST) * PER_DECADE + 2  # the first is for what is shorter, zero included, the last for the rest


def place(seconds: NDArray | list[float]) -> NDArray[np.int64]:
    """The bin of each value."""
    values = np.asarray(seconds, np.float64)
    with np.errstate(divide="ignore"):
        # a value on an edge belongs to the bin that begins there, whatever its logarithm's last digit
        found = np.floor((np.log10(values) - LOWEST) * PER_DECADE + 1e-9)
    return np.clip(found, -1, BINS - 2).astype(np.int64) + 1


def count(seconds: NDArray | list[float]) -> NDArray[np.int64]:
    """How many values each bin holds."""
    return np.bincount(place(seconds), minlength=BINS)


def edge(index: int) -> float:
    """Where bin `index` begins, seconds; 0 for the first."""
    return 0.0 if index <= 0 else 10.0 ** (LOWEST + (index - 1) / PER_DECADE)


def of_decade(power: int) -> int:
    """The bin that begins at 10^power seconds."""
    return (power - LOWEST) * PER_DECADE + 1


def median(counts: NDArray) -> float:
    """Of values of which only the bins are kept: the geometric middle of the bin that holds the middle one; NaN without
    any, 0 in the first bin."""
    total = int(counts.sum())
    if not total:
        return float("nan")
    index = int(np.searchsorted(np.cumsum(counts), -(-total // 2)))
    return float(np.sqrt(edge(index) * edge(index + 1))) if index else 0.0
