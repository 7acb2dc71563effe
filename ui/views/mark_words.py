"""Changes of settings in words, with the figures before and after it, as far as there is room for them. Several
settings changed at once are one change: what followed can't be told apart.

The figures of a mark are looked up a few times a second at most: they grow with the steps after it, and looking them
up costs more than painting them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from ui import explain, figures
from ui.context import ViewContext
from ui.history import Mark

FIGURES = ": "  # between a change and its figures
FRESH = 0.5  # s that looked-up figures are shown for
KEPT = 64  # marks whose words are kept; a plot shows fewer


def moments(marks: Iterable[Mark]) -> list[list[Mark]]:
    """Marks grouped by their step, in the order given."""
    return [list(group) for _, group in groupby(marks, key=lambda mark: mark.step)]


class MarkWords:
    """Tells marks; one for each plot."""

    def __init__(self, context: ViewContext, clock: Callable[[], float] = time.monotonic):
        self._context, self._clock = context, clock
        self._kept: dict[int, tuple[float, list[str]]] = {}  # by the clock of the change

    def parts(self, mark: Mark) -> list[str]:
        """'212 → 305 tok/s', 'TTFT 84 ms → 90 ms', … : what to say first comes first."""
        now = self._clock()
        found = self._kept.get(mark.clock)
        if found is None or now - found[0] >= FRESH:
            while len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            found = self._kept[mark.clock] = (now, self._look(mark))
        return found[1]

    def fitted(self, marks: Sequence[Mark], width: int, advance: Callable[[str], int]) -> str:
        """Changes of one moment, and as many of their figures as fit into `width` pixels; '' where not even one
        change does."""
        changes = [explain.change(mark.key, mark.old, mark.new) for mark in marks]
        while len(changes) > 1 and advance(", ".join(changes)) > width:
            changes.pop()
        words = ", ".join(changes)
        if advance(words) > width:
            return ""
        # what has no room is left out before its figures are looked up
        if marks[0].key in ("engine", "compiled") or advance(f"{words}: 9 → 9 tok/s") > width:
            return words
        parts = self.parts(marks[0])
        for count in range(len(parts), 0, -1):
            text = f"{words}{FIGURES}{' · '.join(parts[:count])}"
            if advance(text) <= width:
                return text
        return words

    def _look(self, mark: Mark) -> list[str]:
        told = figures.around(self._context.mirror, mark, self._context.goals.targets)
        before, after = told.before, told.after
        return [
            f"{explain.rate(before.tokens_per_s)} → {explain.rate(after.tokens_per_s)} tok/s",
            f"TTFT {explain.duration(before.ttft_p50)} → {explain.duration(after.ttft_p50)}",
            f"TPOT {explain.duration(before.tpot_p50)} → {explain.duration(after.tpot_p50)}",
            f"goodput {explain.rate(before.goodput)} → {explain.rate(after.goodput)}",
        ]
