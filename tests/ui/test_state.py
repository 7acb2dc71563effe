"""One moment: tables by slices, text by position, sharers, what happened to a block."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.records import CACHED, FREE, NONE, TABLE, USED, Aborted, Between
from tests.support.synthetic import SyntheticSource
from ui.block_story import tell
from ui.mirror import Mirror
from ui.sequences import SequenceInfo
from ui.state import EngineState
from ui.tables import Tables


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12), st.booleans()), max_size=40), st.sampled_from((7, 999))
)
def test_table_changes_equal_lists(moves: list[tuple[int, int, bool]], at_once: int) -> None:
    lists: dict[int, list[int]] = {}
    changes, block = [], 0
    for seq, count, grow in moves:
        mine = lists.setdefault(seq, [])
        if grow:
            for _ in range(count):
                changes.append((seq, len(mine), block))
                mine.append(block)
                block += 1
        else:
            keep = len(mine) // 2 if count % 2 else 0
            del mine[keep:]
            changes.append((seq, keep, NONE))
    tables, gone = Tables(), []
    for start in range(0, len(changes), at_once):
        gone += tables.apply(np.array(changes[start : start + at_once], TABLE))
    assert {s: tables.get(s).tolist() for s in tables.seqs} == {s: b for s, b in lists.items() if b}
    assert all(len(held) for _, held in gone)


def test_an_entry_is_replaced_in_place() -> None:
    tables = Tables()
    tables.apply(np.array([(7, i, 100 + i) for i in range(5)], TABLE))
    tables.apply(np.array([(7, 2, 9)], TABLE))
    assert tables.get(7).tolist() == [100, 101, 9, 103, 104]
    assert tables.find(9) == [(7, 2)] and tables.find(102) == []


def test_text_by_token_position() -> None:
    info = SequenceInfo(3, prompt_tokens=10)
    info.pieces = [(text, 0, 1) for text in ("a", "b", "", "cd", "e")]
    info.known = 15
    assert info.text == "abcde"
    assert info.text_between(10, 12) == "ab"
    assert info.text_between(12, 14) == "cd"
    assert info.text_between(0, 10) is None and info.text_between(15, 20) is None
    assert info.text_between(4, 100) == "abcde"
    info.end("finished", "stop", 2, 5, tail="!")
    assert info.text == "abcde!" and info.text_between(14, 15) == "e!"


def test_text_after_a_keyframe_is_known_from_there_on() -> None:
    source, mirror = SyntheticSource(200, 6, 3), Mirror()
    source.advance(40)
    source.poll()
    mirror.apply_all([source.world.ready(), source.world.keyframe()])
    source.advance(20)
    mirror.apply_all(source.poll())
    told = [i for i in mirror.live.sequences.values() if i.one_each_from == 1 and len(i.pieces) > 4]
    assert told
    info = told[0]
    assert info.text_between(info.known - 2, info.known) == "".join(p[0] for p in info.pieces[-2:])
    assert info.text_between(info.prompt_tokens, info.prompt_tokens + 1) is None


def test_blocks_tell_their_story() -> None:
    source, mirror = SyntheticSource(300, 16, 7, fill=1.3), Mirror()
    mirror.apply_all(source.poll())
    kinds, shared, hits = set(), 0, 0
    for _ in range(120):
        source.advance()
        mirror.apply_all(source.poll())
        state = mirror.live
        for block in range(0, 300, 7):
            story = tell(state, block)
            kinds.add(int(state.blocks_state[block]))
            assert f"block {block}" in story.title and story.lines
            if state.refcount[block] > 1:
                shared += "shared by seq" in " ".join(story.lines)
            hits += "was cached by" in story.lines[-1]
            if state.blocks_state[block] == USED:
                seq = int(state.owner[block])
                table = state.table(seq).tolist()
                if block in table:
                    assert story.title == f"block {block} · seq {seq}, logical {table.index(block)}"
                    assert story.seq == seq
    assert kinds == {FREE, CACHED, USED} or kinds == {CACHED, USED}
    assert shared and hits


def test_changed_since_and_before() -> None:
    source, mirror = SyntheticSource(120, 6, 5), Mirror()
    mirror.apply_all(source.poll())
    for _ in range(200):
        was = mirror.live.copy()
        source.advance()
        mirror.apply_all(source.poll())
        now = mirror.live
        differ = np.zeros(120, bool)
        for name in ("blocks_state", "refcount", "filled", "owner"):
            differ |= getattr(was, name) != getattr(now, name)
        assert (now.changed[differ] == now.step).all()
        turned = (was.blocks_state != now.blocks_state) | (was.owner != now.owner)
        assert ((now.since == now.step) == turned).all()
        cached = turned & (was.blocks_state == CACHED)
        assert (now.before[cached] == was.owner[cached]).all()
        assert (now.before[turned & (was.blocks_state == FREE)] == NONE).all()


def test_an_abort_between_steps() -> None:
    source, mirror = SyntheticSource(120, 6, 5), Mirror()
    source.advance(20)
    mirror.apply_all(source.poll())
    live = mirror.live
    seq = live.running[0]
    mirror.apply(
        Between(
            v=1, after=live.step, clock=live.clock + 5, blocks=b"", tables=b"", running=len(live.running) - 1,
            events=[Aborted(seq=seq, number=seq, reason="aborted by the user")],
            waiting=len(live.waiting), used=live.used, cached=live.cached, free=live.free, settings=live.settings,
            budget=live.budget,
        )
    )  # fmt: skip
    assert seq not in live.running and seq not in live.sequences
    assert live.recent[seq].status == "aborted" and live.info(seq) is live.recent[seq]
    assert mirror.history.requests[-1].aborted and mirror.history.requests[-1].reason == "aborted by the user"
    assert mirror.state_at(live.step - 1).sequences[seq].status == "running"


def test_an_unknown_sequence_does_no_harm() -> None:
    state = EngineState(8)
    assert state.table(5).tolist() == [] and state.info(5) is None and state.sharers(3) == []
