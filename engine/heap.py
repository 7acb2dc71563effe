"""What the C allocator keeps of freed memory, in any process: window or engine."""

from __future__ import annotations

import ctypes
import sys


def give_back() -> None:
    """Hand freed memory back to the system where the allocator keeps it (glibc).

    After a model is loaded that is a quarter of a GiB, which would otherwise count as resident for good. Later it is
    what lies between chunks still in use: thousands of small pictures and shaped texts that come and go leave holes
    that the next ones don't quite fit, and the heap grows by some MiB in every quarter of an hour though no more is in
    use. Takes 0.5 to 2 ms with 30 MiB of holes.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(ctypes.c_size_t(0))
