"""Figures and decisions in words: how a number is written, what a setting is called, what became of a sequence.

Takes plain numbers and gives plain sentences. Knows no Qt, no view and no engine state, so that every sentence
that the window shows can be tested as text.
"""

from __future__ import annotations

import math

from engine.config import AUTO
from engine.formulas import GIB, KIB, MIB, blocks_for
from engine.records import NONE, Compiled, Preempted, StepBudget

NEAR = 0.2  # a step this close to the time aimed at is as long as it should be: chunks are cut to whole grains
BOUNDS = {
    "no_work": "nothing",
    "batch_cap": "batch cap",
    "token_budget": "token budget",
    "kv_blocks": "KV blocks",
    "static": "static batch",
}
SETTINGS = {
    "max_batch": "batch",
    "max_context": "context",
    "kv_blocks": "KV blocks",
    "token_budget": "budget",
    "max_gap": "gap",
    "draft_length": "γ",
    "draft_method": "draft",
    "chunked_prefill": "chunked prefill",
    "prefix_cache": "prefix cache",
    "watermark": "watermark",
    "block_size": "block size",
    "admission": "admission",
    "allocation": "allocation",
    "batching": "batching",
    "preemption": "preemption",
    "swap_blocks": "swap blocks",
    "temperature": "temperature",
    "top_k": "top-k",
    "top_p": "top-p",
    "min_p": "min-p",
    "draft_policy": "γ",
    "draft_sampling": "drafts",
    "draft_model": "draft model",
    "draft_layers": "draft layers",
    "ngram_min": "match at least",
    "ngram_max": "match at most",
    "simulated_acceptance": "simulated α",
    "repetition_penalty": "repetition",
    "presence_penalty": "presence",
    "frequency_penalty": "frequency",
}
CAUSES = {
    "max_batch": "a smaller batch was set",
    "resize": "a smaller pool was set",
    "block_size": "another block size was set",
    "beams": "another beam of its search found no room",
    "shadow": "others have work",
}
REASONS = {
    "stop": "ended by itself",
    "length": "reached its token limit",
    "context": "reached the context limit",
    "aborted": "aborted",
    "beams": "its search is over",
}


def size(count: float) -> str:
    """Bytes as MiB or GiB: '269 MiB', '1.42 GiB', '22.5 KiB' under a MiB."""
    if not math.isfinite(count):
        return "–"
    sign, count = ("−" if count < 0 else ""), abs(count)
    if count >= GIB:
        return f"{sign}{_digits(count / GIB)} GiB"
    if count >= MIB or count == 0:
        return f"{sign}{_digits(count / MIB)} MiB"
    return f"{sign}{_digits(count / KIB)} KiB"


def duration(seconds: float | None) -> str:
    """A time at three figures: '0.42 ms', '84 ms', '1.24 s', '3 min 20 s'."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 1:
        return f"{_digits(seconds * 1e3)} ms"
    if seconds < 100:
        return f"{_digits(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def rate(per_second: float | None) -> str:
    return "–" if per_second is None or not math.isfinite(per_second) else _digits(per_second)


def count(number: float, noun: str) -> str:
    """'1 token', '2,048 tokens'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def setting(key: str, value: object) -> str:
    """A setting's value as a mark's label shows it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if key == "token_budget" and value == AUTO:
        return "auto"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, tuple):
        return ", ".join(f"{each:g}" for each in value) or "off"
    if key == "draft_model":
        return str(value).rstrip("/").rpartition("/")[2] or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def change(key: str, old: object, new: object) -> str:
    """'γ 4 → 8', the label of a mark."""
    if key == "engine":
        return "engine started again"
    if key == "compiled":
        return str(new)
    return f"{SETTINGS.get(key, key)} {setting(key, old)} → {setting(key, new)}"


def compiled(told: Compiled) -> str:
    """'compiled the kernel verify, 2.3 s', of what was needed for the first time."""
    names = ", ".join(told.what[:3]) + (f" and {len(told.what) - 3} more" if len(told.what) > 3 else "")
    return f"compiled {names}" + (f", {duration(told.ns / 1e9)}" if told.ns else "")


def budget(found: StepBudget, chunked: bool = True) -> str:
    """How the engine came to a step's token budget: 'auto: 148 tokens, so that a step takes about 75 ms: …'."""
    if not chunked:
        return f"auto: up to {count(found.tokens, 'token')}, for without chunked prefill a prompt is computed whole"
    each = found.each * found.tokens
    taken, goal = duration((found.fixed + each) / 1e3), duration(found.goal / 1e3)
    sum_ = f"{duration(found.fixed / 1e3)} + {duration(found.each / 1e3)} a token"
    if found.fixed + each > found.goal * (1 + NEAR):
        return f"auto: {count(found.tokens, 'token')}, though a step then takes about {taken} instead of {goal}: {sum_}"
    if found.fixed + each < found.goal * (1 - NEAR):
        return f"auto: {count(found.tokens, 'token')}, as more gain nothing; a step takes about {taken}: {sum_}"
    return f"auto: {count(found.tokens, 'token')}, so that a step takes about {taken}: {sum_}"


def visible(text: str) -> str:
    """A token's text on one line, with its white space made visible."""
    return text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·") if not text.strip() else " ".join(text.split())


def _digits(value: float) -> str:
    """Three figures, without the noise of more."""
    if value >= 99.95:
        return f"{value:,.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if value else "0"


def preempted(lost: int, swapped: int) -> str:
    """What became of a preempted sequence, in few words: moved to the host, or to be computed again."""
    return f"on the host {swapped:,} tok" if swapped else f"preempted ↺ {lost:,} tok"


def fate(event: Preempted, block_size: int) -> str:
    """A preemption in a sentence: whose need it was, and what became of what was computed."""
    if event.by != NONE:
        why = f"seq {event.by} needed {count(event.needed, 'block')}" if event.needed else f"for seq {event.by}"
    else:
        why = CAUSES.get(event.cause, event.cause)
    parts = [why]
    if event.swapped:
        parts.append(f"moved to the host: {count(blocks_for(event.swapped, block_size), 'block')}, {size(event.bytes)}")
    if event.lost:
        parts.append(f"{count(event.lost, 'token')} to compute again")
    return " · ".join([*parts, *([event.note] if event.note else [])])
