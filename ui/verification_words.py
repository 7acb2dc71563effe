"""A verification in words: each stage as a sentence with its numbers, and how the numbers are written. No Qt."""

from __future__ import annotations

from dataclasses import dataclass

from engine.formulas import accept_probability
from engine.records import ACCEPTED, BONUS, DISCARDED, Examined, Verification
from ui import explain
from ui.verification import Kind, Told, Walk

METHODS = {
    "ngram": "n-gram lookup",
    "suffix": "suffix lookup",
    "mixed": "the mixed drafter",
    "head": "the trained head",
    "model": "the draft model",
    "layers": "the target's first layers",
    "bits": "the target in fewer bits",
}


def number(p: float, digits: int = 2) -> str:
    """A probability in a few characters."""
    rounding = 0.5 * 10**-digits
    if 0 < p < rounding:
        return f"{p:.3f}" if p >= 0.0005 else "<.001"
    if 1 - rounding <= p < 1:  # nearly certain isn't certain
        return f"{p:.3f}" if p < 0.9995 else ">.999"
    return f"{p:.{digits}f}"


def figures(p: float) -> str:
    """A probability to reckon with: two figures of it, or more."""
    if 0.995 <= p < 1:
        return f"{p:.4f}" if p < 0.99995 else ">0.9999"
    return f"{p:.2f}" if p >= 0.0995 or not p else f"{p:#.2g}"


def quoted(text: str) -> str:
    return f"“{explain.visible(text) or '∅'}”"


def distribution(told: Verification) -> str:
    """What was done to the model's own distribution before it decided."""
    own = told.sampling
    parts = [] if told.greedy else [f"temperature {own.temperature:g}"]
    if not told.greedy:
        parts += [f"top-k {own.top_k}"] if own.top_k else []
        parts += [f"top-p {own.top_p:g}"] if own.top_p is not None and own.top_p < 1 else []
        parts += [f"min-p {own.min_p:g}"] if own.min_p else []
    if own.presence_penalty or own.frequency_penalty or own.repetition_penalty not in (None, 1.0):
        parts.append("penalties")
    after = "after " + ", ".join(parts) if parts else ""
    return " ".join(["the model's own at temperature 1", after]).strip() if told.greedy else after


def equals(p: float, digits: int = 2) -> str:
    """'= 0.60', or '> .999' where no more figures are shown."""
    told = number(p, digits)
    return f"{told[0]} {told[1:]}" if told[0] in "<>" else f"= {told}"


def apart(a: float, b: float) -> int:
    """Digits at which two numbers look as different as they are."""
    return next((digits for digits in (2, 3, 4) if f"{a:.{digits}f}" != f"{b:.{digits}f}"), 5)


def chance(told: Told, place: int) -> float:
    """How likely the drafted token at a place of the verification was to be accepted: min(1, p/q), or the rate set."""
    if told.simulated:
        return told.simulated[min(place, len(told.simulated) - 1)]
    one = told.verification.positions[place]
    return accept_probability(one.p, one.q) if one.q > 0 else 1.0


@dataclass(frozen=True)
class Words:
    """`line` says what was done with its numbers, `outcome` what it came to, `note` what else is to be known."""

    line: str
    outcome: str
    note: str = ""


def words(walk: Walk) -> Words:
    """Of the stage at which the walk stands."""
    told, stage = walk.told, walk.stage
    if stage.kind is Kind.DRAFT:
        return _draft(told)
    if stage.kind is Kind.COMMIT:
        return _output(told)
    one = told.verification.positions[stage.place]
    if stage.kind is Kind.TEST:
        return _test(told, one, stage.place)
    drawn = told.last
    if told.verification.greedy:
        if stage.kind is Kind.BONUS:
            return Words("greedy: every draft was the likeliest, so the next likeliest token comes on top",
                         quoted(drawn.text), "no draw is needed")  # fmt: skip
        return Words("greedy: the likeliest token takes the rejected one's place", quoted(drawn.text),
                     "no draw is needed, and nothing is left over to draw from")  # fmt: skip
    drew = f"drew {number(drawn.draw or 0.0)}"
    if stage.kind is Kind.BONUS:
        return Words(f"every draft accepted: one more token is drawn from p; {drew}", quoted(drawn.text),
                     "the pass had computed this p anyway: the bonus costs nothing")  # fmt: skip
    divisor = "1.00" if one.rejection >= 0.995 else figures(one.rejection)
    return Words(
        f"rejected: draw from what p has over q, max(0, p − q) ÷ {divisor}; {drew}",
        quoted(drawn.text),
        "accepted or resampled, each token comes out with exactly the probability p"
        if not told.simulated
        else "while acceptance is simulated, tokens don't come out with the probability p",
    )


def _draft(told: Told) -> Words:
    count = explain.count(len(told.drafted), "token")
    who = METHODS.get(told.method, told.method)
    if told.verification.certain:
        return Words(f"{who} proposes what it is certain of: q = 1, and 0 for every other token", f"{count} drafted")
    return Words(f"{who} draws each token from its own distribution q", f"{count} drafted")


def _test(told: Told, one: Examined, place: int) -> Words:
    accepted = one.verdict == ACCEPTED
    outcome = "accepted" if accepted else "rejected"
    odds, draw = chance(told, place), one.draw or 0.0
    digits = apart(odds, draw)
    drew = f"; drew {number(draw, digits)}" if one.draw is not None else ""
    if told.simulated:
        line = f"simulated: accepted at the rate set for it, {number(odds, digits)}, whatever p and q are{drew}"
        return Words(line, outcome, "the text means nothing while acceptance is simulated")
    if told.verification.greedy:
        best = one.candidates[0]
        why = "it is" if accepted else f"{quoted(best.text)} is likelier"
        return Words(f"greedy: accepted if the draft is the likeliest; {why}", outcome, "no draw is needed")
    ratio = f"{figures(one.p)}/{figures(one.q)}"
    line = f"accept with probability min(1, {ratio}) {equals(odds, digits)}{drew}"
    return Words(line, outcome, "p ≥ q: always accepted" if odds >= 1 else "")


def _output(told: Told) -> Words:
    more = "1 bonus" if told.ending.verdict == BONUS else "1 in place of the rejected one"
    came = f"{told.accepted} accepted + {more}" if told.accepted else f"none accepted, {more}"
    unseen = sum(one.verdict == DISCARDED for one in told.verification.positions)
    note = "without drafts it would have been 1" if told.accepted else "as many as without drafts"
    if unseen:
        note += f"; {explain.count(unseen, 'draft')} never examined, as what they continued is gone"
    if told.ended:
        why = explain.REASONS.get(told.ended, told.ended)
        note = f"the answer {why} here; {len(told.kept)} of {told.accepted + 1} are kept"
    return Words(f"one pass of the model: {came}", explain.count(len(told.kept), "token"), note)
