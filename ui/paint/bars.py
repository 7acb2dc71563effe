"""Stacked bars and strips as pictures: numpy draws into a buffer, Qt copies it once.

A thousand bars of four parts would be four thousand rectangles for a painter; here they are a few comparisons of
small arrays. Arrays in, a QImage out; what the parts mean is the caller's matter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PySide6.QtGui import QColor, QImage


def argb(color: QColor, alpha: float | None = None) -> int:
    """A colour as a premultiplied 32-bit pixel."""
    a = color.alphaF() if alpha is None else alpha
    r, g, b = (round(c * a * 255) for c in (color.redF(), color.greenF(), color.blueF()))
    return (round(a * 255) << 24) | (r << 16) | (g << 8) | b


def image(pixels: NDArray[np.uint32]) -> QImage:
    """A QImage over `pixels` (height, width), which must outlive it."""
    height, width = pixels.shape
    return QImage(pixels.data, width, height, pixels.strides[0], QImage.Format.Format_ARGB32_Premultiplied)


def tallest(totals: NDArray, first: int, fold: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Fold a row of values to one bar per `fold`: each bar is the tallest of its values, so that no peak is lost.

    Groups start at multiples of `fold` counted from `first` (the number of the first value), so that a bar doesn't
    change its members while the row scrolls. Returns (group number, index of its tallest) per bar.
    """
    if fold == 1:
        return np.arange(first, first + len(totals), dtype=np.int64), np.arange(len(totals), dtype=np.int64)
    groups = (first + np.arange(len(totals), dtype=np.int64)) // fold
    starts = np.flatnonzero(np.r_[True, np.diff(groups) > 0])
    peaks = np.maximum.reduceat(totals, starts)
    hits = np.flatnonzero(totals == np.repeat(peaks, np.diff(np.r_[starts, len(totals)])))
    _, once = np.unique(groups[hits], return_index=True)
    return groups[starts], hits[once]


class BarStack:
    """Draws stacked bars. Keeps its buffer between pictures; a picture is valid until the next one."""

    def __init__(self) -> None:
        self._pixels = np.zeros((0, 0), np.uint32)

    def render(self, values: NDArray, top: float, height: int, bar: int, gap: int, colors: list[int]) -> QImage:
        """`values` (parts, bars), lowest part first; `top` is the value at the upper edge; `bar` pixels each, of
        which the last `gap` stay empty. A part that is not zero gets at least one pixel."""
        parts, bars = values.shape
        tops = np.rint(np.cumsum(values, axis=0) * (height / top)).astype(np.int32)
        for part in range(parts):
            below = tops[part - 1] if part else np.zeros(bars, np.int32)
            tops[part] = np.maximum(tops[part], below + (values[part] > 0))
        tops = np.minimum(tops, height).astype(np.int16)
        level = np.arange(height, 0, -1, dtype=np.int16)[:, None]  # of each pixel row, from above
        index = np.zeros((height, bars), np.uint8)
        for part in range(parts):
            index += level > tops[part]
        lut = np.array([*colors, 0], np.uint32)
        if self._pixels.shape != (height, bars * bar):
            self._pixels = np.zeros((height, bars * bar), np.uint32)
        self._pixels.reshape(height, bars, bar)[:, :, : bar - gap] = lut[index][:, :, None]
        if gap:
            self._pixels.reshape(height, bars, bar)[:, :, bar - gap :] = 0
        return image(self._pixels)


class Strip:
    """Draws one row of coloured cells."""

    def __init__(self) -> None:
        self._pixels = np.zeros((0, 0), np.uint32)

    def render(self, cells: NDArray, height: int, bar: int, colors: list[int]) -> QImage:
        """`cells` (bars,) are indices into `colors`."""
        row = np.repeat(np.array(colors, np.uint32)[cells], bar)
        self._pixels = np.ascontiguousarray(np.broadcast_to(row, (height, len(row))))
        return image(self._pixels)
