"""Where drafting pays: speed-up against draft length and batch, filled in by the steps that were seen so far.

A cell compares the steps at its γ with plain ones at the same batches: how long plain steps would have taken for the
tokens those gave, over how long they took. Steps in which nothing happened to be drafted count for their γ as well
(a draft that seldom matches gains little), and, without what looking for drafts took, as plain ones. Steps with
prompts in them tell nothing here. One kind of draft is never mixed with another; a what-if is a kind of its own.
Fed a step at a time, reading costs nothing of the history. No Qt.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from engine.config import LiveSettings
from engine.formulas import speedup

ADAPTIVE = -1  # in the place of γ: as many as pay, up to the slider
LEAST = 8  # steps of either kind at one batch, below which their mean says little
KEPT_KINDS = 32
Kind = tuple[str, str, int, tuple[float, ...]]  # draft method, its model, its layers, simulated acceptance


class Cell(NamedTuple):
    """`speedup` None: there are steps, but too few, or no plain ones at the same batch."""

    speedup: float | None
    steps: int
    plain: int  # steps that those were compared with


class _Sum:
    __slots__ = ("ns", "steps", "tokens")

    def __init__(self) -> None:
        self.steps = self.tokens = self.ns = 0

    def add(self, tokens: int, ns: int) -> None:
        self.steps += 1
        self.tokens += tokens
        self.ns += ns


class Crossover:
    """Sums by exact batch; buckets are for the eye."""

    def __init__(self) -> None:
        self._plain: dict[int, _Sum] = {}
        self._drafted: dict[Kind, dict[tuple[int, int], _Sum]] = {}

    def reset(self) -> None:
        """Another model, or its weights in another form: nothing measured so far holds for it."""
        self._plain.clear()
        self._drafted.clear()

    def add(self, settings: LiveSettings, batch: int, drafted: int, emitted: int, ns: int, drafting: int) -> None:
        """A step of `batch` decode rows and no prefill; `drafting` of its `ns` went into drafts."""
        if not batch:
            return
        if not drafted:
            _sum(self._plain, batch).add(emitted, ns - drafting)
        gamma = column(settings)
        if gamma:
            _sum(self._sums(kind(settings)), (gamma, batch)).add(emitted, ns)

    def _sums(self, kind: Kind) -> dict[tuple[int, int], _Sum]:
        """Of one kind of draft. Dragging a simulated acceptance makes kinds without end: the oldest go."""
        found = self._drafted.get(kind)
        if found is None:
            found = self._drafted[kind] = {}
            while len(self._drafted) > KEPT_KINDS:
                del self._drafted[next(iter(self._drafted))]
        return found

    def cells(self, settings: LiveSettings) -> dict[tuple[int, int], Cell]:
        """By (γ or ADAPTIVE, bucket of the batch), of the kind of draft that is set."""
        found: dict[tuple[int, int], list[tuple[int, _Sum]]] = {}
        for (gamma, batch), one in self._drafted.get(kind(settings), {}).items():
            found.setdefault((gamma, bucket(batch)), []).append((batch, one))
        return {place: self._cell(sums) for place, sums in found.items()}

    def _cell(self, sums: list[tuple[int, _Sum]]) -> Cell:
        took, alone, steps, plain = 0, 0.0, 0, 0
        for batch, one in sums:
            base = self._plain.get(batch)
            if base is None or base.steps < LEAST or one.steps < LEAST:
                continue
            took += one.ns
            alone += one.ns * speedup(one.tokens / one.steps / batch, base.ns / base.steps, 0, one.ns / one.steps)
            steps, plain = steps + one.steps, plain + base.steps
        if not took:
            return Cell(None, sum(one.steps for _, one in sums), 0)
        return Cell(alone / took, steps, plain)


def kind(settings: LiveSettings) -> Kind:
    method = settings.draft_method
    return (
        method,
        settings.draft_model if method == "model" else "",
        settings.draft_layers if method == "layers" else 0,
        tuple(settings.simulated_acceptance),
    )


def column(settings: LiveSettings) -> int:
    """The γ that a step counts for, 0 with drafts off."""
    if settings.draft_method == "off" or settings.draft_length == 0:
        return 0
    return ADAPTIVE if settings.draft_policy == "adaptive" else settings.draft_length


def bucket(batch: float) -> int:
    """1, 2, 4, 8 …: the nearest on a scale of ratios."""
    return 1 << max(0, round(math.log2(max(1.0, batch))))


def _sum(sums: dict, key: object) -> _Sum:
    found = sums.get(key)
    if found is None:
        found = sums[key] = _Sum()
    return found
