"""Running a client from a test: wait for a message, collect until a condition, and never leave a child."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from engine import records as r
from engine.client import EngineClient
from engine.config import EngineConfig

FAKE = "tests.support.fake_engine:main"


class Seen(list[r.Message]):
    """All messages polled so far, oldest first."""

    def of(self, kind: type) -> list:
        return [message for message in self if isinstance(message, kind)]

    def events(self, kind: type) -> list:
        return [e for m in self if isinstance(m, r.StepRecord | r.Between) for e in m.events if isinstance(e, kind)]

    def tokens(self) -> dict[int, list[int]]:
        """Output tokens by request number."""
        numbers = {event.seq: event.number for event in self.events(r.Submitted)}
        out: dict[int, list[int]] = {number: [] for number in numbers.values()}
        for record in self.of(r.StepRecord):
            emitted: np.ndarray = r.unpack(record.emitted, r.TOKEN)
            for seq, token in zip(emitted["seq"].tolist(), emitted["token"].tolist(), strict=True):
                out[numbers[seq]].append(token)
        return out


def until(client: EngineClient, seen: Seen, met: Callable[[Seen], object], timeout: float = 20.0) -> Seen:
    """Poll into `seen` until `met(seen)`; fails after `timeout` seconds."""
    end = time.monotonic() + timeout
    while not met(seen):
        assert time.monotonic() < end, f"not met in {timeout} s; last of {len(seen)}: {seen[-5:]}"
        client.wait(0.02)
        seen.extend(client.poll())
    return seen


@contextmanager
def running(config: EngineConfig | None = None, target: str = FAKE) -> Iterator[tuple[EngineClient, Seen]]:
    """A client that is ready, closed and gone afterwards."""
    client = EngineClient(config or EngineConfig(), target)
    try:
        yield client, until(client, Seen(), lambda seen: client.state != "starting")
    finally:
        client.close()
        assert client.join(10)
