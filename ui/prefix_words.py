"""Is prefix caching working? The answer in a sentence, with the figures that give it. No Qt, no colours."""

from __future__ import annotations

from ui import explain
from ui.state import EngineState


def answer(state: EngineState) -> tuple[str, str]:
    """The headline, and what the cache holds while nobody needs it."""
    return _verdict(state), _held(state)


def requests(state: EngineState) -> str:
    """How many requests got anything from the cache: '3 of 14 requests hit'."""
    use = state.prefixes.use
    return f"{use.hits:,} of {explain.count(use.requests, 'request')} hit" if use.requests else ""


def hit_rate(state: EngineState) -> float | None:
    """Hit tokens ÷ tokens asked for, of the engine's whole session."""
    use = state.prefixes.use
    return use.hit / use.looked_up if use.looked_up else None


def _verdict(state: EngineState) -> str:
    use, settings = state.prefixes.use, state.settings
    share = hit_rate(state)
    found = "" if share is None else f"{use.hit:,} of {use.looked_up:,} tokens asked for were found"
    if settings is not None and not settings.prefix_cache:
        return "Prefix caching is off" + (f"; before, {found}" if found else ": every prompt is computed whole")
    if settings is not None and settings.allocation == "reserved":
        return "Reserved allocation asks the prefix cache for nothing" + (f"; before, {found}" if found else "")
    if share is None:
        return "Prefix caching is on; no prompt was long enough to ask it yet"
    if not use.hit:
        if use.requests == 1:
            return f"Prefix caching is on; the first prompt ({use.looked_up:,} tokens) had nothing to find yet"
        return f"Prefix caching is on; none of {use.requests:,} prompts began as an earlier one did"
    return f"Prefix caching works: {found}"


def _held(state: EngineState) -> str:
    """What stays when requests end: the part that a figure of KV usage leaves out."""
    size = state.block_size
    if not state.cached:
        return "Nothing is cached idle: every full block is in use" if state.prefixes.count else ""
    kept = f"{explain.count(state.cached, 'block')} ({state.cached * size:,} tokens)"
    if not state.running:
        return f"Nothing runs: KV used is {state.used:,}, yet {kept} stay cached"
    return f"Cached, though not counted as used: {kept}"


def missing(state: EngineState) -> tuple[str, str]:
    """Why there is no tree: a headline, and what would bring one."""
    settings = state.settings
    if not state.num_blocks or settings is None:
        return "No pool yet", "Prompts that begin alike share their blocks here once the model is loaded."
    if not settings.prefix_cache:
        return "The prefix cache is off", "Turn 'prefix cache' on, and full blocks can be found by later prompts."
    if settings.allocation == "reserved":
        return (
            "Reserved allocation shares nothing",
            "Each request holds blocks for its longest answer, alone. With allocation 'paged' prompts share.",
        )
    return (
        "No full block yet",
        f"What prompts share appears here, from the first one of more than {state.block_size} tokens on.",
    )
