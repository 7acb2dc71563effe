"""Speculation in words: what a verdict means, whether drafting pays and why, what is wrong with a draft.

Takes plain numbers and gives plain sentences, so that every one that the window shows can be tested as text. No Qt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from numpy.typing import NDArray

from engine.config import LiveSettings
from engine.formulas import accept_probability
from engine.records import ACCEPTED, BONUS, DISCARDED, REJECTED, RESAMPLED, Ack
from ui.explain import count, duration, visible
from ui.payoff import MANY, Payoff, Verified

EVEN = 0.03  # a ratio this close to 1 is not told apart by step times
ALIKE = 0.02  # measured tokens per pass this close to the formula's need no explanation
SYMBOLS = {ACCEPTED: "✓", REJECTED: "✕", DISCARDED: "–", RESAMPLED: "→", BONUS: "+"}
SIMULATED = "Simulated acceptance"
METHODS = {
    "off": "off",
    "ngram": "n-gram",
    "suffix": "suffix",
    "head": "trained head",
    "mixed": "mixed",
    "model": "draft model",
    "layers": "first layers",
    "bits": "fewer bits",
}
REMEDIES = {
    "ngram": "n-grams match in text that repeats itself: code, lists, quotations; for chat take a trained head",
    "suffix": "it matches what repeats this text or past outputs; for chat take a trained head",
    "head": "it was trained for another model or other text; take n-gram or suffix, or set γ to 0",
    "model": "take a draft model of the same family, or n-gram; γ 0 costs nothing",
    "layers": "raise the number of layers, or take n-gram; γ 0 costs nothing",
}
REMEDY = "take another draft method; γ 0 costs nothing"
OFF = {
    "off": "γ is 0: raise the draft length to see tokens drafted and verified here",
    "method_off": "the draft method is off: choose one to see tokens drafted and verified here",
    "idle": "send a prompt: passes appear here as soon as a sequence decodes",
    "resting": "adaptive γ drafts nothing now, because it would not pay; it tries again by itself",
    "no_matches": "nothing matched yet; text that repeats itself gives drafts to verify",
}


def method(settings: LiveSettings, layers: int = 0) -> str:
    """The name of the draft in force: 'n-gram', 'first 7 layers'. `layers`: those of the target."""
    if settings.draft_method == "layers":
        kept = settings.draft_layers or max(1, layers // 4)
        return f"first {count(kept, 'layer')}" if settings.draft_layers or layers else "first layers"
    return METHODS.get(settings.draft_method, settings.draft_method)


def drafting(settings: LiveSettings, gamma: int, layers: int = 0) -> str:
    """'n-gram · γ 4', 'trained head · γ ≤ 8' where it looks after itself, 'drafts off'."""
    if gamma == 0 or settings.draft_method == "off":
        return "drafts off"
    return f"{method(settings, layers)} · γ {'≤ ' if settings.draft_policy == 'adaptive' else ''}{gamma}"


# --- one token ---


def verdict(kind: int, text: str, p: float, q: float, draw: float, chosen: str = "", simulated: bool = False) -> str:
    """Why a drafted token was kept or not, or where the token that ended the pass comes from. `chosen`: what took a
    rejected one's place."""
    name = _quoted(text)
    if kind == DISCARDED:
        return f"{name} discarded without being examined: a draft before it was rejected"
    greedy = not math.isfinite(draw)
    sure = f" (p = {p:.2f})" if 0 < p < 1 else ""  # at temperature 0 all of it is on one token, which says nothing
    if simulated and kind in (ACCEPTED, REJECTED):
        return f"{name} {_WORD[kind]}: simulated, at the rate set for its position, whatever the target thinks of it"
    if kind == RESAMPLED:
        why = f"the target's own choice (greedy){sure}" if greedy else f"drawn from max(0, p − q), here p = {p:.2f}"
        return f"{name} takes the rejected draft's place: {why}"
    if kind == BONUS:
        why = f"the target's own choice (greedy){sure}" if greedy else f"drawn from p = {p:.2f}"
        return f"{name} is the bonus: every draft before it was accepted, so one more comes free, {why}"
    if greedy and kind == ACCEPTED:
        return f"{name} accepted: greedy: the target's own choice was {name} too{sure}"
    if greedy:
        other = _quoted(chosen) if chosen else "another token"
        return f"{name} rejected: greedy: the target's own choice was {other}, not {name}{sure}"
    chance = accept_probability(p, q) if q > 0 else 1.0
    return f"{name} {_WORD[kind]}: accepted with probability min(1, {p:.2f}/{q:.2f}) = {chance:.2f}; drew {draw:.2f}"


_WORD = {ACCEPTED: "accepted", REJECTED: "rejected"}


def _quoted(text: str) -> str:
    return f"“{visible(text)}”" if text else "this token"


# --- does it pay ---


def payoff(figures: Payoff, simulated: bool = False) -> tuple[str, str]:
    """Whether drafting pays right now: the headline, and the reasons in clauses, what matters most first."""
    if figures.state == "off":
        return "Drafting is off", "γ = 0: each pass of the model gives one token per sequence; raise the draft length"
    if figures.state == "method_off":
        told = "the draft method is off: each pass of the model gives one token per sequence; choose a method"
        return "Drafting is off", told
    if figures.state == "idle":
        return "No decode steps yet", "whether drafting pays is measured while sequences decode; send a prompt"
    if figures.state == "resting":
        return "Not drafting now", "adaptive γ: by what was measured, drafts would cost more than they give"
    if figures.state == "no_matches":
        return (
            "Nothing drafted",
            f"{count(figures.steps, 'step')} in which nothing matched, so there was nothing to propose; "
            "it costs next to nothing",
        )
    if figures.state == "too_few" or figures.ratio is None:
        return (
            "Measuring…",
            f"{passes(figures.passes)} so far; too few to tell whether it pays"
            if figures.passes < MANY
            else "no step without drafts to compare with; Measure makes some",
        )
    return _headline(figures.ratio, simulated), "; ".join(_because(figures))


def passes(number: int) -> str:
    return f"{number:,} drafting pass{'' if number == 1 else 'es'}"


def _headline(ratio: float, simulated: bool) -> str:
    if simulated:
        return f"Simulated: {ratio:.2f}×"
    if abs(ratio - 1) < EVEN:
        return f"Even now: {ratio:.2f}×"
    return f"Pays now: {ratio:.2f}×" if ratio > 1 else f"Costs now: {ratio:.2f}×"


def _because(figures: Payoff) -> list[str]:
    parts = []
    if figures.plain:
        batch, pass_tokens = round(figures.batch), round(figures.pass_tokens)
        parts.append(
            f"batch is {batch}, a pass over {count(pass_tokens, 'token')} takes "
            f"{figures.verify / figures.plain:.1f} times a pass over {batch}"
        )
        had = f", {figures.share:.0%} of rows had drafts" if figures.share < 0.95 else ""
        parts.append(f"a row gets {figures.tokens_per_row:.2f} tokens a step{had}")
        cost = figures.draft / figures.plain
        parts.append("drafting is free" if cost < 0.01 else f"drafting takes {cost:.2f} of a plain step")
    if figures.formula is not None:
        parts.append(f"the formula says {figures.formula:.2f}×")
    if figures.break_even is None:
        parts.append("at these times no acceptance would pay")
    elif figures.break_even > 0:
        parts.append(f"break-even at α {figures.break_even:.2f}, now {figures.alpha:.2f}")
    else:
        parts.append("any acceptance pays at these times")
    if figures.plain_from == "derived":
        parts.append("the plain step is derived from a line through recent steps: Measure runs some without drafts")
    return parts


def formula_story(figures: Payoff) -> str:
    """The formula's speed-up with its numbers, and what it leaves out."""
    if figures.formula is None:
        return ""
    accepted = figures.formula * (figures.draft + figures.verify) / figures.plain
    told = (
        f"(E[accepted] + 1)·T_p / (γ·T_q + T_v(γ + 1)) = {accepted:.2f} × {duration(figures.plain / 1e9)} / "
        f"({duration(figures.draft / 1e9)} + {duration(figures.verify / 1e9)}) = {figures.formula:.2f}"
    )
    if figures.share < 0.95:
        told += f"; it takes every row for one with drafts, and {figures.share:.0%} of them had some"
    return told


def per_pass(figures: Payoff, verified: Verified) -> str:
    """Why tokens per pass are what they are and not what the formula says: one sentence."""
    off = figures.tokens_per_pass / figures.expected - 1
    if abs(off) < ALIKE:
        return f"As the formula says: acceptance is near {_share(figures.alpha)} at every position"
    told, alpha = positions(verified.examined, verified.accepted), _share(figures.alpha)
    why = f"acceptance isn't independent: by position it is {told}, the formula takes {alpha} throughout"
    # where drafts differ in length, long ones are those that were more likely to fit
    if abs(figures.draft_length - round(figures.draft_length)) > 0.05:
        why += f", and {figures.draft_length:.1f} tokens for every draft"
    return f"{'More' if off > 0 else 'Fewer'} than the formula says: {why}"


def positions(examined: NDArray, accepted: NDArray, most: int = 6) -> str:
    """'.68 .80 .82 .90'."""
    known = [_share(a / e) for e, a in zip(examined.tolist(), accepted.tolist(), strict=True) if e]
    return " ".join(known[:most]) + (" …" if len(known) > most else "")


def _share(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")


# --- what is wrong ---


def trouble(
    settings: LiveSettings, figures: Payoff, refusal: Ack | None = None, absent: Mapping[str, str] | None = None,
    asked: str = "",
) -> tuple[str, str, str] | None:
    """What must be said loudly: headline, remedy, and the token of its colour. A draft that was refused, that the
    engine was started with and hasn't, or that never fits. `absent`: methods that can't be had; `asked`: the one the
    engine was started with."""
    if refusal is not None:
        return "Draft refused", refusal.message, "danger"
    why = (absent or {}).get(asked)
    if why is not None and settings.draft_method != asked:
        return f"No {METHODS.get(asked, asked)} here", why, "danger"
    name = METHODS.get(settings.draft_method, settings.draft_method)
    remedy = REMEDIES.get(settings.draft_method, REMEDY)
    if figures.state == "no_matches" and figures.steps >= MANY:
        told = f"nothing proposed in {count(figures.steps, 'step')}; {remedy}"
        return f"The {name} draft never matches", told, "warning"
    if figures.hopeless:
        told = f"α is {figures.alpha:.2f} over {passes(figures.passes)}"
        return f"The {name} draft never fits", f"{told}: every pass verifies rejected work; {remedy}", "warning"
    return None


def what_if(settings: LiveSettings, runner: str = "") -> str:
    """What simulated acceptance means, with its rates. `runner`: as in `Ready`."""
    rates = " ".join(_share(rate) for rate in settings.simulated_acceptance)
    told = f"drafts are kept at {rates} by position, right or wrong: the text is meaningless, the times are real"
    if runner == "cuda":
        told += ", with one cost that no other draft has here: logits are copied to the host, which decides"
    return told
