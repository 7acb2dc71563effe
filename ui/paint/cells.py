"""Where the cells of a big regular grid lie: fitted to an area, zoomed about a point, folded when there are too many.

Large cells follow each other in lines, as text does. Cells of a pixel or two lie in bands instead, down the band's
height and then to the right: neighbours in number stay neighbours on the screen, so that what belongs together is a
patch that the eye finds, and not a hairline.

Arithmetic on integers alone; knows nothing of what a cell means. Pixels are whole, so that a cell is never blurred.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray

ASPECT = 1.25  # height ÷ width that fitted cells aim at: upright, so that a level reads like one in a glass
DETAIL = 4  # px: from this pitch on a cell has a gutter and shows more than one colour
WIDE_GUTTER = 12  # px: from this pitch on the gutter is 2 px
LARGEST = 240  # px: a whole cell of text is readable
STEP = 1.25  # zoom per notch
BAND = 16  # px: height of a band


@dataclass(frozen=True, slots=True)
class Grid:
    """`count` cells in rows of `columns`, each `width` × `height` px with its gutter at the right and below.

    Attributes:
        down, across: cells that share one pixel; 1 unless the area has fewer pixels than cells.
        band: rows that are filled together, column by column; 1: one row after the other. A multiple of `down`.
    """

    count: int
    columns: int
    width: int
    height: int
    down: int = 1
    across: int = 1
    band: int = 1

    @classmethod
    def fit(cls, count: int, width: int, height: int) -> Grid:
        """All cells in an area of that many pixels, as large as they go and near ASPECT."""
        width, height = max(1, width - 2), max(1, height - 2)  # room for the outermost gutters
        if count <= 0:
            return cls(0, 1, 1, 1)
        ideal = sqrt(width * height / (count * ASPECT))
        if ideal < 2:
            return cls._dense(count, width, height)
        best, best_score = None, -1.0
        for pitch in range(max(1, int(ideal * 0.7)), min(LARGEST, int(ideal * 1.3) + 1) + 1):
            columns = min(count, width // pitch)
            if columns < 1:
                continue
            rows = -(-count // columns)
            tall = min(height // rows, round(pitch * 1.6), LARGEST)
            if tall < 1:
                continue
            off = max(tall / pitch / ASPECT, ASPECT * pitch / tall)
            score = pitch * tall * count / (width * height) / off**0.7 * (1.03 if columns % 8 == 0 else 1.0)
            if score > best_score:
                best, best_score = cls(count, columns, pitch, tall), score
        return best if best and best.gutter else cls._dense(count, width, height)

    @classmethod
    def _dense(cls, count: int, width: int, height: int) -> Grid:
        """Cells of a few pixels, or several to a pixel."""
        for pitch, tall in ((3, 4), (3, 3), (2, 3), (2, 2), (1, 2), (1, 1)):
            grid = cls(count, max(1, width // pitch), pitch, tall, band=BAND // tall)
            if width >= pitch and grid.rows * tall <= height:
                return grid
        down, across = 2, 1  # those that follow each other share a pixel first
        while (grid := cls(count, width * across, 1, 1, down, across, BAND * down))._down > height:
            down, across = (down, 2 * across) if down > across else (2 * down, across)
        return grid

    @property
    def fold(self) -> int:
        """Cells that share a pixel."""
        return self.down * self.across

    def places(self, indices: NDArray) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Rows and columns of cells."""
        bands, rest = np.divmod(indices.astype(np.intp), self.columns * self.band)
        if self.band == 1:
            return bands, rest
        columns, rows = np.divmod(rest, self.band)
        return bands * self.band + rows, columns

    def place(self, index: int) -> tuple[int, int]:
        """Row and column of a cell."""
        band, rest = divmod(index, self.columns * self.band)
        column, row = divmod(rest, self.band)
        return band * self.band + row, column

    def index(self, row: int, column: int) -> int:
        """The cell at a row and column; beyond `count` where there is none."""
        band, below = divmod(row, self.band)
        return (band * self.columns + column) * self.band + below

    def span(self, window: Window) -> tuple[int, int]:
        """The first cell of the bands that a window shows, and the one after their last."""
        whole = self.columns * self.band
        return window.top // self.band * whole, min(self.count, -(-window.bottom // self.band) * whole)

    @property
    def rows(self) -> int:
        bands, rest = divmod(self.count, self.columns * self.band)
        return bands * self.band + min(self.band, rest)

    @property
    def gutter(self) -> int:
        least = min(self.width, self.height)
        return 0 if least < DETAIL else 1 if least < WIDE_GUTTER else 2

    @property
    def size(self) -> tuple[int, int]:
        """Pixels of the whole grid, gutters at both ends included."""
        return -(-self.columns // self.across) * self.width + self.gutter, self._down * self.height + self.gutter

    @property
    def _down(self) -> int:
        return -(-self.rows // self.down)

    def zoomed(self, notches: int) -> Grid:
        """The same rows and columns, larger by STEP a notch and by one pixel at least."""
        grid = self
        for _ in range(notches):
            if grid.fold > 1:
                grid = replace(grid, down=max(1, grid.down // 2), across=max(1, grid.across // 2))
            else:
                wide = max(grid.width + 1, round(grid.width * STEP))
                grid = replace(grid, width=wide, height=max(grid.height + 1, round(wide * self.height / self.width)))
        return grid

    @property
    def can_grow(self) -> bool:
        return self.fold > 1 or max(self.width, self.height) * STEP <= LARGEST

    def at(self, x: float, y: float) -> int | None:
        """The cell under a point of the grid, its right and lower gutter included; the first one of a fold."""
        if x < 0 or y < 0:
            return None
        column, row = int(x) // self.width * self.across, int(y) // self.height * self.down
        index = self.index(row, column)
        return index if column < self.columns and index < self.count else None

    def body(self, index: int) -> tuple[int, int, int, int]:
        """x, y, width, height of a cell without its gutters."""
        row, column = self.place(index)
        gutter = self.gutter
        return (
            column // self.across * self.width + gutter,
            row // self.down * self.height + gutter,
            max(1, self.width - gutter),
            max(1, self.height - gutter),
        )

    def visible(self, x: int, y: int, width: int, height: int) -> Window:
        """The cells that an area of the grid shows, cut ones included; whole folds."""
        left, top = max(0, x // self.width), max(0, y // self.height)
        right = min(-(-self.columns // self.across), -(-(x + width) // self.width))
        bottom = min(self._down, -(-(y + height) // self.height))
        return Window(
            left * self.across, min(self.columns, max(left, right) * self.across), top * self.down,
            min(self.rows, max(top, bottom) * self.down), left * self.width, top * self.height,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Window:
    """Columns left..right-1 and rows top..bottom-1 of a grid; x, y: where they begin, px."""

    left: int
    right: int
    top: int
    bottom: int
    x: int
    y: int

    @property
    def columns(self) -> int:
        return self.right - self.left

    @property
    def rows(self) -> int:
        return self.bottom - self.top
