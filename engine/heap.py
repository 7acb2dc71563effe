"""What the C allocator keeps of freed memory, in any process: window or engine."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable

EVERY = 30.0  # s; in twice that the heap of a busy window or engine grew by some 10 MiB


def give_back() -> None:
    """Hand freed memory back to the system where the allocator keeps it (glibc).

    After a model is loaded that is a quarter of a GiB, which would otherwise count as resident for good. Later it is
    what lies between chunks still in use: pictures and shaped texts of a window, probabilities of an engine's rows come
    and go and leave holes that the next ones don't quite fit, so that the heap grows by some MiB in every quarter of an
    hour though no more is in use. Takes 0.5 to 2 ms with 30 MiB of holes.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(ctypes.c_size_t(0))


class Tidy:
    """Gives back every now and then, for a loop that calls `turn` often. `clock`: s."""

    def __init__(self, every: float = EVERY, clock: Callable[[], float] = time.monotonic):
        self._every, self._clock = every, clock
        self._due = clock() + every

    def turn(self) -> None:
        if (now := self._clock()) >= self._due:
            self._due = now + self._every
            give_back()
