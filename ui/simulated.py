"""Whether what is shown was simulated: drafts accepted at given rates, so that text and figures are a what-if. No
Qt."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config import LiveSettings
from ui.history import Mark
from ui.latency import FinishedRequest
from ui.sequences import SequenceInfo
from ui.state import EngineState

KEY = "simulated_acceptance"
MEANING = (
    "Simulated: drafts are accepted at a given rate, whatever they are. The text is meaningless, and figures say what "
    "such a draft would bring."
)


def rates(state: EngineState) -> tuple[float, ...]:
    """In force at the moment shown; empty for none."""
    return state.settings.simulated_acceptance if state.settings is not None else ()


def words(given: tuple[float, ...]) -> str:
    """'0.8', or '0.9, 0.7 …' by position."""
    return ", ".join(f"{rate:g}" for rate in given) + (" …" if len(given) > 1 else "")


def during(marks: Sequence[Mark], now: LiveSettings | None, first: int, last: int) -> bool:
    """Whether it was in force in any of the steps first..last. `now`: settings after the last of the marks."""
    after, end = now.simulated_acceptance if now is not None else (), last
    for mark in reversed(marks):
        if mark.key != KEY:
            continue
        if after and max(mark.step, first) <= end:
            return True
        if mark.step <= first:
            return False
        after, end = mark.old, min(last, mark.step - 1)
    return bool(after) and first <= end


def warning(entry: SequenceInfo | FinishedRequest | None, marks: Sequence[Mark], now: LiveSettings | None) -> str:
    """What has to be said above a text of which some was made so; "" for nothing."""
    if entry is None:
        return ""
    if isinstance(entry, SequenceInfo):
        steps = [step for _, _, step in entry.pieces]
        first, last = (steps[0], steps[-1]) if steps else (1, 0)
    else:
        # where its first token came is kept no more: at least one came with each step
        first, last = entry.finish_step - entry.output_tokens, entry.finish_step
    return "simulated acceptance: this text is meaningless" if during(marks, now, first, last) else ""
