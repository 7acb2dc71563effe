"""What the speculation view shows of a moment: passes, figures and words, taken from the mirror at one look."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import msgspec

from engine.config import LiveSettings
from ui import crossover, draft_words
from ui.context import ViewContext
from ui.crossover import Cell
from ui.history import History, Pass
from ui.mirror import DRAFT_KEYS
from ui.payoff import Payoff, Verified, measure

WINDOW = 200  # steps that acceptance and pay-off are measured over
LOOK_BACK = 1_000  # steps in which plain ones are looked for; a turn of Measure takes 256
PASSES = 50
# with one of these changed, figures start anew
_SHAPING = {*DRAFT_KEYS, "draft_length", "draft_policy", "draft_sampling", "simulated_acceptance", "engine", "weights"}


@dataclass(frozen=True)
class Counts:
    """What was verified in the last `steps` steps; `depth` positions can be drafted now."""

    verified: Verified
    depth: int
    steps: int

    @property
    def positions(self) -> int:
        """Positions that there is something to say of."""
        examined = self.verified.examined.nonzero()[0]
        return max(int(examined[-1]) + 1 if len(examined) else 0, self.depth)


@dataclass(frozen=True)
class Said:
    """Words of the card. `loud`: headline and remedy of what is wrong, its colour's token; None = nothing is.
    `tone`: token of the headline's colour, "" = as it pays."""

    headline: str
    because: str
    loud: tuple[str, str, str] | None = None
    tone: str = ""


@dataclass(frozen=True)
class Shown:
    """What is on the screen until the next look.

    since: the first step that had the drafts in force. cells: of the crossover chart; gamma: its column of the moment.
    summary: the line in the dock's title.
    """

    passes: list[Pass]
    counts: Counts
    figures: Payoff
    since: int
    cells: dict[tuple[int, int], Cell]
    gamma: int
    said: Said
    simulated: bool
    summary: str


def look(context: ViewContext, kept: list[Pass] | None = None) -> Shown | None:
    """None before the first step. `kept`: passes to go on showing; None takes the newest."""
    cursor, mirror = context.cursor, context.mirror
    history, settings, step = mirror.history, cursor.state.settings, cursor.step
    if settings is None or not history.last:
        return None
    settings = msgspec.structs.replace(settings, draft_length=history.meant(settings.draft_length, step))
    gamma, simulated = settings.draft_length, bool(settings.simulated_acceptance)
    since = _unchanged_since(history, step)
    first = max(history.first, step - WINDOW + 1, since)
    verified = history.verified(first, step)
    columns = history.slice(max(history.first, step - LOOK_BACK + 1), step)
    adaptive = settings.draft_policy == "adaptive"
    figures = measure(columns, verified, gamma, settings.draft_method, first, adaptive)
    words = draft_words.drafting(settings, gamma, mirror.ready.model.layers if mirror.ready else 0)
    if figures.passes:
        words += f" · {figures.tokens_per_pass:.2f} tokens per pass"
    return Shown(
        passes=kept or list(islice(history.passes.until(step), PASSES)),
        counts=Counts(verified, 0 if figures.state in ("off", "method_off") else gamma, step - first + 1),
        figures=figures,
        since=since,
        cells=history.crossover.cells(settings),
        gamma=crossover.column(settings),
        said=Said(
            *draft_words.payoff(figures, simulated),
            _loud(context, settings, figures),
            "simulated" if simulated and figures.ratio is not None else "",
        ),
        simulated=simulated,
        summary=f"{draft_words.SIMULATED.lower()} · {words}" if simulated else words,
    )


def _unchanged_since(history: History, step: int) -> int:
    """The first step that had the drafts in force at `step`."""
    return next((mark.step for mark in reversed(history.marks) if mark.step <= step and mark.key in _SHAPING), 0)


def _loud(context: ViewContext, settings: LiveSettings, figures: Payoff) -> tuple[str, str, str] | None:
    mirror, ready = context.mirror, context.mirror.ready
    absent, asked = (ready.absent_drafts, ready.config.settings.draft_method) if ready else ({}, "")
    if (found := draft_words.trouble(settings, figures, mirror.draft_refused, absent, asked)) is not None:
        return found
    if mirror.alternation.refused:
        return "Can't measure", mirror.alternation.refused, "danger"
    if settings.simulated_acceptance:
        return draft_words.SIMULATED, draft_words.what_if(settings, ready.runner if ready else ""), "simulated"
    return None
