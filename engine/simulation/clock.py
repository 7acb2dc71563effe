"""Time of a simulated engine: while it works only what the cost model says passes, else what really does."""

from __future__ import annotations

import time
from collections.abc import Callable


class SimulatedClock:
    """Monotonic ns. `paced`: the steps take the time that they are said to take, so that people can watch. `period`: s
    that each is said to take, where all take the same: the next is due then, and a late one is made up for.

    Held, it stands but for `advance`: what this machine needs for a step's bookkeeping is no part of a figure. Let go,
    it runs with the real clock, from where it stands: requests arrive when they arrive.
    """

    def __init__(
        self,
        paced: bool,
        real: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
        period: float = 0.0,
    ):
        self._paced, self._real, self._sleep = paced, real, sleep
        self._period = round(1e9 * period)
        self._offset = 0  # of a clock that runs, to the real one
        self._stands: int | None = None
        self._due = 0  # real ns before which the step may not end

    def __call__(self) -> int:
        return self._real() + self._offset if self._stands is None else self._stands

    @property
    def held(self) -> bool:
        return self._stands is not None

    def hold(self) -> None:
        if self._stands is None:
            self._stands = self()

    def release(self) -> None:
        if self._stands is not None:
            self._offset = self._stands - self._real()
            self._stands = None

    def begin(self) -> None:
        """A step begins."""
        self.hold()
        # what comes between two steps is no reason to be late with the next, but a pause isn't made up for
        self._due = max(self._due, self._real() - self._period) if self._period else self._real()

    def advance(self, seconds: float) -> None:
        assert self._stands is not None, "only a clock that is held is advanced"
        ns = round(1e9 * seconds)
        self._stands += ns
        self._due += ns

    def end(self) -> None:
        """A step ends, when its time has come."""
        if self._paced and (left := self._due - self._real()) > 0:
            self._sleep(left / 1e9)
