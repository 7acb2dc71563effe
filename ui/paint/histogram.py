"""A histogram's bins. Numbers in, numbers out; the bars themselves are drawn by `bars`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STEPS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)  # a decade in steps that make round labels


def nice(value: float) -> float:
    """The next round number at or above `value`."""
    if not np.isfinite(value) or value <= 0:
        return 1.0
    decade = 10.0 ** np.floor(np.log10(value))
    for step in STEPS:
        if value <= step * decade * (1 + 1e-9):
            return float(step * decade)
    return float(10 * decade)


def count(values: NDArray, high: float, bins: int) -> NDArray[np.int64]:
    """Counts in equal bins of 0..high; what lies beyond is counted in the last bin, never dropped."""
    place = np.minimum((np.asarray(values) * (bins / high)).astype(np.int64), bins - 1)
    return np.bincount(np.maximum(place, 0), minlength=bins)


class SteadyTop:
    """The upper end of an axis over live values: grows at once, shrinks only when much less is needed, so that
    the scale doesn't flicker."""

    def __init__(self) -> None:
        self.value = 0.0

    def update(self, peak: float) -> float:
        if peak > self.value or nice(peak) < 0.55 * self.value:
            self.value = nice(peak)
        return self.value or 1.0
