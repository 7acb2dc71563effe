"""The real child's records, followed for 2,000 steps of random use, give what its own structures hold.

Every step is compared with a keyframe taken from pool, tables and queues; then the past is rebuilt and compared with
what the keyframe of that step said. Mutated records show that the comparison catches what is wrong.
"""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine import records as r
from engine.client import EngineClient
from engine.config import EngineConfig, LiveSettings
from tests.support.clients import Seen, until
from tests.support.follower import Follower
from tests.support.inprocess import InProcessEngine
from tests.support.tiny_directory import make_directory
from tests.support.tiny_models import VOCABULARY
from tests.ui.test_mirror import assert_is

STEPS = 2_000
PAST = 50  # steps looked at again
SETTINGS = LiveSettings(
    max_batch=12, max_context=192, kv_blocks=56, token_budget=48, draft_length=4, draft_method="ngram", watermark=0.02
)
DRAGS: dict[str, list[int | float | bool | str]] = {
    "max_batch": [1, 3, 6, 12, 16],
    "max_context": [96, 160, 192],
    "kv_blocks": [10, 26, 34, 40, 56, 90],
    "token_budget": [8, 17, 32, 48, 96],
    "draft_length": [0, 1, 3, 6],
    "draft_method": ["off", "ngram", "ngram"],
    "prefix_cache": [True, True, False],
    "chunked_prefill": [True, True, False],
    "watermark": [0.0, 0.05],
    "temperature": [0.0, 0.7],
}


class User:
    """Does at random what a user might do, now and then something foolish."""

    def __init__(self, client: EngineClient | InProcessEngine, words: int, seed: int):
        self._client = client
        self._words = words  # of the vocabulary
        self._rng = random.Random(seed)
        self._number = 0
        self._paused = 0  # single steps until the pause ends
        self._system = [self._rng.randrange(words) for _ in range(37)]  # what prompts that share a prefix begin with

    def act(self, waiting: int) -> None:
        """Once after each step."""
        rng = self._rng
        if self._paused:
            self._paused -= 1
            self._send(r.StepOnce if self._paused else r.Resume)
            return
        chance = rng.random()
        if chance < 0.30 or waiting == 0:
            self._submit()
        elif chance < 0.33:
            self._send(r.Abort, number=rng.randint(max(1, self._number - 12), self._number + 1))
        elif chance < 0.43:
            key = rng.choice(list(DRAGS))
            self._send(r.Change, changes={key: rng.choice(DRAGS[key])})
        elif chance < 0.45:
            self._paused = rng.randint(2, 6)
            self._send(r.Pause)
            self._submit()  # arrives while nothing runs
            self._send(r.StepOnce)
        elif chance < 0.46:
            self._send(r.SetDelay, seconds=rng.choice([0.0, 0.0, 0.002]))
        elif chance < 0.463:
            self._send(r.SendKeyframe)

    def _submit(self) -> None:
        rng = self._rng
        self._number += 1
        shared = self._system if rng.random() < 0.5 else []
        phrase = [rng.randrange(self._words) for _ in range(rng.randint(1, 9))]
        prompt = shared + phrase * rng.randint(1, 5)  # repeats give the n-grams something to find
        self._send(
            r.Submit,
            request=r.Request(
                number=self._number,
                token_ids=prompt,
                max_tokens=rng.randint(1, 60),
                priority=rng.choice([0, 0, 0, -1, 2]),
                ignore_eos=rng.random() < 0.7,
                stop=[rng.choice(["w3 w5", "abc"])] if rng.random() < 0.2 else [],
                sampling=r.Sampling(temperature=rng.choice([0.0, 0.0, 1.0]), seed=self._number),
                label="random",
            ),
        )

    def _send(self, kind: type, **fields: object) -> None:
        self._client.send(kind(id=self._client.next_id(), **fields))


@pytest.mark.slow(seconds=15)
def test_mirror_equals_the_real_childs_structures_for_2000_steps_and_in_the_past(tmp_path: Path) -> None:
    model = str(make_directory(tmp_path))
    client = EngineClient(
        EngineConfig(model=model, device="cpu", dtype="float32", block_size=8, threads=1, settings=SETTINGS)
    )
    follower, user, acks = Follower(), User(client, VOCABULARY, seed=11), []
    window = Follower().mirror  # fed everything, as the window's is
    client.send(r.SendKeyframe(id=client.next_id(), every=1))
    for _ in range(8):
        user.act(0)
    try:
        while follower.mirror.live.step < STEPS:
            news = Seen()
            until(client, news, bool, timeout=60)
            for message in news:
                assert not isinstance(message, r.Died | r.Gap), message
                follower.take(message)
                window.apply(message)
                if isinstance(message, r.StepRecord):
                    user.act(message.waiting)
                elif isinstance(message, r.Status) and message.idle:
                    user.act(0)
                elif isinstance(message, r.Ack):
                    acks.append(message)
    finally:
        client.close()
        assert client.join(10)

    assert follower.compared >= STEPS and window.drift == 0
    happened = follower.seen
    for name, least in {
        "Preempted": 20, "preempted by kv_blocks": 5, "cache hits": 20, "evictions": 20, "Aborted": 10, "shared": 50,
        "verifications": 100, "Finished": 100, "bound by kv_blocks": 10, "bound by token_budget": 10,
    }.items():  # fmt: skip
        assert happened[name] >= least, (name, happened)
    assert sum(ack.ok for ack in acks) > 300 and sum(not ack.ok for ack in acks) > 5
    assert {mark.key for mark in follower.mirror.history.marks} >= {"max_batch", "kv_blocks", "token_budget"}

    chosen = random.Random(5).sample(sorted(follower.frames), PAST)
    for step in chosen:
        assert_is(follower.mirror.state_at(step), follower.frames[step])


# --- the comparison can fail ---


def _recorded() -> list[r.Message]:
    """A stream with a keyframe after each step: preemptions, hits, drafts."""
    engine = InProcessEngine(EngineConfig(block_size=8, settings=msgspec.structs.replace(SETTINGS, kv_blocks=26)))
    user = User(engine, 8, seed=3)
    engine.send(r.SendKeyframe(id=engine.next_id(), every=1))
    stream: list[r.Message] = []
    for _ in range(150):
        user.act(0)
        stream += engine.poll()
    return stream


def _edited(buffer: bytes, dtype: np.dtype, field: str, change: int) -> bytes:
    """The buffer with one entry's field moved by `change`."""
    entries = np.frombuffer(buffer, dtype).copy()
    entries[field][-1] += change
    return entries.tobytes()


def _without_last(buffer: bytes, dtype: np.dtype) -> bytes:
    return buffer[: -dtype.itemsize]


MUTATIONS = {
    "a block's fill is off by one": lambda s: {"blocks": _edited(s.blocks, r.BLOCK, "filled", 1)},
    "a block's count is off by one": lambda s: {"blocks": _edited(s.blocks, r.BLOCK, "refcount", 1)},
    "a block's owner is another": lambda s: {"blocks": _edited(s.blocks, r.BLOCK, "owner", 1)},
    "a block change is missing": lambda s: {"blocks": _without_last(s.blocks, r.BLOCK)},
    "a table entry is missing": lambda s: {"tables": _without_last(s.tables, r.TABLE)},
    "a table entry is another block": lambda s: {"tables": _edited(s.tables, r.TABLE, "block", 1)},
    "an event is missing": lambda s: {"events": s.events[:-1]},
    "a row computed one more": lambda s: {"rows": _edited(s.rows, r.ROW, "context", 1)},
    "a row accepted one more": lambda s: {
        "rows": _edited(_edited(s.rows, r.ROW, "accepted", 1), r.ROW, "drafted", 1)
    },
    "a used block is counted as cached": lambda s: {"used": s.used - 1, "cached": s.cached + 1},
    "one more waits": lambda s: {"waiting": s.waiting + 1},
    "a piece of text is missing": lambda s: {"text": ["", *s.text[1:]]},
    "a setting is another": lambda s: {"settings": msgspec.structs.replace(s.settings, watermark=0.4)},
}


@pytest.fixture(scope="module")
def stream() -> list[r.Message]:
    return _recorded()


def test_the_recorded_stream_as_it_is_passes(stream: list[r.Message]) -> None:
    follower = Follower()
    for message in stream:
        follower.take(message)
    assert follower.compared > 100 and follower.seen["Preempted"] and follower.seen["cache hits"]


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutated_record_is_caught(stream: list[r.Message], name: str) -> None:
    """The first record that can carry the fault does; the next keyframe tells."""
    place, wrong = next(found for found in enumerate(_mutated(m, name) for m in stream) if found[1] is not None)
    follower = Follower()
    for message in stream[:place]:
        follower.take(message)
    with pytest.raises((AssertionError, IndexError)):
        for message in [wrong, *stream[place + 1 :]]:
            follower.take(message)


def _mutated(record: r.Message, name: str) -> r.StepRecord | None:
    """The record with the fault, None where it has nothing to go wrong."""
    if not isinstance(record, r.StepRecord) or record.step < 20:
        return None
    try:
        changes = MUTATIONS[name](record)
    except IndexError:
        return None
    if all(getattr(record, key) == value for key, value in changes.items()):
        return None
    return msgspec.structs.replace(record, **changes)


def test_a_lost_record_is_caught(stream: list[r.Message]) -> None:
    follower = Follower()
    with pytest.raises(AssertionError):
        for message in stream:
            if not (isinstance(message, r.StepRecord) and message.step == 30):
                follower.take(message)


def test_a_past_rebuilt_from_a_lost_record_is_caught(stream: list[r.Message]) -> None:
    """The live mirror is right; what is kept for time travel lacks one record."""
    follower = Follower()
    for message in stream:
        follower.take(message)
    assert len(follower.frames) > 50
    for step, frame in follower.frames.items():
        assert_is(follower.mirror.state_at(step), frame)
    stretch = follower.mirror._snapshots._stretches[0]
    del stretch.records[20], stretch.steps[20]
    with pytest.raises(AssertionError):
        for step, frame in follower.frames.items():
            assert_is(follower.mirror.state_at(step), frame)
