"""The mirror against the books that the stream was made from: live, after gaps and restarts, and in the past."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import numpy as np
import pytest

from app.bench.recount import differences
from engine.records import Ack, Died, Ended, Gap, Keyframe, Notice, Refused, Status, StepRecord
from tests.support.synthetic import SyntheticSource
from ui.changes import Kinds
from ui.cursor import Cursor
from ui.mirror import Mirror
from ui.state import EngineState

ARRAYS = ("blocks_state", "refcount", "filled", "owner", "changed", "since", "before")


def started(blocks: int = 96, sequences: int = 6, seed: int = 3, **mirror: int) -> tuple[SyntheticSource, Mirror]:
    source, model = SyntheticSource(blocks, sequences, seed), Mirror(**mirror)
    model.apply_all(source.poll())
    return source, model


def assert_is(state: EngineState, frame: Keyframe) -> None:
    """`state` is what the keyframe, read from the structures themselves, says."""
    assert differences(state, frame) == []


def assert_same(one: EngineState, other: EngineState) -> None:
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for name in ("step", "clock", "running", "waiting", "used", "cached", "free", "shared", "empty", "gaps", "settings",
                 "memory"):
        assert getattr(one, name) == getattr(other, name), name
    np.testing.assert_array_equal(one.hit, other.hit)
    assert (one.prefixes.entries.tolist(), one.prefixes.use) == (other.prefixes.entries.tolist(), other.prefixes.use)
    for name in ("owner", "index", "filled"):
        np.testing.assert_array_equal(getattr(one.host, name), getattr(other.host, name))
    assert sorted(one.table_seqs) == sorted(other.table_seqs)
    assert all((one.table(seq) == other.table(seq)).all() for seq in one.table_seqs)
    for mine, theirs in ((one.sequences, other.sequences), (one.recent, other.recent)):
        assert list(mine) == list(theirs)
        for seq, info in mine.items():
            for name in info.__slots__:
                a, b = getattr(info, name), getattr(theirs[seq], name)
                assert a.tolist() == b.tolist() if isinstance(a, np.ndarray) else a == b, (name, seq)


@pytest.mark.parametrize(("blocks", "sequences"), [(40, 5), (96, 6), (700, 24)])
def test_equals_a_recount_after_every_step(blocks: int, sequences: int) -> None:
    source, model = started(blocks, sequences)
    for _ in range(300):
        source.advance()
        model.apply_all(source.poll())
        assert_is(model.live, source.world.keyframe())
    assert model.apply(source.world.keyframe()) & Kinds.BLOCKS
    assert model.drift == 0


def test_the_past_is_exact_at_random_steps() -> None:
    source, model = started(200, 12)
    rng = np.random.default_rng(5)
    chosen = set(rng.integers(0, 1500, 50).tolist())
    was: dict[int, EngineState] = {}
    for step in range(1500):
        if step in chosen:
            was[model.live.step] = model.live.copy()
        if step == 700:
            source.world.change(kv_blocks=320)
        source.advance()
        model.apply_all(source.poll())
    assert len(model._snapshots._starts) > 3
    for step, then in was.items():
        assert_same(model.state_at(step), then)


def test_rebuilding_leaves_the_live_state_alone() -> None:
    source, model = started()
    source.advance(150)
    model.apply_all(source.poll())
    before = model.live.copy()
    for step in (0, 40, 100, 149):
        model.state_at(step).sequences.clear()
    assert_same(model.live, before)


def test_time_travel_is_bounded_in_bytes() -> None:
    source, model = started(200, 12, budget=400_000)
    for _ in range(20):
        source.advance(100)
        model.apply_all(source.poll())
        assert model.nbytes <= 400_000
    assert model.first_step > 0
    assert model.state_at(0).step == model.first_step
    assert model.state_at(10**9) is model.live


def test_a_gap_is_said_and_the_keyframe_after_it_taken() -> None:
    source, model = started()
    source.advance(50)
    model.apply_all(source.poll())
    source.advance(30)
    source.poll()  # lost
    assert model.apply(Gap(first=51, last=80)) & Kinds.SOURCE
    frame = source.world.keyframe()
    model.apply(frame)
    assert_is(model.live, frame)
    assert model.gaps == [(51, 80)] and model.drift == 0
    source.advance(20)
    model.apply_all(source.poll())
    assert_is(model.live, source.world.keyframe())
    assert model.state_at(65).step == 50
    assert model.state_at(81).step == 81
    assert model.history.slice(45, 85).step.tolist() == [45, 46, 47, 48, 49, 50, 81, 82, 83, 84, 85]


def test_a_keyframe_that_contradicts_the_records_is_counted() -> None:
    source, model = started()
    frame = source.world.keyframe()
    state = bytearray(frame.state)
    state[3] = (state[3] + 1) % 3
    model.apply(msgspec.structs.replace(frame, state=bytes(state)))
    assert model.drift == 1


def test_a_restart_resets_the_state_and_keeps_the_history() -> None:
    source, model = started()
    source.advance(40)
    model.apply_all(source.poll())
    assert model.apply(Died(reason="killed by signal 9")) & Kinds.SOURCE
    assert model.died is not None and model.died.reason.startswith("killed")
    requests = len(model.history.requests)
    source.restart()
    source.advance(25)
    model.apply_all(source.poll())
    assert model.died is None
    assert model.last_step == 65  # one axis: the new engine's step 25
    assert model.history.slice().step.tolist() == list(range(1, 66))
    assert [m.key for m in model.history.marks] == ["engine"]
    assert len(model.history.requests) >= requests
    assert model.state_at(30).step == 30
    model.apply(Ack(id=9, ok=True, step=26))
    assert model.acks[9].step == 66
    source.world.step = 65
    assert_is(model.live, source.world.keyframe())


def test_words_are_kept() -> None:
    _, model = started()
    assert model.ready is not None and model.status.paused is False
    model.apply(Status(paused=True, delay=0.5, idle=False))
    model.apply(Notice(message="the pool was made smaller"))
    model.apply(Refused(number=4, message="longer than the context"))
    model.apply(Ended())
    assert model.status.paused and model.ended
    assert [n.message for n in model.notices] == ["the pool was made smaller", "longer than the context"]
    for number in range(400):
        model.apply(Ack(id=number, ok=True, step=1))
    assert len(model.acks) == 256 and 399 in model.acks


def test_a_setting_leaves_a_mark_at_the_step_that_obeys() -> None:
    source, model = started()
    source.advance(10)
    source.world.change(draft_length=2, kv_blocks=120)
    source.advance(1)
    kinds = model.apply_all(source.poll())
    assert kinds & Kinds.SETTINGS
    assert [(m.step, m.key, m.old, m.new) for m in model.history.marks] == [
        (11, "kv_blocks", 96, 120),
        (11, "draft_length", 4, 2),
    ]
    assert model.live.num_blocks == 120


def test_cursor_pins_moves_and_goes_live() -> None:
    source, model = started()
    cursor = Cursor(model)
    moves: list[int | None] = []
    cursor.listeners.append(lambda: moves.append(cursor.pinned))
    source.advance(30)
    model.apply_all(source.poll())
    assert cursor.is_live and cursor.state is model.live
    cursor.move(-10)
    assert cursor.step == 20 and cursor.state.step == 20
    kept = cursor.state
    source.advance(5)
    model.apply_all(source.poll())
    assert cursor.state is kept
    cursor.pin(-3)
    assert cursor.step == 0
    cursor.pin(35)
    source.advance(1)
    model.apply_all(source.poll())
    assert cursor.state.step == 35 and model.live.step == 36
    cursor.move(+1)
    assert cursor.is_live and moves == [20, 0, 35, None] and cursor.version == 4


def test_a_record_is_left_as_it_came() -> None:
    source, model = started()
    source.advance(1)
    (record,) = source.poll()
    assert isinstance(record, StepRecord)
    twin = msgspec.structs.replace(record)
    model.apply(record)
    assert record == twin


def test_the_model_needs_no_qt() -> None:
    modules = "ui.mirror ui.cursor ui.figures ui.block_story ui.history ui.snapshots ui.latency ui.blocks ui.tables"
    modules += " ui.prefixes ui.prefix_tree ui.prefix_words"
    code = f"import sys, {', '.join(modules.split())}; sys.exit('PySide6' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_that_a_request_was_taken_has_nothing_drawn_again() -> None:
    source, model = started()
    assert model.apply(Ack(id=1, ok=True, step=3)) == Kinds.NONE and 1 in model.acks
    assert model.apply(Ack(id=2, ok=False, step=3, message="too long")) & Kinds.SOURCE
    assert model.apply(Ack(id=3, ok=True, step=3, settings=source.world.settings)) & Kinds.SETTINGS
