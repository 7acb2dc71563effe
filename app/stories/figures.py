"""The figures that captions and verdicts may name, and the panels that a story may draw: each defined here once.

Everything is computed from a phase as it was measured; what did not happen is NaN and reads as a dash.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from app.headless import Answer
from app.stories.measure import SECOND, Measured
from app.stories.words import DASH, Format
from engine.formulas import Waste
from ui import explain
from ui.contracts import Curve, StoryPanel

NAN = float("nan")


def _count(value: float) -> str:
    return DASH if math.isnan(value) else f"{value:,.0f}"


def _share(value: float) -> str:
    return DASH if math.isnan(value) else f"{value:.0%}" if value >= 0.1 or not value else f"{value:.1%}"


def _decimal(value: float) -> str:
    return DASH if math.isnan(value) else f"{value:.2f}"


def _seconds(start: int, end: int) -> float:
    return (end - start) / SECOND if start and end else NAN


def _mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else NAN


def _most(values: list[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=NAN)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else NAN


def _waits(answers: list[Answer]) -> list[float]:
    return [_seconds(answer.arrival, answer.first_token) for answer in answers]


def _total(field: str) -> Callable[[Measured, list[Answer]], float]:
    return lambda phase, answers: sum(getattr(answer, field) for answer in answers)


def _waste(part: str) -> Callable[[Measured, list[Answer]], float]:
    def found(phase: Measured, answers: list[Answer]) -> float:
        total: Waste = phase.waste()
        return _ratio(getattr(total, part), total.held)

    return found


def _gap(phase: Measured, answers: list[Answer]) -> float:
    numbers = {answer.number for answer in answers}
    return _most([gap for _, gap, number in phase.gaps if number in numbers])


def _took(phase: Measured, answers: list[Answer]) -> float:
    return _most([_seconds(phase.start, answer.last_token) for answer in answers])


@dataclass(frozen=True)
class Figure:
    """`take`: of a phase and those of its requests that are asked about."""

    write: Format
    take: Callable[[Measured, list[Answer]], float]


FIGURES: dict[str, Figure] = {
    "requests": Figure(_count, lambda phase, answers: len(answers)),
    "prompt_tokens": Figure(_count, _total("prompt_tokens")),
    "cached_tokens": Figure(_count, _total("cached_tokens")),
    "computed_tokens": Figure(_count, lambda phase, a: sum(one.prompt_tokens - one.cached_tokens for one in a)),
    "tokens": Figure(_count, lambda phase, answers: sum(len(answer.token_ids) for answer in answers)),
    "seconds": Figure(explain.duration, _took),
    "tokens_per_s": Figure(
        explain.rate, lambda phase, a: _ratio(sum(len(one.token_ids) for one in a), _took(phase, a))
    ),
    "ttft": Figure(explain.duration, lambda phase, answers: _mean(_waits(answers))),
    "ttft_max": Figure(explain.duration, lambda phase, answers: _most(_waits(answers))),
    "queue_max": Figure(
        explain.duration, lambda phase, answers: _most([_seconds(a.arrival, a.admitted) for a in answers])
    ),
    "gap_max": Figure(explain.duration, _gap),
    "running_max": Figure(_count, lambda phase, answers: max(phase.running, default=0)),
    "used_max": Figure(_count, lambda phase, answers: max(phase.used, default=0)),
    "waste": Figure(_share, lambda phase, answers: phase.waste().share if phase.wastes else NAN),
    "waste_reserved": Figure(_share, _waste("reserved")),
    "waste_last_block": Figure(_share, _waste("last_block")),
    "waste_gaps": Figure(_share, _waste("gaps")),
    "preemptions": Figure(_count, _total("preemptions")),
    "recomputed": Figure(_count, lambda phase, answers: phase.recomputed),
    "swapped": Figure(explain.size, lambda phase, answers: phase.swapped),
    "copies": Figure(_count, lambda phase, answers: phase.copies),
    "passes": Figure(_count, _total("passes")),
    "drafted": Figure(_count, _total("drafted")),
    "accepted": Figure(_count, _total("accepted")),
    "acceptance": Figure(
        _share, lambda phase, a: _ratio(sum(one.accepted for one in a), sum(one.examined for one in a))
    ),
    "tokens_per_pass": Figure(
        _decimal,
        # the first token of each comes from its prompt, not from a pass
        lambda phase, a: _ratio(sum(max(0, len(one.token_ids) - 1) for one in a), sum(one.passes for one in a)),
    ),
}
FORMATS: dict[str, Format] = {name: figure.write for name, figure in FIGURES.items()}


def of(phase: Measured | None, group: str, name: str) -> float:
    """A figure of a phase, or of one group of its requests; NaN before it began."""
    return NAN if phase is None else float(FIGURES[name].take(phase, phase.of(group)))


def all_of(phase: Measured) -> dict[str, float | None]:
    """Every figure of a phase; None where there is none."""
    values = {name: of(phase, "", name) for name in FIGURES}
    digits = {name: None if figure.write is _count else 6 for name, figure in FIGURES.items()}  # None: whole numbers
    return {name: None if math.isnan(value) else round(value, digits[name]) for name, value in values.items()}


# --- panels ---


@dataclass(frozen=True)
class _Panel:
    """`fact`: the figure that stands for a whole curve, `words` around it."""

    title: str
    unit: str
    kind: str  # "steps" or "dots"
    curve: Callable[[Measured], tuple[list[float], list[float]]]
    fact: str
    words: str
    top: float = 0.0


def _wastes(phase: Measured) -> tuple[list[float], list[float]]:
    """Of the steps after which anything was held."""
    held = [(time, 100 * waste.share) for time, waste in zip(phase.times, phase.wastes, strict=True) if waste.held]
    return [time for time, _ in held], [share for _, share in held]


def _rate(phase: Measured) -> tuple[list[float], list[float]]:
    times, values = phase.rate()
    return times.tolist(), values.tolist()


def _first_tokens(phase: Measured) -> tuple[list[float], list[float]]:
    found = sorted(
        (_seconds(phase.start, answer.first_token), _seconds(answer.arrival, answer.first_token))
        for answer in phase.of("")
        if answer.first_token
    )
    return [time for time, _ in found], [wait for _, wait in found]


def _gaps(phase: Measured) -> tuple[list[float], list[float]]:
    """The longest of each step."""
    worst: dict[float, float] = {}
    for time, gap, _ in phase.gaps:
        worst[time] = max(gap, worst.get(time, 0.0))
    return list(worst), [1e3 * gap for gap in worst.values()]


PANELS: dict[str, _Panel] = {
    "running": _Panel(
        "Running sequences", "", "steps", lambda phase: (phase.times, phase.running), "running_max", "at most {}"
    ),
    "waste": _Panel(
        "Waste, share of KV slots held", "%", "steps", _wastes, "waste", "{} over the run", top=100.0
    ),
    "rate": _Panel("Tokens per second", "", "steps", _rate, "tokens_per_s", "{} in all"),
    "ttft": _Panel("Time to first token, each request", "s", "dots", _first_tokens, "ttft", "{} on average"),
    "gap": _Panel("Time between two tokens of a stream", "ms", "dots", _gaps, "gap_max", "{} at most"),
    "used": _Panel("KV blocks in use", "", "steps", lambda phase: (phase.times, phase.used), "used_max", "at most {}"),
}  # fmt: skip


def panel(name: str, phases: list[Measured]) -> StoryPanel:
    """A panel over the phases that began."""
    spec = PANELS[name]
    curves, facts = [], []
    for phase in phases:
        times, values = spec.curve(phase)
        curves.append(Curve(times=np.asarray(times, float), values=np.asarray(values, float)))
        facts.append(spec.words.format(FORMATS[spec.fact](of(phase, "", spec.fact))))
    return StoryPanel(
        title=spec.title, unit=spec.unit, kind=spec.kind, top=spec.top, curves=tuple(curves), facts=tuple(facts)
    )
