"""What happened to one block until the moment shown, in sentences, oldest first. No Qt, no colours."""

from __future__ import annotations

import numpy as np

from engine.records import CACHED, FREE
from ui import explain
from ui.block_events import AGAIN, COPIED, EVICTED, FREED, LET_GO, REUSED, SHARED, TAKEN
from ui.block_lives import UNKNOWN, BlockLives
from ui.latency import SECOND
from ui.state import EngineState


def past(lives: BlockLives, state: EngineState, block: int) -> list[str]:
    """Of what the block holds: since when and for whom, what went for it, how often it was got again, since when nobody
    holds it. Of a free one: who let go of it."""
    events = lives.events.of(block, state.step)
    begins = np.flatnonzero(events["kind"] == TAKEN)
    first = int(begins[-1]) if len(begins) else len(events)
    if state.blocks_state[block] == FREE:
        ended = [event for event in events if event["kind"] == FREED]
        if not ended:
            return ["not used since this window watched"] if not lives.events.forgets_before() else []
        return [f"let go of {_ago(ended[-1], state)} by seq {ended[-1]['owner']}, not kept"]
    lines = [_begin(lives, state, block, events, first)]
    if first and len(begins) and events["kind"][first - 1] == EVICTED:
        gone = events[first - 1]
        idle = explain.duration(gone["idle"] / SECOND)
        lines.append(f"evicted what seq {gone['owner']} left in it, unused for {idle}; {_asked(events, gone, state)}")
    later = events[first:]
    got = later[(later["kind"] == REUSED) | (later["kind"] == SHARED)]
    if len(got):
        lines.append(_reused(got, state))
    if state.blocks_state[block] == CACHED:
        left = later[later["kind"] == LET_GO]
        if len(left):
            lines.append(f"cached since {_ago(left[-1], state, '')} · of seq {left[-1]['owner']}")
    return lines


def _begin(lives: BlockLives, state: EngineState, block: int, events: np.ndarray, first: int) -> str:
    if first < len(events):
        copies = events[first:][events[first:]["kind"] == COPIED]
        copied = f", for a copy of block {copies[0]['owner']:,} before writing to it" if len(copies) else ""
        return f"allocated {_ago(events[first], state)} by seq {events[first]['seq']}{copied}"
    if block < len(lives.born) and UNKNOWN < lives.born[block] <= state.step:  # the event has fallen out
        when = {"step": int(lives.born[block]), "clock": int(lives.born_clock[block])}
        return f"allocated {_ago(when, state)} by seq {lives.maker[block]}"
    return "allocated before this window watched"


def _asked(events: np.ndarray, gone: np.void, state: EngineState) -> str:
    """Whether what was evicted was wanted after all."""
    again = events[(events["kind"] == AGAIN) & (events["clock"] - events["idle"] == gone["clock"])]
    return f"asked for again {_ago(again[0], state)} by seq {again[0]['seq']}" if len(again) else "not asked for since"


def _reused(got: np.ndarray, state: EngineState) -> str:
    last = got[-1]
    times = "once" if len(got) == 1 else f"{len(got):,} times, last"
    how = "while in use" if last["kind"] == SHARED else f"after {explain.duration(last['idle'] / SECOND)} unused"
    return f"got again {times} {_ago(last, state)} by seq {last['seq']}, {how}"


def _ago(event, state: EngineState, word: str = "at ") -> str:
    """'at step 812, 40 steps (1.24 s) ago'."""
    step = int(event["step"])
    ago = state.step - step
    when = f"{explain.count(ago, 'step')} ({explain.duration((state.clock - int(event['clock'])) / SECOND)}) ago"
    return f"{word}step {step:,}, {when if ago else 'in this step'}"
