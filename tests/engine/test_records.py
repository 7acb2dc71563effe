"""The contract: what goes in comes out, unknown fields are skipped, and a wrong version is said, not raised raw."""

import math

import msgspec
import numpy as np
import pytest

from engine import records as r
from engine.config import EngineConfig, Limit, LiveSettings, Model

MEMORY = r.Memory(weights=1, kv_pool=2, resident=3)
MODEL = Model(
    name="m", architecture="llama", layers=2, heads=2, kv_heads=1, head_dim=8, hidden=16, vocabulary=32,
    max_positions=64, parameters=100, weight_bytes=400, dtype="float32", kv_bytes_per_token=256,
)  # fmt: skip
STEP = r.StepRecord(
    v=r.SCHEMA, step=7, start=1, clock=2, end_clock=3,
    timing=r.Timing(schedule=1, draft=2, forward=3, sample=4, commit=5),
    rows=r.pack([(1, r.DECODE, 5, 20, 21, 4, 2, 3)], r.ROW),
    blocks=r.pack([(3, r.USED, 1, 16, 1), (4, r.FREE, 0, 0, r.NONE)], r.BLOCK),
    tables=r.pack([(1, 0, 3), (1, 1, r.NONE)], r.TABLE),
    events=[
        r.Submitted(seq=1, number=1, prompt_tokens=4, max_tokens=8, priority=0, arrival=5, prompt="é", label="bench"),
        r.Admitted(seq=1, cached_tokens=0, limit=12, again=False),
        r.Preempted(seq=1, cause="kv_blocks", by=2, needed=1, lost=9),
        r.Finished(seq=1, number=1, reason="stop", output_tokens=3, tail="…"),
        r.Aborted(seq=2, number=2, reason="user"),
    ],
    bound="token_budget", running=1, waiting=0, used=1, cached=0, free=9,
    emitted=r.pack([(1, 20, 5, r.SAMPLED)], r.TOKEN), text=["a"],
    drafts=r.pack([(1, 20, 5, r.REJECTED, 0.25, 1.0, 0.5), (1, 20, 6, r.RESAMPLED, 0.75, 0.0, math.nan)], r.DRAFT),
    draft_text=["a", "b"], settings=LiveSettings(temperature=0.5), memory=MEMORY,
    budget=r.StepBudget(tokens=148, goal=80.0, fixed=2.5, each=0.5),
    top=[r.TopTokens(seq=1, position=20, tokens=[5], probabilities=[0.5], text=["a"])],
    verification=r.Verification(seq=1, greedy=False, certain=True, positions=[
        r.Examined(position=20, verdict=r.REJECTED, token=5, text="a", p=0.25, q=1.0, draw=0.5, rejection=0.75,
                   candidates=[r.Candidate(token=6, text="b", p=0.75, left=1.0)], drawn=r.Drawn(token=6, text="b")),
        r.Examined(position=21, verdict=r.DISCARDED, token=7),
    ]),
)  # fmt: skip
KEYFRAME = r.Keyframe(
    v=r.SCHEMA, step=7, clock=2, block_size=16, settings=LiveSettings(), budget=r.StepBudget(tokens=256),
    state=b"\0\1", refcount=b"\0\0\1\0", filled=b"\0\0\1\0", owner=b"\0" * 8,
    table_seqs=b"\1\0\0\0", table_lengths=b"\1\0\0\0", table_blocks=b"\0\0\0\0",
    sequences=[r.SequenceState(
        seq=1, number=1, status="running", prompt_tokens=4, known=5, computed=4, max_tokens=8, limit=12, priority=0,
        arrival=1, first_token=2, last_token=2, cached_tokens=0, preemptions=0, drafted=0, accepted=0,
        prompt="p", output="o", label="",
    )],
    running=[1], waiting=[],
)  # fmt: skip
MESSAGES = [
    STEP,
    KEYFRAME,
    r.Between(v=r.SCHEMA, after=7, clock=2, blocks=b"", tables=b"", events=[], running=0, waiting=0, used=0, cached=0,
              free=10, settings=LiveSettings(), budget=r.StepBudget(tokens=256)),
    r.Loading(stage="weights", done=1, total=2),
    r.Ready(v=r.SCHEMA, pid=1, device="CPU", runner="cpu", config=EngineConfig(), settings=LiveSettings(), model=MODEL,
            block_size=16, limits={"max_batch": Limit(1, 512, "sequences")}),
    r.Ack(id=1, ok=False, step=8, message="no", key="max_batch", settings=LiveSettings()),
    r.Refused(number=1, message="too long"),
    r.Status(paused=True, delay=0.5, idle=False),
    r.Compiled(step=7, clock=9, what=["the kernel verify"], ns=2_300_000_000),
    r.Notice(message="n"),
    r.Gap(first=1, last=2),
    r.Died(reason="killed"),
    r.Ended(),
]  # fmt: skip
COMMANDS = [
    r.Submit(id=1, request=r.Request(number=1, prompt="hi", stop=["\n"], sampling=r.Sampling(temperature=0.7, seed=3))),
    r.Abort(id=2, number=None),
    r.Change(id=3, changes={"max_batch": 4, "top_p": 0.9, "draft_method": "off", "prefix_cache": False}),
    r.Pause(id=4),
    r.Resume(id=5),
    r.StepOnce(id=6, steps=3),
    r.SetDelay(id=7, seconds=0.1),
    r.SendKeyframe(id=8, every=100),
    r.Watch(id=9, seq=1, k=5),
    r.Shadow(id=11, number=3),
    r.Stop(id=10),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_messages_round_trip(message):
    assert r.decode(r.encode(message)) == message


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: type(c).__name__)
def test_commands_round_trip(command):
    assert r.decode_command(r.encode(command)) == command


def test_every_message_and_command_is_tried_here():
    assert {type(m) for m in MESSAGES} == set(r.Message.__args__)
    assert {type(c) for c in COMMANDS} == set(r.Command.__args__)


def test_unknown_fields_are_skipped():
    fields = msgspec.msgpack.decode(r.encode(STEP))
    fields["from_the_future"] = {"any": [1, 2]}
    fields["timing"]["warp"] = 3
    assert r.decode(msgspec.msgpack.encode(fields)) == STEP


def test_a_wrong_schema_names_both_versions():
    fields = msgspec.msgpack.decode(r.encode(STEP))
    fields["v"] = r.SCHEMA + 1
    del fields["rows"]
    with pytest.raises(r.WrongSchema, match=f"schema {r.SCHEMA + 1}; this version reads schema {r.SCHEMA}"):
        r.decode(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize("data", [b"", b"\xff\xff", b"hello", msgspec.msgpack.encode([1, 2])])
def test_bytes_that_are_no_record(data):
    with pytest.raises(r.WrongSchema, match="no Servescope record"):
        r.decode(data)
    with pytest.raises(r.WrongSchema, match="no Servescope record"):
        r.decode_command(data)


def test_a_damaged_record_is_told_from_another_version():
    fields = msgspec.msgpack.decode(r.encode(STEP))
    del fields["rows"]
    with pytest.raises(r.WrongSchema, match=f"damaged record of schema {r.SCHEMA}"):
        r.decode(msgspec.msgpack.encode(fields))


def test_records_are_frozen():
    with pytest.raises(AttributeError):
        STEP.step = 8  # type: ignore[misc]


@pytest.mark.parametrize(
    ("dtype", "size"), [(r.ROW, 23), (r.BLOCK, 13), (r.TABLE, 12), (r.TOKEN, 13), (r.DRAFT, 25)]
)
def test_buffers_are_packed_and_little_endian(dtype, size):
    """Sizes without padding: the same bytes on every machine."""
    assert dtype.itemsize == size
    assert all(dtype[name].byteorder in "<|=" for name in dtype.names)


def test_pack_and_unpack():
    rows = [(1, 2, 3), (4, 5, r.NONE)]
    view = r.unpack(r.pack(rows, r.TABLE), r.TABLE)
    assert view.tolist() == rows
    assert not view.flags.writeable
    assert len(r.unpack(r.pack([], r.TABLE), r.TABLE)) == 0


def test_draw_may_be_nothing():
    draft = r.unpack(STEP.drafts, r.DRAFT)
    assert np.isnan(draft["draw"][1])
    assert draft["p"].tolist() == [0.25, 0.75]


def test_timing_total():
    assert STEP.timing.total == 15
