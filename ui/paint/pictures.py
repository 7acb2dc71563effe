"""Pictures of parts of a view that are painted once and copied until they change: the latest, bounded by bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from PySide6.QtCore import QSize
from PySide6.QtGui import QImage, QPixmap

# What is in sight, and as much again for what is scrolled to next. More would hold what is never painted again, and a
# heap that such pictures come to and leave by the thousand is full of holes.
SCREENS = 2
_DEPTH = 4  # bytes of a pixel
Picture = TypeVar("Picture", QPixmap, QImage)


class Pictures(Generic[Picture]):
    """
    Attributes:
        bytes: of the pictures held.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._room = 0
        self._held: OrderedDict[Hashable, Picture] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def fit(self, size: QSize) -> None:
        """For a view of `size` pixels. Call before each painting: all that it takes has room then."""
        self._room = SCREENS * size.width() * size.height() * _DEPTH

    def of(self, key: Hashable, paint: Callable[[], Picture]) -> Picture:
        """What `paint()` makes, from before where `key` says that it is the same."""
        found = self._held.get(key)
        if found is not None:
            self._held.move_to_end(key)
            return found
        picture = self._held[key] = paint()
        self.bytes += _bytes(picture)
        while self.bytes > self._room and len(self._held) > 1:
            self.bytes -= _bytes(self._held.popitem(last=False)[1])
        return picture


def _bytes(picture: QPixmap | QImage) -> int:
    return picture.width() * picture.height() * picture.depth() // 8
