"""A request beside its run without drafts, in words: how many tokens are the same, and how fast each was. No Qt."""

from __future__ import annotations

from typing import NamedTuple

from engine.records import Pace, ShadowState
from ui.explain import count, rate, visible

EXACT = "float32"  # the form of weights in which outputs must not differ
_WHY_EXACT = "In float32 the two must be equal; please report this."
_WHY = (
    "A pass over several tokens may add its sums in another order than a pass over one; where two tokens are nearly as "
    "likely, either may come. In float32 the two are equal."
)


class Told(NamedTuple):
    """`share`: of the tokens that are compared, 0..1. `token`: of the theme. `speeds`: parts, the most telling
    first."""

    symbol: str
    headline: str
    token: str
    speeds: tuple[str, ...]
    share: float
    story: str


def told(shadow: ShadowState, form: str = "") -> Told:
    """`form`: of the weights."""
    compared = shadow.equal + shadow.different
    share = compared / max(1, shadow.tokens)
    symbol, headline, token = _verdict(shadow, compared)
    story = "The same request, once more without drafts, while nobody else has work."
    if shadow.different:
        story += f" {_WHY_EXACT if form == EXACT else _WHY}"
    if shadow.original_pace.tokens and not shadow.original_pace.alone:
        story += " With drafts it ran beside others, so that its speed is that of its share."
    return Told(symbol, headline, token, _speeds(shadow), share, story)


def _verdict(shadow: ShadowState, compared: int) -> tuple[str, str, str]:
    if shadow.different:
        one, two = (visible(word) or "end" for word in shadow.words)
        more = f" · {shadow.equal:,} of {count(compared, 'token')} equal"
        return "✕", f"differs at token {shadow.first + 1:,}: “{one}” / “{two}”{more}", "rejected"
    if shadow.done and shadow.ended:
        equal = f"{shadow.equal:,} of {count(shadow.tokens, 'token')} equal"
        return "–", f"ended early: {shadow.ended} · {equal}", "warning"
    if shadow.done:
        return "✓", f"{shadow.equal:,} of {count(shadow.tokens, 'token')} equal", "accepted"
    if not compared:
        return "…", "runs without drafts when nobody else has work", "text_dim"
    return "…", f"{compared:,} of {count(shadow.tokens, 'token')}, all equal so far", "text"


def _speeds(shadow: ShadowState) -> tuple[str, ...]:
    one, two = per_second(shadow.original_pace), per_second(shadow.shadow_pace)
    parts = []
    if one is not None:
        beside = "" if shadow.original_pace.alone else " beside others"
        parts.append(f"with drafts {rate(one)} tok/s{beside}" if shadow.drafted else "nothing was drafted")
    if two is not None:
        parts.append(f"without {rate(two)} tok/s")
    if one is not None and two is not None and shadow.drafted and shadow.original_pace.alone:
        parts.append(f"{one / two:.2f}×")
    return tuple(parts)


def mark(shadow: ShadowState) -> str:
    """A few characters for a list: '✓ equal'."""
    if shadow.different:
        return f"✕ differs at {shadow.first + 1:,}"
    if shadow.done:
        return f"– {shadow.equal:,} equal" if shadow.ended else "✓ equal"
    return f"… {shadow.equal:,} equal"


def per_second(pace: Pace) -> float | None:
    """Tokens a second; None where too little was decoded to tell."""
    return pace.tokens / pace.ns * 1e9 if pace.tokens > 1 and pace.ns > 0 else None
