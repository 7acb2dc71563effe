"""The engine never waits for its reader, and a reader that was too slow knows what it missed."""

from __future__ import annotations

import threading
import time

import pytest

from engine import records as r
from engine.backlog import Backlog, tag_of
from engine.config import LiveSettings
from engine.outbox import KEPT, Outbox
from tests.support.fake_engine import FakeEngine

MESSAGES: list[r.Message] = [
    r.Loading(stage="x" * 200, done=1, total=2),
    r.Ack(id=1, ok=True, step=1),
    r.Refused(number=1, message="no"),
    r.Status(paused=False, delay=0.0, idle=True),
    r.Notice(message="n"),
    r.Gap(first=1, last=2),
    r.Died(reason="r"),
    r.Ended(),
    FakeEngine(LiveSettings()).keyframe(),
    FakeEngine(LiveSettings(), 0).step(),
]


def step_record(step: int, size: int = 0) -> bytes:
    engine = FakeEngine(LiveSettings(), 0)
    engine.last_step, engine.big = step - 1, size
    return r.encode(engine.step())


def keyframe(step: int) -> bytes:
    engine = FakeEngine(LiveSettings())
    engine.last_step = step
    return r.encode(engine.keyframe())


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_the_tag_is_read_without_decoding(message):
    assert tag_of(r.encode(message)).decode() == type(message).__name__


def test_no_tag_in_other_bytes():
    assert tag_of(b"") == b"" and tag_of(b"\x81\xa1a\x01") == b""


def test_backlog_drops_steps_but_never_answers():
    backlog = Backlog(max_count=3)
    assert all(backlog.put(step_record(step)) for step in (1, 2, 3))
    assert not backlog.put(step_record(4))
    assert backlog.put(r.encode(r.Ack(id=1, ok=True, step=5)))
    assert not backlog.put(step_record(5))
    assert not backlog.keyframe_due()  # not before the reader has caught up
    assert [tag_of(data) for data in backlog.take()] == [b"StepRecord"] * 3 + [b"Ack"]
    assert backlog.keyframe_due() and not backlog.keyframe_due()
    assert not backlog.put(step_record(6))  # still in the gap, though there is room
    assert backlog.put(keyframe(6))
    assert backlog.put(step_record(7))
    gap, key, step = map(r.decode, backlog.take())
    assert gap == r.Gap(first=4, last=6) and key.step == 6 and step.step == 7


def test_a_keyframe_that_finds_no_room_is_asked_for_again():
    backlog = Backlog(max_count=2)
    for step in (1, 2, 3):
        backlog.put(step_record(step))
    backlog.take()
    assert backlog.keyframe_due()
    for number in range(2):
        backlog.put(r.encode(r.Ack(id=number, ok=True, step=1)))
    assert not backlog.put(keyframe(3))
    backlog.take()
    assert backlog.keyframe_due()


def test_one_message_larger_than_the_bound_passes_an_empty_queue():
    backlog = Backlog(max_bytes=1000)
    assert backlog.put(step_record(1, size=5000))
    assert not backlog.put(step_record(2))


class StuckChannel:
    """A pipe whose reader doesn't read until `go` is set."""

    def __init__(self):
        self.go = threading.Event()
        self.sent: list[bytes] = []

    def send_bytes(self, data: bytes) -> None:
        self.go.wait()
        self.sent.append(data)


def all_encoded(outbox: Outbox, last: int) -> None:
    """Until the encoder has come to that step, which was dropped: by then the backlog is full."""
    while outbox.backlog._gap is None or outbox.backlog._gap[1] < last:
        time.sleep(0.001)


def test_a_reader_that_does_not_read_costs_the_engine_nothing():
    channel, asked = StuckChannel(), threading.Event()
    outbox = Outbox(channel, asked.set, Backlog(max_count=50, max_bytes=2**20))
    engine = FakeEngine(LiveSettings(), 0)
    engine.big = 10_000
    records = [engine.step() for _ in range(500)]
    started = time.perf_counter()
    for record in records:
        outbox.send(record)
    assert time.perf_counter() - started < 2  # 500 appends; a wait for the reader would have no end
    all_encoded(outbox, 500)
    # 50 less the one that the writer may have taken after the queue was full
    assert 49 <= len(outbox.backlog) <= 50 and outbox.backlog.size <= 2**20
    channel.go.set()
    assert asked.wait(5)
    outbox.send(engine.keyframe())
    outbox.send(engine.step())
    assert outbox.close(5)
    messages = [r.decode(data) for data in channel.sent]
    gap = next(m for m in messages if isinstance(m, r.Gap))
    steps = [m.step for m in messages if isinstance(m, r.StepRecord)]
    assert steps == [*range(1, gap.first), 501] and gap.last == 500
    assert isinstance(messages[messages.index(gap) + 1], r.Keyframe)


def test_a_reader_that_wakes_has_seconds_to_catch_up_with_not_minutes():
    channel = StuckChannel()
    outbox = Outbox(channel, lambda: None)
    engine = FakeEngine(LiveSettings(), 0)
    for _ in range(KEPT + 200):
        outbox.send(engine.step())
    all_encoded(outbox, KEPT + 200)
    assert KEPT - 1 <= len(outbox.backlog) <= KEPT
    channel.go.set()
    assert outbox.close(5)


def test_close_tells_when_the_reader_took_not_all():
    channel = StuckChannel()
    outbox = Outbox(channel, lambda: None)
    outbox.send(r.Ended())
    assert not outbox.close(0.1)
    channel.go.set()
    assert outbox.close(5)
