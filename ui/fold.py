"""Folds a long history into as many columns as there are pixels. Numpy, no Qt."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def fold(values: NDArray, bins: int) -> NDArray[np.float64]:
    """Means of `bins` equal stretches of `values`, (bins,); a stretch shorter than one value repeats it."""
    if not len(values) or bins < 1:
        return np.zeros(max(0, bins))
    edges = np.linspace(0, len(values), bins + 1).astype(np.int64)
    sums = np.concatenate(([0.0], np.cumsum(values, dtype=np.float64)))
    counts = np.diff(edges)
    means = np.divide(np.diff(sums[edges]), counts, out=np.zeros(bins), where=counts > 0)
    return np.where(counts > 0, means, np.asarray(values, np.float64)[np.minimum(edges[:-1], len(values) - 1)])


def bars(lower: NDArray, upper: NDArray, height: int, colors: tuple[int, int, int]) -> NDArray[np.uint32]:
    """A picture of stacked bars, one column each, (height, columns) of 0xAARRGGBB: `lower` from the floor up, then
    `upper`, both 0..1 of the height; `colors` are those of background, lower and upper."""
    background, low_color, high_color = colors
    level = np.arange(height, 0, -1)[:, None]  # of a row's top edge, from the floor
    low = np.round(lower * height)  # (columns,)
    high = np.maximum(np.round((lower + upper) * height), low + (upper > 0))
    image = np.where(level <= low, low_color, np.where(level <= high, high_color, background))
    return np.ascontiguousarray(image, dtype=np.uint32)
