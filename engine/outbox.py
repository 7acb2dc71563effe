"""The way out of the engine's process: records in, bytes on the pipe, and the engine never waits.

Three threads share the work. The step thread only appends to a queue. The encoder turns each record into
bytes, once. The writer does the blocking `send_bytes`: a pipe holds 64 KiB, a handful of large records, so a
reader that pauses would otherwise pause the engine. Between encoder and writer stands the `Backlog`, the one
place that can overflow; when it has drained again, the outbox asks for a keyframe.

Knows nothing of what the records say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from engine.backlog import Backlog
from engine.records import Message, encode

# Messages kept for a reader that doesn't read, ten seconds of 100 steps a second. More would be in the way of one that
# wakes: it has to go through all of them, up to 0.6 ms each, before it shows the present. Past that it gets a keyframe.
KEPT = 1024


class Channel(Protocol):
    """The sending end of a pipe, as multiprocessing makes them."""

    def send_bytes(self, data: bytes) -> None: ...


class Outbox:
    """`ask_keyframe` is called on the writer's thread and must not wait."""

    def __init__(self, channel: Channel, ask_keyframe: Callable[[], None], backlog: Backlog | None = None):
        self._channel = channel
        self._ask_keyframe = ask_keyframe
        self._records: SimpleQueue[Message | None] = SimpleQueue()
        self.backlog = Backlog(max_count=KEPT) if backlog is None else backlog
        self._encoder = threading.Thread(target=self._encode, name="outbox-encoder", daemon=True)
        self._writer = threading.Thread(target=self._write, name="outbox-writer", daemon=True)
        self._encoder.start()
        self._writer.start()

    def send(self, record: Message) -> None:
        """Hand over a record; returns at once."""
        self._records.put(record)

    def close(self, timeout: float) -> bool:
        """Send what is left, for at most `timeout` seconds; False when the reader didn't take it all."""
        self._records.put(None)
        self._encoder.join(timeout)
        self._writer.join(timeout)
        return not self._writer.is_alive()

    def _encode(self) -> None:
        while (record := self._records.get()) is not None:
            self.backlog.put(encode(record))
        self.backlog.close()

    def _write(self) -> None:
        try:
            while (data := self.backlog.get()) is not None:
                self._channel.send_bytes(data)
                if self.backlog.keyframe_due():
                    self._ask_keyframe()
        except OSError:
            # The reader is gone. The inbox sees the same and ends the process; until then records are dropped
            # here, bounded by the backlog.
            return
