"""Sums over equal bins of a continuous axis."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def per_bin(x: NDArray, weights: NDArray, low: float, high: float, bins: int) -> NDArray[np.float64]:
    """Sums of `weights` in equal bins of the axis; what lies outside is left out."""
    if high <= low or not len(x):
        return np.zeros(bins)
    place = np.floor((x - low) * (bins / (high - low))).astype(np.int64)
    inside = (place >= 0) & (place < bins)
    return np.bincount(place[inside], weights=weights[inside], minlength=bins)
