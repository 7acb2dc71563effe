"""Reads a picture of the pool back, cell by cell, knowing only the theme's code book and where cells lie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QWidget

from engine.records import CACHED, FREE, USED
from ui.state import EngineState
from ui.theme import Theme
from ui.views.pool_canvas import PoolCanvas
from ui.views.pool_image import BARRED
from ui.views.pool_shades import FIRST_CACHED, FIRST_USED, FULL, HUES, LEVELS, RANKS, Shades

RECENT = 64  # steps for which a prefix hit may still be marked


@dataclass
class Cell:
    state: int
    hue: int  # owner % HUES; 0 for a free block
    fill: float  # 0..1; of a used block


def pixels(widget: QWidget) -> NDArray[np.uint32]:
    """What `grab()` shows, (height, width) of 0xffRRGGBB."""
    image = widget.grab().toImage().convertToFormat(QImage.Format.Format_RGB32)
    flat = np.frombuffer(image.constBits(), np.uint32).reshape(image.height(), image.bytesPerLine() // 4)
    return flat[:, : image.width()].copy()


class Decoder:
    def __init__(self, canvas: PoolCanvas, shades: Shades):
        self._canvas, self._shades = canvas, shades
        self._flat = {int(colour): rank for rank, colour in enumerate(shades.flat)}
        self._empty = {int(c): hue for hue, c in enumerate(shades.barred[FIRST_USED : FIRST_USED + HUES])}
        self._full = {int(c): hue for hue, c in enumerate(shades.full)}

    def cell(self, image: NDArray[np.uint32], block: int) -> Cell:
        """Raises KeyError for a colour that stands for nothing."""
        box = self._canvas.rect_of(block)
        body = image[box.top() : box.bottom() + 1, box.left() : box.right() + 1]
        edge = body[:, 0]  # a column that neither dots nor marks touch
        if min(self._canvas.grid.width, self._canvas.grid.height) < BARRED:
            assert len(set(edge.tolist())) == 1
            return self._of_rank(self._flat[int(edge[0])])
        top, bottom = int(edge[0]), int(edge[-1])
        if top not in self._empty:
            return self._of_rank(self._flat[top])
        if top == bottom:
            return Cell(USED, self._empty[top], 0.0)
        assert self._full[bottom] == self._empty[top]
        return Cell(USED, self._empty[top], int((edge == bottom).sum()) / len(edge))

    @staticmethod
    def _of_rank(rank: int) -> Cell:
        if rank == 0:
            return Cell(FREE, 0, 0.0)
        if rank < FIRST_USED:
            return Cell(CACHED, rank - FIRST_CACHED, 1.0)
        level, hue = divmod(rank - FIRST_USED, HUES)
        return Cell(USED, hue, 1.0 if rank >= FULL else level / LEVELS)


def misread(canvas: PoolCanvas, state: EngineState, theme: Theme) -> int:
    """Cells, or pixels where several blocks share one, that don't show what `state` holds there: the loudest of the
    blocks, used before cached before free and fuller before emptier. A mark of a prefix hit stands for a block that was
    hit of late. Nothing is chosen or pointed at. Cells with a bar are read block by block."""
    grid, image, shades = canvas.grid, pixels(canvas), Shades(theme)
    if grid.gutter:
        decoder = Decoder(canvas, shades)
        return sum(not _agrees(decoder.cell(image, block), state, block) for block in range(state.num_blocks))
    rows, columns = grid.places(np.arange(grid.count))
    y = canvas.origin.y() + rows // grid.down * grid.height
    x = canvas.origin.x() + columns // grid.across * grid.width
    expected, hit = np.zeros(image.shape, np.int64), np.zeros(image.shape, bool)
    np.maximum.at(expected, (y, x), _loudness(state))
    late = (state.hit > max(0, state.step - RECENT)) & (state.blocks_state == USED)
    hit[y[late], x[late]] = True
    spots = np.zeros(image.shape, bool)
    spots[y, x] = True
    order = np.argsort(shades.flat[:RANKS])
    book = shades.flat[:RANKS][order]
    found = np.searchsorted(book, image).clip(0, RANKS - 1)
    known = book[found] == image
    seen = np.where(known, _code(order[found]), -1)
    right = (seen == expected) | (hit & (image == shades.hit))
    return int(np.count_nonzero(spots & ~right))


def _loudness(state: EngineState) -> NDArray[np.int64]:
    """Of each block: what it is, how full, and whose."""
    hue = (state.owner % HUES).astype(np.int64)
    level = -(-state.filled.astype(np.int64) * LEVELS // state.block_size)
    kind = state.blocks_state
    return np.where(kind == USED, 1 << 20 | level << 8 | hue, np.where(kind == CACHED, 1 << 16 | hue, 0))


def _code(ranks: NDArray) -> NDArray[np.int64]:
    """The same, of what the code book says a rank stands for."""
    level, hue = np.divmod(ranks.astype(np.int64) - FIRST_USED, HUES)
    cached = 1 << 16 | (ranks - FIRST_CACHED)
    return np.where(ranks >= FIRST_USED, 1 << 20 | level << 8 | hue, np.where(ranks >= FIRST_CACHED, cached, 0))


def _agrees(cell: Cell, state: EngineState, block: int) -> bool:
    kind = state.blocks_state[block]
    if cell.state != kind or (kind != FREE and cell.hue != state.owner[block] % HUES):
        return False
    return kind != USED or abs(cell.fill - state.filled[block] / state.block_size) <= 1 / 4
