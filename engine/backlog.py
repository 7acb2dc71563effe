"""A bounded queue of encoded messages, for both ends of the pipe.

What overflows is what can be made good by a keyframe: steps, what happened between them, and keyframes. From
the first one that finds no room, these are dropped until a keyframe finds room again; the reader then gets a
`Gap` naming the steps it missed, and that keyframe. Answers, refusals, notices and deaths are never dropped.
So whoever fills the queue never waits, and whoever empties it knows what it didn't see.

Knows nothing of processes, pipes or the engine.
"""

from __future__ import annotations

import threading
from collections import deque

import msgspec

from engine.records import Gap, encode

# Minutes of steps of an ordinary run; a keyframe of 400,000 blocks is 3.6 MB.
MAX_BYTES = 64 * 2**20
MAX_COUNT = 16_384

_REPLACEABLE = frozenset({b"StepRecord", b"Between", b"Keyframe"})


class _Head(msgspec.Struct):
    """The step that a dropped message spoke of; the rest of it is skipped."""

    step: int = 0
    after: int = 0


_head = msgspec.msgpack.Decoder(_Head)


def tag_of(data: bytes) -> bytes:
    """The name of an encoded record's struct, without decoding it. b"" where there is none.

    A tagged struct is a map whose first pair is "type" and its name: a map head of 1 byte (up to 15 fields)
    or 3, the key in 5 bytes, then a short string's head and the name.
    """
    start = 3 if data[:1] == b"\xde" else 1
    if data[start : start + 5] != b"\xa4type":
        return b""
    length = data[start + 5] & 0x1F
    return data[start + 6 : start + 6 + length]


class Backlog:
    """First in, first out; `put` never waits. All methods may be called from any thread."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_count: int = MAX_COUNT):
        self._max_bytes = max_bytes
        self._max_count = max_count
        self._items: deque[bytes] = deque()
        self._bytes = 0
        self._gap: tuple[int, int] | None = None  # first and last step dropped
        self._asked = False  # a keyframe to end the gap was asked for
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def size(self) -> int:
        """Bytes held."""
        return self._bytes

    def put(self, data: bytes) -> bool:
        """Take a message in; False when it was dropped."""
        with self._changed:
            room = not self._items or (
                len(self._items) < self._max_count and self._bytes + len(data) <= self._max_bytes
            )
            if room and self._gap is None:
                self._append(data)
                return True
            tag = tag_of(data)
            if tag not in _REPLACEABLE:
                self._append(data)
                return True
            if room and tag == b"Keyframe":
                assert self._gap is not None
                self._append(encode(Gap(first=self._gap[0], last=self._gap[1])))
                self._append(data)
                self._gap, self._asked = None, False
                return True
            self._widen(data)
            if tag == b"Keyframe":
                self._asked = False  # the one that was asked for found no room
            return False

    def get(self, timeout: float | None = None) -> bytes | None:
        """Wait for the oldest message; None when none came in time, or when closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._closed, timeout)
            return self._pop() if self._items else None

    def take(self, limit: int = 0) -> list[bytes]:
        """The oldest messages, at most `limit` of them (0 = all); never waits."""
        with self._changed:
            count = min(limit, len(self._items)) if limit else len(self._items)
            return [self._pop() for _ in range(count)]

    def wait(self, timeout: float | None) -> bool:
        """Wait until there is something to take, or until closed; False when neither came in time."""
        with self._changed:
            return bool(self._changed.wait_for(lambda: self._items or self._closed, timeout))

    def keyframe_due(self) -> bool:
        """True once for each gap, when the queue has drained: time to ask for the keyframe that ends it."""
        with self._changed:
            if self._gap is None or self._asked or self._items:
                return False
            self._asked = True
            return True

    def close(self) -> None:
        """Let `get` and `wait` return once the queue is empty."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def _append(self, data: bytes) -> None:
        self._items.append(data)
        self._bytes += len(data)
        self._changed.notify()

    def _pop(self) -> bytes:
        data = self._items.popleft()
        self._bytes -= len(data)
        return data

    def _widen(self, data: bytes) -> None:
        head = _head.decode(data)
        step = max(head.step, head.after)
        first, last = self._gap or (step, step)
        self._gap = min(first, step), max(last, step)
