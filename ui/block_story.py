"""Everything that is known of one block, in sentences. No Qt, no colours."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.records import CACHED, FREE, NONE
from ui.block_lives import BlockLives
from ui.block_past import past
from ui.prefixes import Sealed
from ui.sequences import SequenceInfo
from ui.state import EngineState

NAMED_SHARERS = 4
_MOMENTS = ("taken", "hit", "copied on write")


@dataclass(slots=True)
class Story:
    """`text`: what the block's tokens say, "" where that isn't known; its place is after the first `head` lines, before
    what happened to the block. `seq`: whose block it is, None for nobody's."""

    title: str
    lines: list[str] = field(default_factory=list)
    text: str = ""
    seq: int | None = None
    head: int = 0


def tell(state: EngineState, block: int, lives: BlockLives | None = None) -> Story:
    """The whole story of a block at that moment; its past from `lives`, or as far as the state itself knows it."""
    kind, owner = int(state.blocks_state[block]), int(state.owner[block])
    seq = None if owner == NONE else owner
    if kind == FREE:
        story = Story(f"block {block:,} · free")
        story.lines.append("holds nothing")
        story.head = len(story.lines)
        story.lines += _past(state, block, lives) or [_since(state, block, "free")]
    elif kind == CACHED:
        story = Story(f"block {block:,} · cached", seq=seq)
        story.lines.append(f"{_fill(state, block)} · kept for prefix hits until a row needs the block")
        entry = state.prefixes.get(block)
        if entry is not None:
            _found(story, state, entry)
        by = "" if seq is None else f" · of seq {seq}"
        story.head = len(story.lines)
        story.lines += _past(state, block, lives) or [_since(state, block, "cached") + by]
    else:
        story = _used(state, block, seq, lives)
    return story


def _past(state: EngineState, block: int, lives: BlockLives | None) -> list[str]:
    return [] if lives is None else past(lives, state, block)


def _used(state: EngineState, block: int, owner: int | None, lives: BlockLives | None) -> Story:
    sharers = state.sharers(block)
    mine = [index for seq, index in sharers if seq == owner] or [index for _, index in sharers[:1]]
    where = f", logical {mine[0]:,}" if mine else ""
    whose = "used" if owner is None else f"seq {owner}{where}"
    story = Story(f"block {block:,} · {whose}", seq=owner)
    refcount = int(state.refcount[block])
    story.lines.append(f"{_fill(state, block)} · refcount {refcount}")
    if refcount > 1:
        names = ", ".join(f"seq {seq}" for seq, _ in sharers[:NAMED_SHARERS])
        more = f" and {len(sharers) - NAMED_SHARERS} more" if len(sharers) > NAMED_SHARERS else ""
        story.lines.append(f"shared by {names}{more}")
    info = None if owner is None else state.info(owner)
    if info is None and sharers:
        info = state.info(sharers[0][0])
    if info is not None and mine:
        _tokens(story, state, info, mine[0], int(state.filled[block]))
    if (entry := state.prefixes.get(block)) is not None:
        story.text = entry.text
    if (copied := int(state.copied[block])) and copied >= int(state.since[block]):
        source = int(state.source[block])
        story.lines.append(_since(state, block, "copied on write", copied) + f" · from block {source:,}")
    story.head = len(story.lines)
    if told := _past(state, block, lives):
        story.lines += told
        return story
    before = int(state.before[block])
    hit = int(state.hit[block])
    if hit:
        story.lines.append(_since(state, block, "hit", hit))
    was = "" if before == NONE else " · a hit on its own" if before == owner else f" · was cached by seq {before}"
    story.lines.append(_since(state, block, "taken") + was)
    return story


def _tokens(story: Story, state: EngineState, info: SequenceInfo, index: int, filled: int) -> None:
    """Which tokens of the sequence the block holds, and their text where it is known."""
    low = index * state.block_size
    high = low + filled
    if high <= low:
        return
    if low < info.prompt_tokens:
        end = min(high, info.prompt_tokens)
        story.lines.append(f"prompt tokens {low + 1:,}–{end:,} of {info.prompt_tokens:,}")
    text = info.text_between(max(low, info.prompt_tokens), high)
    if text:
        story.text = text


def _found(story: Story, state: EngineState, entry: Sealed) -> None:
    """A block that nobody holds: what is known of it is what a prompt would find."""
    low = entry.index * state.block_size
    story.lines.append(f"tokens {low + 1:,}–{low + state.block_size:,} of prompts that begin as seq {entry.seq} did")
    story.text = entry.text


def _fill(state: EngineState, block: int) -> str:
    return f"{int(state.filled[block])} of {state.block_size} tokens"


def _since(state: EngineState, block: int, what: str, step: int = -1) -> str:
    step = int(state.since[block]) if step < 0 else step
    if not step:
        return f"{what} since before this window watched"
    ago = state.step - step
    when = "in this step" if ago == 0 else "1 step ago" if ago == 1 else f"{ago:,} steps ago"
    return f"{what} at step {step:,}, {when}" if what in _MOMENTS else f"{what} since step {step:,}, {when}"
