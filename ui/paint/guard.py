"""Painting that can fail without taking the window along: the painter always ends, and the fault is handed on.

An exception that leaves a paint event unhandled leaves its painter active too, and Qt then refuses every later
painting of that surface.
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtGui import QPaintDevice, QPainter


def painting(device: QPaintDevice, draw: Callable[[QPainter], None], failed: Callable[[Exception], None]) -> None:
    """Let `draw` paint on the device; what it raises goes to `failed` after the painter has ended."""
    painter = QPainter(device)
    try:
        draw(painter)
    except Exception as error:
        painter.end()
        failed(error)
    finally:
        if painter.isActive():
            painter.end()
