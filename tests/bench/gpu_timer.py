"""Seconds on a card by events, with its cache emptied between repeats, and the bandwidth at which it copies."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import cached_property

import torch

FLUSH = 512 << 20  # bytes written between repeats: more than any card's L2 holds
COPIED = 2 << 30  # bytes of the copy that bandwidth is taken from; half are read, half written


class Bench:
    """`dry`: on the CPU, once, small; the figures mean nothing then."""

    def __init__(self, dry: bool):
        self.dry = dry
        self.device = torch.device("cpu" if dry else "cuda")

    def seconds(self, run: Callable[[], object], repeats: int = 20, flush: bool = True) -> float:
        """The median, after two runs that may compile."""
        for _ in range(1 if self.dry else 2):
            run()
        if self.dry:
            started = time.perf_counter()
            run()
            return max(1e-9, time.perf_counter() - started)
        found = []
        for _ in range(repeats):
            if flush:
                self._flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) / 1e3)
        return statistics.median(found)

    @cached_property
    def bandwidth(self) -> float:
        """Bytes/s read and written by a copy within the card's memory."""
        half = (1 << 20 if self.dry else COPIED) // 2
        source = torch.empty(half, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * half / self.seconds(lambda: target.copy_(source))

    @cached_property
    def _flush(self) -> torch.Tensor:
        return torch.empty(FLUSH, dtype=torch.uint8, device=self.device)

    def random(self, *shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, device=self.device) * scale).to(dtype)
