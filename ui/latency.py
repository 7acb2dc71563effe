"""Latencies as they were measured: rings of samples, and the requests that ended. No Qt."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from engine.formulas import time_per_output_token
from ui.sequences import SequenceInfo
from ui.state import Applied

SECOND = 1_000_000_000  # ns
KEPT_REQUESTS = 10_000
KEPT_TEXT = 16 << 20  # characters of all their texts; beyond that the oldest ones lose theirs
BEGINNING, CUT = 200, " … (the rest of this text is kept no more)"
KEPT_SAMPLES = 50_000
KEPT_GAPS = 250_000  # 256 sequences at 200 steps/s fill this in 5 s, 16 at 10 in half an hour


class Samples:
    """A ring of (clock ns, value s, seq), oldest first, the oldest falling out; slices are contiguous.

    Attributes:
        clock, value, seq: all kept samples. count: how many were ever added.
    """

    def __init__(self, capacity: int):
        self._capacity = capacity
        self._clock = np.zeros(256, np.int64)
        self._value = np.zeros(256, np.float64)
        self._seq = np.zeros(256, np.uint32)
        self._low = self._high = 0
        self.count = 0

    def __len__(self) -> int:
        return self._high - self._low

    @property
    def clock(self) -> NDArray[np.int64]:
        return self._clock[self._low : self._high]

    @property
    def value(self) -> NDArray[np.float64]:
        return self._value[self._low : self._high]

    @property
    def seq(self) -> NDArray[np.uint32]:
        return self._seq[self._low : self._high]

    @property
    def full(self) -> bool:
        """The oldest falls out for the next."""
        return len(self) >= self._capacity

    def keep(self, capacity: int) -> None:
        """Hold no more than that from now on."""
        self._capacity = capacity
        self._low = max(self._low, self._high - capacity)

    def extend(self, clock: int, values: NDArray | list[float], seqs: NDArray | list[int]) -> None:
        """Add samples of one instant; instants come in order."""
        count = len(values)
        if self._high + count > len(self._clock):
            self._make_room(count)
        place = slice(self._high, self._high + count)
        self._clock[place], self._value[place], self._seq[place] = clock, values, seqs
        self._high += count
        self._low = max(self._low, self._high - self._capacity)
        self.count += count

    def add(self, clock: int, value: float, seq: int) -> None:
        self.extend(clock, [value], [seq])

    def since(self, clock: int, until: int | None = None) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Clocks and values of samples after `clock`, up to and with `until`."""
        low = int(np.searchsorted(self.clock, clock, "right"))
        high = len(self) if until is None else int(np.searchsorted(self.clock, until, "right"))
        return self.clock[low:high], self.value[low:high]

    def _make_room(self, count: int) -> None:
        kept = min(len(self), self._capacity)
        low = self._high - kept
        # twice the capacity at most, so that moving down is rare; growing on demand, so that a short run is cheap
        size = min(max(2 * (kept + count), 256), 2 * self._capacity + count)
        for name in ("_clock", "_value", "_seq"):
            old = getattr(self, name)
            # moved down within itself where that leaves as much room as there is: new memory costs more than the moving
            new = old if len(old) >= 2 * kept + count else np.zeros(size, old.dtype)
            new[:kept] = old[low : self._high]
            setattr(self, name, new)
        self._low, self._high = 0, kept


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request that ended. Clocks are engine clock, ns; ttft, tpot, e2e and queue are seconds."""

    seq: int
    number: int
    label: str
    prompt: str
    prompt_tokens: int
    output_tokens: int
    arrival: int
    admitted: int
    first_token: int
    last_token: int
    ttft: float | None  # None: ended before its first token
    tpot: float | None  # None: fewer than two tokens
    e2e: float
    queue: float | None
    reason: str
    aborted: bool
    drafted: int
    accepted: int
    preemptions: int
    cached_tokens: int
    text: str
    finish_step: int
    finish_clock: int

    @classmethod
    def of(cls, info: SequenceInfo) -> FinishedRequest:
        tpot = None
        if info.first_token:
            tpot = time_per_output_token(info.first_token, info.last_token, info.output_tokens)
        return cls(
            **{name: getattr(info, name) for name in _SAME},
            ttft=(info.first_token - info.arrival) / SECOND if info.first_token else None,
            tpot=None if tpot is None else tpot / SECOND,
            e2e=(info.finish_clock - info.arrival) / SECOND,
            queue=(info.admitted - info.arrival) / SECOND if info.admitted else None,
            reason=info.finish_reason,
            aborted=info.status == "aborted",
        )


_SAME = ("seq", "number", "label", "prompt", "prompt_tokens", "output_tokens", "arrival", "admitted", "first_token",
         "last_token", "drafted", "accepted", "preemptions", "cached_tokens", "text", "finish_step",
         "finish_clock")  # fmt: skip


class Latency:
    """Everything about time that requests went through.

    Attributes:
        ttft: first token − arrival. queue: first admission − arrival. itl: gaps between two emissions of one
            sequence (a verified pass emits its tokens at one instant). tpot, e2e: of requests that finished.
        requests: the last KEPT_REQUESTS that ended, oldest first. ended: how many ever did.
    """

    def __init__(self) -> None:
        self.ttft = Samples(KEPT_SAMPLES)
        self.queue = Samples(KEPT_SAMPLES)
        self.itl = Samples(KEPT_GAPS)
        self.tpot = Samples(KEPT_SAMPLES)
        self.e2e = Samples(KEPT_SAMPLES)
        self.requests: deque[FinishedRequest] = deque(maxlen=KEPT_REQUESTS)
        self.ended = 0
        self._text = 0  # characters of texts kept
        self._cut = 0  # of `requests`, the oldest so many have no whole text any more

    def keep(self, share: float) -> None:
        """Hold only this share of what is usually kept."""
        for samples in (self.ttft, self.queue, self.tpot, self.e2e):
            samples.keep(max(1, int(share * KEPT_SAMPLES)))
        self.itl.keep(max(1, int(share * KEPT_GAPS)))
        self.requests = deque(self.requests, maxlen=max(1, int(share * KEPT_REQUESTS)))

    @property
    def full(self) -> bool:
        """Neither gaps nor requests become more; of each request there is one sample of the other kinds at most."""
        return self.itl.full and len(self.requests) == self.requests.maxlen

    def add(self, done: Applied, start: int, end: int) -> None:
        """Take what one record did; `start` and `end` are its engine clocks."""
        if done.admitted:
            waits = [(info.admitted - info.arrival) / SECOND for info in done.admitted]
            self.queue.extend(start, waits, [info.seq for info in done.admitted])
        if done.first:
            waits = [(info.first_token - info.arrival) / SECOND for info in done.first]
            self.ttft.extend(end, waits, [info.seq for info in done.first])
        if done.gaps:
            self.itl.extend(end, np.array(done.gaps) / SECOND, done.gap_seqs)
        for info in done.ended:
            request = FinishedRequest.of(info)
            self._keep(request)
            if request.aborted:
                continue
            self.e2e.add(end, request.e2e, info.seq)
            if request.tpot is not None:
                self.tpot.add(end, request.tpot, info.seq)

    def _keep(self, request: FinishedRequest) -> None:
        if len(self.requests) == self.requests.maxlen:
            self._text -= len(self.requests[0].text)
            self._cut = max(0, self._cut - 1)
        self.requests.append(request)
        self.ended += 1
        self._text += len(request.text)
        while self._text > KEPT_TEXT and self._cut < len(self.requests) - 1:
            old = self.requests[self._cut]
            short = old.text if len(old.text) <= BEGINNING + len(CUT) else old.text[:BEGINNING] + CUT
            self.requests[self._cut] = replace(old, text=short)
            self._text -= len(old.text) - len(short)
            self._cut += 1
