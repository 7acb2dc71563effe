"""Which moment is shown: the live one, or a pinned step of the past. No Qt."""

from __future__ import annotations

from collections.abc import Callable

from ui.mirror import Mirror
from ui.state import EngineState


class Cursor:
    """The one time cursor of the window.

    Attributes:
        pinned: the shown step, None while live.
        version: grows with every move.
        listeners: called, without arguments, after every move.
    """

    def __init__(self, mirror: Mirror):
        self._mirror = mirror
        self._kept: tuple[int, EngineState] | None = None
        self.pinned: int | None = None
        self.version = 0
        self.listeners: list[Callable[[], None]] = []

    @property
    def is_live(self) -> bool:
        return self.pinned is None

    @property
    def state(self) -> EngineState:
        """The moment shown. A past one is rebuilt once and kept; don't change it."""
        if self.pinned is None:
            return self._mirror.live
        if self._kept is None or self._kept[0] != self.pinned:
            self._kept = (self.pinned, self._mirror.state_at(self.pinned))
            if self._kept[1] is self._mirror.live:  # pinned at the live step: it must stand still
                self._kept = (self.pinned, self._mirror.live.copy())
        return self._kept[1]

    @property
    def step(self) -> int:
        return self._mirror.live.step if self.pinned is None else self.pinned

    @property
    def clock(self) -> int:
        """Engine clock, ns."""
        return self.state.clock

    def pin(self, step: int) -> None:
        """Show the moment after `step`, as near as what is kept allows."""
        self._move(max(self._mirror.first_step, min(step, self._mirror.last_step)))

    def move(self, delta: int) -> None:
        """Steps back (negative) or forward; moving forward past the last step goes live."""
        target = self.step + delta
        if delta > 0 and target >= self._mirror.last_step:
            self.live()
        else:
            self.pin(target)

    def live(self) -> None:
        self._move(None)

    def _move(self, step: int | None) -> None:
        if step == self.pinned:
            return
        self.pinned = step
        if step is None:
            self._kept = None
        self.version += 1
        for listener in list(self.listeners):
            listener()
