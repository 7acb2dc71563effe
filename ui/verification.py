"""One verification of drafted tokens as a walk: what is shown at each stage. No Qt.

Stages are those of the rule (glossary: engine.speculation.accept): the draft; a test for each drafted token that was
examined; where one was rejected the draw from what is left, or the bonus where none was; what the pass gave.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from engine.records import (
    ACCEPTED,
    BONUS,
    DISCARDED,
    REJECTED,
    RESAMPLED,
    TOKEN,
    Candidate,
    Drawn,
    Examined,
    Finished,
    StepRecord,
    Verification,
    unpack,
)

ACCEPT, REJECT, NOT_SEEN, REPLACE, EXTRA = "✓", "✕", "–", "↳", "+"


@dataclass(frozen=True)
class Told:
    """A verification and what came of it. `kept`: tokens of the sequence that the step really put out, by position;
    `ended`: why it ended there, "" = it goes on; `simulated`: acceptance at given rates, see LiveSettings."""

    step: int
    verification: Verification
    method: str = "ngram"
    simulated: tuple[float, ...] = ()
    kept: dict[int, str] = field(default_factory=dict)
    ended: str = ""

    @property
    def seq(self) -> int:
        return self.verification.seq

    @property
    def drafted(self) -> list[Examined]:
        return [one for one in self.verification.positions if one.verdict != BONUS]

    @property
    def accepted(self) -> int:
        return sum(one.verdict == ACCEPTED for one in self.verification.positions)

    @property
    def ending(self) -> Examined:
        """The position that the last token of the pass came from."""
        return next(one for one in self.verification.positions if one.drawn is not None)

    @property
    def last(self) -> Drawn:
        drawn = self.ending.drawn
        assert drawn is not None
        return drawn


def read(record: StepRecord) -> Told | None:
    """What the record tells of the watched sequence's drafts."""
    told = record.verification
    if told is None:
        return None
    emitted = zip(unpack(record.emitted, TOKEN), record.text, strict=False)
    kept = {int(entry["position"]): text for entry, text in emitted if entry["seq"] == told.seq}
    ended = next((e.reason for e in record.events if isinstance(e, Finished) and e.seq == told.seq), "")
    settings = record.settings
    return Told(record.step, told, settings.draft_method, tuple(settings.simulated_acceptance), kept, ended)


class Kind(Enum):
    DRAFT = "draft"
    TEST = "test"
    LEFTOVER = "leftover"
    BONUS = "bonus"
    COMMIT = "commit"


@dataclass(frozen=True)
class Stage:
    """`place`: of the position that it is about, among the verification's."""

    kind: Kind
    place: int
    name: str


def stages(told: Told) -> list[Stage]:
    found = [Stage(Kind.DRAFT, -1, "draft")]
    for place, one in enumerate(told.verification.positions):
        if one.verdict in (ACCEPTED, REJECTED):
            found.append(Stage(Kind.TEST, place, f"test {place + 1}"))
        if one.verdict == REJECTED:
            found.append(Stage(Kind.LEFTOVER, place, "replacement" if told.verification.greedy else "leftover"))
        elif one.verdict == BONUS:
            found.append(Stage(Kind.BONUS, place, "bonus"))
    return [*found, Stage(Kind.COMMIT, len(told.verification.positions), "output")]


class Walk:
    """Where one stands in a verification.

    Attributes:
        told, stages: what is walked. at: the stage shown.
    """

    def __init__(self, told: Told):
        self.told = told
        self.stages = stages(told)
        self.at = 0

    @property
    def stage(self) -> Stage:
        return self.stages[self.at]

    @property
    def over(self) -> bool:
        return self.at == len(self.stages) - 1

    def go(self, to: int) -> bool:
        """Whether another stage is shown now."""
        before, self.at = self.at, max(0, min(to, len(self.stages) - 1))
        return self.at != before


# --- the pass as chips ---


@dataclass(frozen=True)
class Chip:
    """`verdict`: None = not come to yet; `symbol`: "" then. `current`: the stage is about it."""

    text: str
    verdict: int | None
    symbol: str
    current: bool


def chips(walk: Walk) -> list[Chip]:
    """The pass as far as it is walked: drafted tokens, and what took the place of one or came on top."""
    told, stage = walk.told, walk.stage
    found: list[Chip] = []
    for place, one in enumerate(told.verification.positions):
        here = place == stage.place
        seen = stage.place > place or (here and stage.kind is not Kind.DRAFT)
        if one.verdict == BONUS:
            if seen and one.drawn is not None:
                found.append(Chip(one.drawn.text, BONUS, EXTRA, here))
            continue
        if one.verdict == DISCARDED:  # that nobody will look at it is known with the rejection
            gone = stage.place >= told.accepted and stage.kind is not Kind.TEST
            found.append(Chip(one.text, DISCARDED if gone else None, NOT_SEEN if gone else "", False))
            continue
        symbol = (ACCEPT if one.verdict == ACCEPTED else REJECT) if seen else ""
        found.append(Chip(one.text, one.verdict if seen else None, symbol, here and stage.kind is Kind.TEST))
        if one.drawn is not None and seen and stage.kind is not Kind.TEST:
            found.append(Chip(one.drawn.text, RESAMPLED, REPLACE, here))
    return found


# --- the charts ---


@dataclass(frozen=True)
class Row:
    """A token, or all others together (`others` of them are not told: their number isn't known)."""

    text: str
    p: float
    q: float
    left: float
    below: float
    drafted: bool = False
    drawn: bool = False
    others: bool = False


def rows(one: Examined, most: int) -> list[Row]:
    """At most `most`, by p: the likeliest tokens, the drafted and the drawn one among them whatever their place, and at
    the end what all others have together."""
    needed = {token for token in (one.token, one.drawn.token if one.drawn else None) if token is not None}
    free = max(1, most - 1) - len(needed)
    kept: list[Candidate] = []
    for candidate in one.candidates:
        if candidate.token in needed:
            kept.append(candidate)
        elif free > 0:
            kept.append(candidate)
            free -= 1
    drawn = one.drawn.token if one.drawn else None
    found = [
        Row(c.text, c.p, c.q, c.left, c.below, c.token == one.token, c.token == drawn) for c in kept
    ]  # fmt: skip

    def rest(values: list[float]) -> float:
        return max(0.0, 1 - sum(values)) if any(values) else 0.0

    others = Row(
        "all others", rest([r.p for r in found]), rest([r.q for r in found]), rest([r.left for r in found]), 0.0,
        others=True,
    )  # fmt: skip
    return [*found, others]
