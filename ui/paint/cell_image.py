"""Cells to pixels: index arrays and colour tables in, one 32-bit image out. Numpy all the way, no item per cell.

A cell is a body with a gutter at its right and below. Marks that must not change what a body shows (rings) are
painted in the gutters around it. When several cells share a pixel, the highest index wins: FOLDING is that rule, and
whoever numbers the colours decides by it what is loudest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ui.paint.cells import Grid, Window

FOLDING = "loudest wins"
LARGEST_DOT = 6  # px
WORDY = 26  # px
_LINE = {4: "u4", 8: "u8", 16: "c16"}  # lines that numpy copies as single numbers
Colours = NDArray[np.uint32]  # 0xffRRGGBB, as QImage's Format_RGB32 has it


@dataclass(slots=True)
class Bars:
    """Cells that are filled from below: indices in the window (row, column), share 0..1, colour of the full part."""

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    share: NDArray[np.float64]
    colour: Colours


def fold(index: NDArray, down: int, across: int) -> NDArray:
    """(rows, columns) → one entry for each down × across cells: the highest."""
    rows, columns = index.shape
    if rows % down or columns % across:
        padded = np.zeros((-(-rows // down) * down, -(-columns // across) * across), index.dtype)
        padded[:rows, :columns] = index
    else:
        padded = index
    # slice by slice: numpy's own reduction over two axes takes ten times as long
    tall = padded[0::down]
    for line in range(1, down):
        tall = np.maximum(tall, padded[line::down])
    folded = tall[:, 0::across].copy()
    for column in range(1, across):
        np.maximum(folded, tall[:, column::across], out=folded)
    return folded


def window_of(values: NDArray, grid: Grid, window: Window, rest: int = 0) -> NDArray:
    """The entries of a flat array that a window shows, as (rows, columns); `rest` where the last row ends early."""
    band, first = grid.band, window.top // grid.band * grid.band
    bands = -(-window.bottom // band) - first // band
    low, high = grid.index(first, 0), grid.index(first, 0) + bands * band * grid.columns
    part = values[low:high]
    if len(part) < high - low:
        part = np.concatenate((part, np.full(high - low - len(part), rest, values.dtype)))
    lines = part.reshape(bands, grid.columns, band)[:, window.left : window.right].swapaxes(1, 2)
    return lines.reshape(bands * band, window.columns)[window.top - first : window.bottom - first]


def bodies(index: NDArray, table: Colours, grid: Grid, background: int) -> Colours:
    """(rows, columns) indices → the image of the cells, colours from `table`; the first gutter pixels belong to the
    cells before. One lookup gives a cell's whole line, gutter and all: it is faster than repeating pixels."""
    rows, columns = index.shape
    wide, tall, gutter = grid.width, grid.height, grid.gutter
    if wide == tall == 1:
        return table[index]
    lines = np.repeat(table[:, None], wide, axis=1)
    lines[:, wide - gutter :] = background
    across = lines.view(_LINE.get(4 * wide, f"V{4 * wide}"))[:, 0].take(index).view(np.uint32)
    across = across.reshape(rows, columns * wide)
    image = np.empty((rows * tall + gutter, columns * wide + gutter), np.uint32)
    image[:gutter], image[:, :gutter] = background, background
    below = image[gutter:].reshape(rows, tall, -1)
    below[:, : tall - gutter, gutter:] = across[:, None, :]
    below[:, tall - gutter :] = background
    return image


def origins(rows: NDArray, columns: NDArray, grid: Grid) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """y and x of the bodies of cells, in the image."""
    return rows * grid.height + grid.gutter, columns * grid.width + grid.gutter


def dots(image: Colours, rows: NDArray, columns: NDArray, colour: Colours, grid: Grid) -> None:
    """A dot in the middle of each cell; in cells that have room for words, under them."""
    size = min(LARGEST_DOT, max(1, min(grid.width, grid.height) // 7))
    y, x = origins(rows, columns, grid)
    tall = grid.height - grid.gutter
    y = y + (tall - size * 2 if min(grid.width, grid.height) >= WORDY else (tall - size) // 2)
    x = x + (grid.width - grid.gutter - size) // 2
    for down in range(size):
        for right in range(size):
            image[y + down, x + right] = colour


def bars(image: Colours, cells: Bars, grid: Grid) -> None:
    """Fill cells from below; the rest of the body stays."""
    y, x = origins(cells.rows, cells.columns, grid)
    tall = grid.height - grid.gutter
    across = np.arange(grid.width - grid.gutter)
    # anything above nothing shows, anything below full is seen not to be
    level = np.clip(np.rint(cells.share * tall), cells.share > 0, tall - (cells.share < 1)).astype(np.intp)
    for line in range(tall):
        lit = level >= tall - line
        image[(y[lit] + line)[:, None], x[lit][:, None] + across] = cells.colour[lit][:, None]


def hatch(image: Colours, rows: NDArray, columns: NDArray, colour: Colours, grid: Grid) -> None:
    """Slanted lines over each cell's body, which keeps an edge of a pixel: reserved, and nothing in it yet."""
    wide, tall = grid.width - grid.gutter, grid.height - grid.gutter
    thick = max(1, min(wide, tall) // 14)
    down, right = np.mgrid[1 : tall - 1, 1 : wide - 1]
    drawn = (down + right) % (4 * thick) < thick
    y, x = origins(rows, columns, grid)
    image[y[:, None] + down[drawn], x[:, None] + right[drawn]] = colour[:, None]


def rings(image: Colours, rows: NDArray, columns: NDArray, colour: Colours, grid: Grid, inside: int = 0) -> None:
    """An outline in the gutters around each cell, `inside` px more within the body."""
    y, x = origins(rows, columns, grid)
    thick = grid.gutter + inside
    tall, wide = grid.height + grid.gutter, grid.width + grid.gutter
    y, x = y - grid.gutter, x - grid.gutter
    across, down = np.arange(wide), np.arange(tall)
    for line in range(thick):
        for edge in (line, tall - 1 - line):
            image[(y + edge)[:, None], x[:, None] + across] = colour[:, None]
        for edge in (line, wide - 1 - line):
            image[y[:, None] + down, (x + edge)[:, None]] = colour[:, None]
