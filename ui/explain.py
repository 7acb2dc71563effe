"""Figures and decisions in words: how a number is written, what a verdict means, whether drafting pays.

Takes plain numbers and gives plain sentences. Knows no Qt, no view and no engine state, so that every sentence
that the window shows can be tested as text.
"""

from __future__ import annotations

import math

from engine.config import AUTO
from engine.formulas import GIB, KIB, MIB, accept_probability, blocks_for
from engine.records import ACCEPTED, BONUS, DISCARDED, NONE, REJECTED, RESAMPLED, Preempted, StepBudget
from ui.payoff import Payoff

NEAR = 0.2  # a step this close to the time aimed at is as long as it should be: chunks are cut to whole grains
EVEN = 0.03  # a ratio this close to 1 is not told apart by step times
SYMBOLS = {ACCEPTED: "✓", REJECTED: "✕", DISCARDED: "–", RESAMPLED: "+", BONUS: "+"}
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
}
CAUSES = {
    "max_batch": "a smaller batch was set",
    "shadow": "others have work",
    "resize": "a smaller pool was set",
    "block_size": "another block size was set",
    "beams": "another beam of its search found no room",
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
    return f"{value:g}" if isinstance(value, float) else str(value)


def change(key: str, old: object, new: object) -> str:
    """'γ 4 → 8', the label of a mark."""
    if key == "engine":
        return "engine started again"
    return f"{SETTINGS.get(key, key)} {setting(key, old)} → {setting(key, new)}"


def budget(found: StepBudget, chunked: bool = True) -> str:
    """How the engine came to a step's token budget: 'auto: 148 tokens, so that a step takes about 75 ms: …'."""
    if not chunked:
        return f"auto: up to {found.tokens:,} tokens, for without chunked prefill a prompt is computed whole"
    each = found.each * found.tokens
    taken, goal = duration((found.fixed + each) / 1e3), duration(found.goal / 1e3)
    sum_ = f"{duration(found.fixed / 1e3)} + {duration(found.each / 1e3)} a token"
    if found.fixed + each > found.goal * (1 + NEAR):
        return f"auto: {found.tokens:,} tokens, though a step then takes about {taken} instead of {goal}: {sum_}"
    if found.fixed + each < found.goal * (1 - NEAR):
        return f"auto: {found.tokens:,} tokens, as more gain nothing; a step takes about {taken}: {sum_}"
    return f"auto: {found.tokens:,} tokens, so that a step takes about {taken}: {sum_}"


def visible(text: str) -> str:
    """A token's text on one line, with its white space made visible."""
    return text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·") if not text.strip() else " ".join(text.split())


def verdict(kind: int, text: str, p: float, q: float, draw: float) -> str:
    """Why a drafted token was kept or not, or where the token that ended the pass comes from."""
    name = f"“{visible(text)}”" if text else "this token"
    if kind == DISCARDED:
        return f"{name} discarded without being examined: a draft before it was rejected"
    if kind == RESAMPLED:
        return f"{name} takes the rejected draft's place: drawn from max(0, p − q), here p = {p:.2f}"
    if kind == BONUS:
        return f"{name} is the bonus: every draft before it was accepted, so one more is drawn from p = {p:.2f}"
    word = "accepted" if kind == ACCEPTED else "rejected"
    if not math.isfinite(draw):
        why = "it is" if kind == ACCEPTED else "it is not"
        return f"{name} {word}: {why} the target's likeliest token (greedy; p = {p:.2f}, q = {q:.2f})"
    chance = accept_probability(p, q) if q > 0 else 1.0
    return f"{name} {word}: accepted with probability min(1, {p:.2f}/{q:.2f}) = {chance:.2f}; drew {draw:.2f}"


def payoff(figures: Payoff) -> tuple[str, str]:
    """Whether drafting pays right now: the headline, and the reasons in one sentence."""
    if figures.state == "off":
        return "Drafting is off", "γ = 0: each pass of the model gives one token per sequence"
    if figures.state == "method_off":
        return "Drafting is off", "the draft method is off: each pass of the model gives one token per sequence"
    if figures.state == "idle":
        return "No decode steps yet", "whether drafting pays is measured while sequences decode"
    if figures.state == "no_matches":
        return (
            "Nothing drafted",
            "no repeated n-gram in these texts, so there is nothing to propose; it costs next to nothing",
        )
    if figures.state == "too_few" or figures.ratio is None:
        return (
            "Measuring…",
            f"{count(figures.passes, 'drafting pass')[:-1] + ('es' if figures.passes != 1 else 's')} so far; "
            "too few to tell whether it pays",
        )
    return _headline(figures), _because(figures)


def _headline(figures: Payoff) -> str:
    assert figures.ratio is not None
    if abs(figures.ratio - 1) < EVEN:
        return f"Even now: {figures.ratio:.2f}×"
    return f"Pays now: {figures.ratio:.2f}×" if figures.ratio > 1 else f"Costs now: {figures.ratio:.2f}×"


def _because(figures: Payoff) -> str:
    parts = []
    if figures.plain:
        cost = (figures.draft + figures.verify) / figures.plain
        parts.append(
            f"a step with drafts takes {cost:.2f} of a plain one and gives {figures.tokens_per_row:.2f} tokens a row"
        )
        share = figures.draft / figures.plain
        parts.append("drafting is free" if share < 0.01 else f"{share:.2f} of that is drafting")
    if figures.break_even is None:
        parts.append("at these times no acceptance would pay")
    elif figures.break_even > 0:
        parts.append(f"break-even at α {figures.break_even:.2f}, now {figures.alpha:.2f}")
    else:
        parts.append("any acceptance pays at these times")
    if figures.plain_from == "derived":
        parts.append("the plain step is derived from a line through recent steps, none ran without drafts")
    return "; ".join(parts)


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
