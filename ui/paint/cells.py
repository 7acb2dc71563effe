"""Where the cells of a big regular grid lie: fitted to an area, zoomed about a point, folded when there are too many.

Arithmetic on integers alone; knows nothing of what a cell means. Pixels are whole, so that a cell is never blurred.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

ASPECT = 1.25  # height ÷ width that fitted cells aim at: upright, so that a level reads like one in a glass
DETAIL = 4  # px: from this pitch on a cell has a gutter and shows more than one colour
WIDE_GUTTER = 12  # px: from this pitch on the gutter is 2 px
LARGEST = 240  # px: a whole cell of text is readable
STEP = 1.25  # zoom per notch


@dataclass(frozen=True, slots=True)
class Grid:
    """`count` cells in rows of `columns`, each `width` × `height` px with its gutter at the right and below.

    Attributes:
        fold: cells across and down that share one pixel; 1 unless the area has fewer pixels than cells.
    """

    count: int
    columns: int
    width: int
    height: int
    fold: int = 1

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
        return best or cls._dense(count, width, height)

    @classmethod
    def _dense(cls, count: int, width: int, height: int) -> Grid:
        """Cells of a pixel or so, or several to a pixel."""
        for pitch in (2, 1):
            columns = width // pitch
            for tall in (2, 1):
                if columns and tall >= pitch and -(-count // columns) * tall <= height:
                    return cls(count, columns, pitch, tall)
        fold = 2
        while ceil(count / (width * fold) / fold) > height:
            fold += 1
        return cls(count, width * fold, 1, 1, fold)

    @property
    def across(self) -> int:
        return self.fold

    @property
    def down(self) -> int:
        return self.fold

    def places(self, indices: NDArray) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Rows and columns of cells."""
        rows, columns = np.divmod(indices.astype(np.intp), self.columns)
        return rows, columns

    @property
    def rows(self) -> int:
        return -(-self.count // self.columns)

    @property
    def gutter(self) -> int:
        least = min(self.width, self.height)
        return 0 if least < DETAIL else 1 if least < WIDE_GUTTER else 2

    @property
    def size(self) -> tuple[int, int]:
        """Pixels of the whole grid, gutters at both ends included."""
        return -(-self.columns // self.fold) * self.width + self.gutter, self._down * self.height + self.gutter

    @property
    def _down(self) -> int:
        return -(-self.rows // self.fold)

    def zoomed(self, notches: int) -> Grid:
        """The same rows and columns, larger by STEP a notch and by one pixel at least."""
        grid = self
        for _ in range(notches):
            if grid.fold > 1:
                grid = replace(grid, fold=grid.fold // 2)
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
        column, row = int(x) // self.width * self.fold, int(y) // self.height * self.fold
        index = row * self.columns + column
        return index if column < self.columns and index < self.count else None

    def body(self, index: int) -> tuple[int, int, int, int]:
        """x, y, width, height of a cell without its gutters."""
        row, column = divmod(index, self.columns)
        gutter = self.gutter
        return (
            column // self.fold * self.width + gutter,
            row // self.fold * self.height + gutter,
            max(1, self.width - gutter),
            max(1, self.height - gutter),
        )

    def visible(self, x: int, y: int, width: int, height: int) -> Window:
        """The cells that an area of the grid shows, cut ones included; whole folds."""
        fold = self.fold
        left, top = max(0, x // self.width), max(0, y // self.height)
        right = min(-(-self.columns // fold), -(-(x + width) // self.width))
        bottom = min(self._down, -(-(y + height) // self.height))
        return Window(
            left * fold, min(self.columns, max(left, right) * fold), top * fold,
            min(self.rows, max(top, bottom) * fold), left * self.width, top * self.height,
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
