"""How often figures and lists that a person reads may change while the engine runs at full speed.

Plots follow every frame; words and single figures that change fifty times a second can't be read. At rest
(pinned, paused, idle) nothing is held back, so that what is shown is always the exact moment. No Qt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ui.context import ViewContext

READABLE = 0.25  # s between changes of what is read


class Pace:
    """`due()` says whether the figures may be taken anew."""

    def __init__(self, seconds: float = READABLE, clock: Callable[[], float] = time.monotonic):
        self._seconds, self._clock = seconds, clock
        self._last = -seconds

    def due(self, context: ViewContext) -> bool:
        now = self._clock()
        if at_rest(context) or now - self._last >= self._seconds:
            self._last = now
            return True
        return False

    def reset(self) -> None:
        self._last = -self._seconds


def at_rest(context: ViewContext) -> bool:
    """Nothing moves by itself: a past moment is shown, or the engine is paused, idle or slowed to be watched."""
    status = context.mirror.status
    return context.cursor.pinned is not None or status.paused or status.idle or status.delay >= READABLE
