"""The whole state as one record, read from the pool, the tables and the queues themselves.

It never looks at what the step records said, so that a reader who followed them can be judged by it. Only the prefix
cache's words are the log's: the tokens of a block that nobody holds are nowhere else.
"""

from __future__ import annotations

import numpy as np

from engine import records
from engine.config import LiveSettings
from engine.prefix_log import PrefixLog
from engine.records import PROMPT_SHOWN, Keyframe, Memory, ShadowState, StepBudget
from engine.scheduler import Scheduler


def take_keyframe(
    step: int,
    clock: int,
    settings: LiveSettings,
    budget: StepBudget,
    scheduler: Scheduler,
    prefixes: PrefixLog,
    memory: Memory | None,
    shadows: list[ShadowState],
) -> Keyframe:
    """The whole state after `step`, at `clock` (ns, the engine's): time in proportion to the pool and to what the
    sequences hold."""
    pool, running = scheduler.pool, scheduler.running
    waiting = sorted([*scheduler.waiting, *scheduler.unborn, *scheduler.shadows], key=lambda s: s.order)
    # who waits holds nothing, nor does a lane that runs again from its first token
    tables = {s.seq: s.table for s in running if s.table}
    sealed, sealed_text = prefixes.whole()
    return Keyframe(
        v=records.SCHEMA,
        step=step,
        clock=clock,
        block_size=pool.block_size,
        settings=settings,
        budget=budget,
        state=bytes(pool.state),
        refcount=np.array(pool.refcount, dtype="<u2").tobytes(),
        filled=np.array(pool.filled, dtype="<u2").tobytes(),
        owner=np.array(pool.owner, dtype="<u4").tobytes(),
        table_seqs=np.array(list(tables), dtype="<u4").tobytes(),
        table_lengths=np.array([len(table) for table in tables.values()], dtype="<u4").tobytes(),
        table_blocks=b"".join([np.array(table, dtype="<u4").tobytes() for table in tables.values()]),
        sequences=[s.state(s.request.prompt[:PROMPT_SHOWN]) for s in (*running, *waiting)],
        running=[s.seq for s in running],
        waiting=[s.seq for s in waiting],
        host_owner=np.array(scheduler.host.owner, dtype="<u4").tobytes(),
        host_index=np.array(scheduler.host.index, dtype="<u4").tobytes(),
        host_filled=np.array(scheduler.host.filled, dtype="<u2").tobytes(),
        sealed=sealed,
        sealed_text=sealed_text,
        prefix_use=prefixes.use,
        memory=memory,
        shadows=shadows,
    )
