"""One frame: take the messages that came, apply them to the mirror, let the views in sight redraw what changed.

Each view has its own rate; pictures are redrawn every frame, words a few times a second and never two such views in
one frame, so that frames stay even. A view that fails is named once, and the others go on.
"""

from __future__ import annotations

import logging
from time import monotonic, perf_counter_ns
from typing import Protocol

from ui.changes import Kinds
from ui.context import ViewContext
from ui.deck import Deck
from ui.dock import ViewDock
from ui.views.base import View

log = logging.getLogger(__name__)

APPLY_NS = 6_000_000  # of a frame's 16.7 ms; what is left over waits for the next frame
MUCH_NS = 4_000_000
_PATIENCE = 0.25  # s
_BATCH = 4  # messages taken at a time, so that the clock is looked at between them
_NUMBERS_EVERY = 0.25  # s: figures that change faster can't be read
_HINTS_EVERY = 0.5  # s
# what the user did, or has to know: drawn with the next frame, whatever the last ones cost
_AT_ONCE = Kinds.CURSOR | Kinds.SELECTION | Kinds.THEME | Kinds.SETTINGS | Kinds.SOURCE


class Surroundings(Protocol):
    """The window, as far as a frame needs it."""

    def isVisible(self) -> bool: ...

    def isMinimized(self) -> bool: ...

    def tend(self) -> None: ...

    def show_parts(self, kinds: Kinds, numbers: bool, hints: bool) -> None: ...

    def tell_failure(self, view: View, error: Exception) -> None: ...


class Frame:
    """What is due, and doing it."""

    def __init__(self, context: ViewContext, deck: Deck, around: Surroundings):
        self._context, self._deck, self._around = context, deck, around
        self._due = Kinds.ALL
        self._applied = 0  # ns that this frame took to apply what came
        self._broken: set[str] = set()  # views whose failure was told
        self.hurry()

    def mark(self, kinds: Kinds) -> None:
        """These changed, by something other than a message."""
        self._due |= kinds

    def hurry(self) -> None:
        """Figures and hints are due with the next frame, however lately they were shown."""
        self._numbers_at = self._hints_at = 0.0

    def run(self, draw: bool = True) -> tuple[int, int] | None:
        """One frame; returns what applying and refreshing took, ns, or None if nothing was drawn. Out of sight only
        what goes on without being seen is done; what changed meanwhile stays due."""
        start = perf_counter_ns()
        self._collect(start)
        self._applied = perf_counter_ns() - start
        self._around.tend()
        collected = perf_counter_ns()
        hidden = not self._around.isVisible() or self._around.isMinimized()
        if hidden or not (draw or self._due & _AT_ONCE):
            return None
        self._draw()
        return collected - start, perf_counter_ns() - collected

    def show(self, dock: ViewDock) -> None:
        """The dock came in sight: draw all of its view."""
        dock.due = Kinds.NONE
        self._refresh(dock, Kinds.ALL)

    def whole(self) -> None:
        """All that is in sight, figures and summaries included, as of one moment: for a still picture."""
        self._due = Kinds.NONE
        self._around.show_parts(Kinds.ALL, numbers=True, hints=True)
        for dock in self._deck.docks.values():
            if dock.shown:
                self.show(dock)
            dock.show_summary()

    def _collect(self, start: int) -> None:
        """Take and apply what came, as long as the frame's share of time lasts."""
        while messages := self._context.source.poll(_BATCH):
            self._due |= self._context.mirror.apply_all(messages)
            if perf_counter_ns() - start > APPLY_NS:
                break

    def _draw(self) -> None:
        kinds, self._due = self._due, Kinds.NONE
        now = monotonic()
        numbers = now - self._numbers_at >= _NUMBERS_EVERY or bool(kinds & (Kinds.CURSOR | Kinds.THEME))
        hints = now - self._hints_at >= _HINTS_EVERY or bool(kinds & (Kinds.SETTINGS | Kinds.SOURCE | Kinds.CURSOR))
        self._numbers_at = now if numbers else self._numbers_at
        self._hints_at = now if hints else self._hints_at
        self._around.show_parts(kinds, numbers, hints)
        self._draw_views(kinds, now)
        if numbers:
            for dock in self._deck.docks.values():
                dock.show_summary()

    def _draw_views(self, kinds: Kinds, now: float) -> None:
        """Views in sight, each at its own rate. Of those that aren't drawn every frame one has its turn, whoever waited
        longest; none in a frame that had much to apply, unless it waited too long."""
        shown = [dock for dock in self._deck.docks.values() if dock.shown]
        for dock in shown:
            dock.due |= kinds & dock.view.kinds
        wanting = [dock for dock in shown if dock.wants(now)]
        calm = [dock for dock in wanting if dock.leisurely and not dock.urgent]
        turn = max(calm, key=lambda dock: dock.waited(now), default=None)
        if turn is not None and self._applied > MUCH_NS and turn.waited(now) < _PATIENCE:
            turn = None
        for dock in wanting:
            if dock not in calm or dock is turn:
                self._refresh(dock, dock.take(now))

    def _refresh(self, dock: ViewDock, kinds: Kinds) -> None:
        view = dock.view
        try:
            view.refresh(kinds)
        except Exception as error:  # one view's fault must not take the window
            self.failed(view, error)

    def failed(self, view: View, error: Exception) -> None:
        """A view could not be drawn: named once, logged once."""
        if view.key not in self._broken:
            self._broken.add(view.key)
            log.error("%s could not be drawn", view.key, exc_info=error)
            self._around.tell_failure(view, error)
