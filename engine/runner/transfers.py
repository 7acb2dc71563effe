"""Numbers between host and device in memory that stays: sent up in one copy, brought back in one, awaited by event.

Each direction has two places that take turns. The host fills one while the other is still being copied: a step is
launched behind the one that runs, never two. Memory grows when something larger than ever comes, and a steady step
allocates nothing. On the CPU there is nothing to wait for, and the copies are made all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

PLACES = 2
_ALIGNED = 2  # words of 8 bytes: kernels read from addresses of 16 bytes on faster, and are compiled for them


class Event(Protocol):
    def record(self) -> None: ...
    def synchronize(self) -> None: ...


Events = Callable[[], Event]


def events_of(device: torch.device) -> Events | None:
    return torch.cuda.Event if device.type == "cuda" else None


class ToDevice:
    """`events`: makes what tells that a copy is done; None: copies are done at once."""

    def __init__(self, device: torch.device, events: Events | None = None):
        self.device = device
        events = events or events_of(device)
        self._copied = [events() if events else None for _ in range(PLACES)]
        self._turn = 0
        self._room = 0
        self.reserve(1 << 10)

    def reserve(self, words: int) -> None:
        """Have room for so many numbers of 8 bytes."""
        if words <= self._room:
            return
        self._room = 1 << (words - 1).bit_length()
        self._there = torch.zeros(self._room, dtype=torch.int64, device=self.device)
        pinned = self.device.type == "cuda"
        self._staged = [torch.zeros(self._room, dtype=torch.int64, pin_memory=pinned) for _ in range(PLACES)]
        self._arrays = [tensor.numpy() for tensor in self._staged]

    @property
    def bytes(self) -> int:
        return self._there.nbytes

    def send(self, parts: Sequence[NDArray[np.int64] | NDArray[np.float64]]) -> list[torch.Tensor]:
        """`parts` on the device, until the next call."""
        ends = np.cumsum([-(-part.size // _ALIGNED) * _ALIGNED for part in parts])
        self.reserve(int(ends[-1]))
        self._turn = (self._turn + 1) % PLACES
        copied, array = self._copied[self._turn], self._arrays[self._turn]
        if copied is not None:
            copied.synchronize()  # of two steps ago; at once
        sent = []
        for part, start in zip(parts, [0, *ends[:-1].tolist()], strict=True):
            array[start : start + part.size] = np.ascontiguousarray(part).reshape(-1).view(np.int64)
            dtype = torch.float64 if part.dtype == np.float64 else torch.int64
            sent.append(self._there[start : start + part.size].view(dtype).view(part.shape))
        total = int(ends[-1])
        self._there[:total].copy_(self._staged[self._turn][:total], non_blocking=True)
        if copied is not None:
            copied.record()
        return sent


class ToHost:
    """As `ToDevice`, for up to `room` numbers of `dtype` at first."""

    def __init__(self, dtype: torch.dtype, room: int, device: torch.device, events: Events | None = None):
        self._dtype, self._pinned = dtype, device.type == "cuda"
        events = events or events_of(device)
        self._done = [events() if events else None for _ in range(PLACES)]
        self._turn = 0
        self._hosts: list[torch.Tensor] = []
        self.reserve(room)

    def reserve(self, room: int) -> None:
        if not self._hosts or room > len(self._hosts[0]):
            size = 1 << (max(room, 1) - 1).bit_length()
            self._hosts = [torch.zeros(size, dtype=self._dtype, pin_memory=self._pinned) for _ in range(PLACES)]

    def send(self, numbers: torch.Tensor) -> Returning:
        """Contiguous numbers of any shape. Their copy holds until two more were sent."""
        self.reserve(numbers.numel())
        self._turn = (self._turn + 1) % PLACES
        host = self._hosts[self._turn][: numbers.numel()].view(numbers.shape)
        host.copy_(numbers, non_blocking=True)
        done = self._done[self._turn]
        if done is not None:
            done.record()
        return Returning(host, done)


class Returning:
    """Numbers on their way to the host."""

    def __init__(self, host: torch.Tensor, done: Event | None):
        self._host, self._done = host, done

    def wait(self) -> NDArray:
        """Not to be kept."""
        if self._done is not None:
            self._done.synchronize()
        return self._host.numpy()
