"""Reads a picture of the pool back, cell by cell, knowing only the theme's code book and where cells lie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QWidget

from engine.records import CACHED, FREE, USED
from ui.views.pool_canvas import PoolCanvas
from ui.views.pool_image import BARRED
from ui.views.pool_shades import FIRST_CACHED, FIRST_USED, FULL, HUES, LEVELS, Shades


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
