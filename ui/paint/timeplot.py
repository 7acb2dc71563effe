"""A curve over a continuous axis as a picture: a filled area under a crisp line, one value per pixel column.

Arrays in, a QImage out. No antialiasing: a line is whole pixels, joined vertically where it jumps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PySide6.QtGui import QImage

from ui.paint.bars import image


def hold(x: NDArray, y: NDArray, low: float, high: float, width: int) -> NDArray[np.float64]:
    """Values per pixel column of a quantity that holds until its next change; NaN before its first."""
    at = low + (np.arange(width) + 1) * ((high - low) / width)
    index = np.searchsorted(x, at, side="right") - 1
    return np.where(index >= 0, y[np.maximum(index, 0)], np.nan) if len(y) else np.full(width, np.nan)


def per_bin(x: NDArray, weights: NDArray, low: float, high: float, bins: int) -> NDArray[np.float64]:
    """Sums of `weights` in equal bins of the axis."""
    if high <= low or not len(x):
        return np.zeros(bins)
    place = np.floor((x - low) * (bins / (high - low))).astype(np.int64)
    inside = (place >= 0) & (place < bins)
    return np.bincount(place[inside], weights=weights[inside], minlength=bins)


class Curve:
    """Draws a filled curve. Keeps its buffer; a picture is valid until the next one."""

    def __init__(self) -> None:
        self._pixels = np.zeros((0, 0), np.uint32)

    def render(self, y: NDArray, top: float, height: int, line: int, fill: int, thick: int = 1) -> QImage:
        """`y` per pixel column, NaN where nothing is known; `top` is the value at the upper edge."""
        known = np.isfinite(y)
        rows = height - 1 - np.rint(np.clip(np.where(known, y, 0) / top, 0, 1) * (height - 1)).astype(np.int32)
        before = np.r_[rows[:1], rows[:-1]]
        joined = known & np.r_[known[:1], known[:-1]]
        upper = np.where(joined, np.minimum(rows, before), rows)
        lower = np.maximum(np.where(joined, np.maximum(rows, before), rows), upper + thick - 1)
        row = np.arange(height, dtype=np.int32)[:, None]
        index = (row >= upper).astype(np.uint8) + (row > lower)
        index[:, ~known] = 0
        self._pixels = np.array([0, line, fill], np.uint32)[index]
        return image(self._pixels)
