"""Whether what is shown was simulated: by a cost model in the place of the model, or with drafts accepted at given
rates, so that text and figures are a what-if. No Qt."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config import LiveSettings
from engine.records import Memory, Ready
from ui import explain
from ui.breakdown import Breakdown, Part, kv_parts
from ui.contracts import Provenance
from ui.history import Mark
from ui.latency import FinishedRequest
from ui.sequences import SequenceInfo
from ui.state import EngineState

KEY = "simulated_acceptance"
MEANING = (
    "Simulated: drafts are accepted at a given rate, whatever they are. The text is meaningless, and figures say what "
    "such a draft would bring."
)


SOURCE_MEANING = (
    "Simulated: a cost model of the device stands in for the model's passes. Scheduler, KV pool, tables and the "
    "bookkeeping of drafts are real; times and acceptance are computed, and the text is meaningless."
)
# What only a model that runs can tell, said where somebody looks for it.
NO_VERIFICATION = "A simulated engine has no probabilities to walk through"
WHY_NO_VERIFICATION = (
    "Its drafts are accepted at drawn rates: there is no p, no q and no leftover. Start without --simulate to step "
    "through a real verification."
)
NO_CHECK = "A simulated engine has no text to compare: start without --simulate to check an output"
NO_BEAMS = "A simulated engine has no probabilities to search by: it serves samples, not beams."
PARTS = "bytes that the formulas give for the simulated device; this machine holds none of them"


def title(provenance: Provenance) -> str:
    """Of the window: what is on a picture of it."""
    return "Servescope: SIMULATED" if provenance == "simulated" else "Servescope"


def engine(ready: Ready | None) -> bool:
    """Whether a simulated engine runs, by its own word."""
    return ready is not None and ready.config.simulation is not None


def memory(told: Memory, used: int, cached: int, free: int) -> Breakdown:
    """What the simulated device would hold, by formula."""
    blocks = kv_parts(told.kv_pool, used, cached, free)
    counts = (used, cached, free)
    parts = [
        Part("weights", "weights", told.weights, "parameters × bytes of each"),
        *(
            Part(token, f"KV {name}", size, explain.count(number, "block"))
            for token, name, size, number in zip(
                ("kv_used", "kv_cached", "kv_free"), ("used", "cached", "free"), blocks, counts, strict=True
            )
        ),
        Part("host_pool", "host pool", told.host_pool, "on the host, by the formula"),
        Part("baseline", "CUDA context", told.baseline, "about what CUDA itself takes", "context"),
    ]
    parts = [part for part in parts if part.bytes]
    return Breakdown(PARTS, tuple(parts), sum(part.bytes for part in parts))


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


def warning(
    entry: SequenceInfo | FinishedRequest | None,
    marks: Sequence[Mark],
    now: LiveSettings | None,
    provenance: Provenance = "measured",
) -> str:
    """What has to be said above a text of which some was made so; "" for nothing."""
    if entry is None:
        return ""
    if provenance == "simulated":
        return "simulated: no model runs, this text is meaningless"
    if isinstance(entry, SequenceInfo):
        steps = [step for _, _, step in entry.pieces]
        first, last = (steps[0], steps[-1]) if steps else (1, 0)
    else:
        # where its first token came is kept no more: at least one came with each step
        first, last = entry.finish_step - entry.output_tokens, entry.finish_step
    return "simulated acceptance: this text is meaningless" if during(marks, now, first, last) else ""
