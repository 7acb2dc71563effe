"""Whether what the window knows is what the engine's own structures say: a mirror's state beside a keyframe.

A keyframe is read from the pool, the tables and the queues themselves (`engine.keyframe`), never from records, so that
it can judge who followed those.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.records import SEAL, Keyframe, unpack
from ui.state import EngineState


def differences(state: EngineState, frame: Keyframe) -> list[str]:
    """What of `state` isn't as the keyframe says, in words; empty where all of it is."""
    return [*_pool(state, frame), *_tables(state, frame), *_prefixes(state, frame), *_queues(state, frame)]


def _pool(state: EngineState, frame: Keyframe) -> Iterator[str]:
    if state.step != frame.step:
        yield f"step {state.step}, not {frame.step}"
    if state.settings != frame.settings or state.block_size != frame.block_size:
        yield "settings"
    for name, column in (("blocks_state", frame.state), ("refcount", frame.refcount), ("filled", frame.filled),
                         ("owner", frame.owner)):  # fmt: skip
        mine = getattr(state, name)
        theirs = np.frombuffer(column, mine.dtype)
        if len(mine) != len(theirs):
            yield f"{name} of {len(mine)} blocks, not {len(theirs)}"
        elif len(wrong := np.flatnonzero(mine != theirs)):
            yield f"{name} of {len(wrong)} blocks, the first {wrong[0]}: {mine[wrong[0]]}, not {theirs[wrong[0]]}"
    counts = np.bincount(np.frombuffer(frame.state, np.uint8), minlength=3).tolist()
    if [state.free, state.cached, state.used] != counts:
        yield f"free, cached, used {[state.free, state.cached, state.used]}, not {counts}"
    shared = int((np.frombuffer(frame.refcount, "<u2") > 1).sum())
    if state.shared != shared:
        yield f"{state.shared} shared blocks, not {shared}"
    for name in ("owner", "index", "filled"):
        if getattr(state.host, name).tobytes() != getattr(frame, f"host_{name}"):
            yield f"{name} of the host pool"


def _tables(state: EngineState, frame: Keyframe) -> Iterator[str]:
    ends = np.cumsum(np.frombuffer(frame.table_lengths, "<u4"))
    tables = np.split(np.frombuffer(frame.table_blocks, "<u4"), ends[:-1]) if len(ends) else []
    told = dict(zip(np.frombuffer(frame.table_seqs, "<u4").tolist(), tables, strict=True))
    if set(state.table_seqs) != set(told):
        yield f"tables of the sequences {sorted(set(state.table_seqs) ^ set(told))[:8]}"
    for seq, table in told.items():
        if not np.array_equal(state.table(seq), table):
            yield f"the table of sequence {seq}"


def _prefixes(state: EngineState, frame: Keyframe) -> Iterator[str]:
    entries = {block: tuple(entry) for block, entry in enumerate(state.prefixes.entries) if entry is not None}
    seals = zip(unpack(frame.sealed, SEAL).tolist(), frame.sealed_text, strict=True)
    if entries != {block: (*seal, text) for (block, *seal), text in seals}:
        yield "what the prefix cache can find"
    if (state.prefixes.count, len(state.prefixes.entries)) != (len(entries), state.num_blocks):
        yield f"{state.prefixes.count} findable blocks, not {len(entries)}"
    if state.prefixes.use != frame.prefix_use:
        yield f"the prefix cache's {state.prefixes.use}, not {frame.prefix_use}"


def _queues(state: EngineState, frame: Keyframe) -> Iterator[str]:
    if state.running != list(frame.running):
        yield "the running sequences"
    if state.waiting != list(frame.waiting):
        yield "the waiting sequences"
    if list(state.shadows.values()) != frame.shadows:
        yield "requests beside their runs without drafts"
    if sorted(state.sequences) != sorted(one.seq for one in frame.sequences):
        yield "which sequences there are"
        return
    for one in frame.sequences:
        info = state.sequences[one.seq]
        for name in one.__struct_fields__:
            mine = info.text if name == "output" else getattr(info, name)
            if mine != getattr(one, name):
                yield f"{name} of sequence {one.seq}: {str(mine)[:40]}, not {str(getattr(one, name))[:40]}"
