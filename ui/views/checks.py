"""Asking for runs without drafts, and what is to be said of a request's: the engine's comparison, or why there is none.

Knows no widgets. A refusal is kept until the same request is asked for again.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.records import Abort, Shadow, ShadowState, shadow_number
from ui import simulated
from ui.context import ViewContext
from ui.latency import FinishedRequest
from ui.sequences import SequenceInfo
from ui.shadow_words import Told, told

Entry = SequenceInfo | FinishedRequest
KEPT = 64


class Offer(NamedTuple):
    """What the button does now. `why`: its tooltip; of one that does nothing, the reason."""

    words: str
    why: str
    enabled: bool


_ASK = "Run the request again without drafts, while nobody else has work, and compare the tokens (V)"


class Checks:
    def __init__(self, context: ViewContext):
        self._context = context
        self._asked: dict[int, int] = {}  # command → sequence
        self._refused: dict[int, str] = {}  # sequence → why

    def ask(self, entry: Entry) -> None:
        """Begin the check of a request, or end the one that goes on."""
        source, running = self._context.source, self._running(entry)
        if running is not None:
            source.send(Abort(id=source.next_id(), number=shadow_number(running.number)))
            return
        command = Shadow(id=source.next_id(), number=entry.number)
        self._refused.pop(entry.seq, None)
        self._asked[command.id] = entry.seq
        source.send(command)

    def refuse(self, entry: Entry, why: str) -> None:
        """Say why it isn't checked, where its comparison would stand."""
        if why != _ASK:
            self._refuse(entry.seq, why[:1].lower() + why[1:])

    def _refuse(self, seq: int, why: str) -> None:
        self._refused[seq] = why
        while len(self._refused) > KEPT:
            del self._refused[next(iter(self._refused))]

    def settle(self) -> None:
        """Look for answers; called once a frame."""
        acks = self._context.mirror.acks
        for command in [c for c in self._asked if c in acks]:
            seq = self._asked.pop(command)
            if not acks[command].ok:
                self._refuse(seq, acks[command].message)
        if self._context.source.state in ("dead", "ended"):
            self._asked.clear()

    def offer(self, entry: Entry | None) -> Offer:
        if entry is None:
            return Offer("Check", _ASK, False)
        if simulated.engine(self._context.mirror.ready):
            return Offer("Check", simulated.NO_CHECK, False)
        if self._shadow_itself(entry):
            return Offer("Check", "This is the run without drafts itself", False)
        if self._running(entry) is not None:
            return Offer("Stop check", "End the run without drafts", self._up)
        if isinstance(entry, SequenceInfo) and entry.of > 1:
            return Offer("Check", "Only one answer to a prompt can be compared with another", False)
        aborted = entry.aborted if isinstance(entry, FinishedRequest) else entry.status == "aborted"
        if aborted or entry.seq in self._asked.values():
            return Offer("Check", "It was aborted: there is no whole answer" if aborted else _ASK, False)
        again = "Check again" if entry.seq in self._context.cursor.state.shadows else "Check"
        return Offer(again, _ASK, self._up)

    def told(self, entry: Entry | None) -> Told | None:
        """What its card says."""
        if entry is None:
            return None
        if (why := self._refused.get(entry.seq)) is not None and self._context.cursor.is_live:
            return Told("–", f"not checked: {why}", "warning", (), 0.0, why)
        state = self._of(entry)
        ready = self._context.mirror.ready
        return None if state is None else told(state, ready.model.dtype if ready else "")

    def _of(self, entry: Entry) -> ShadowState | None:
        """Its comparison; of a run without drafts the one that it is for."""
        shadows = self._context.cursor.state.shadows
        own = shadows.get(entry.seq)
        return own or next((s for s in shadows.values() if s.shadow == entry.seq), None)

    def _running(self, entry: Entry) -> ShadowState | None:
        state = self._context.mirror.live.shadows.get(entry.seq)
        return state if state is not None and not state.done else None

    def _shadow_itself(self, entry: Entry) -> bool:
        return isinstance(entry, SequenceInfo) and entry.shadow

    @property
    def _up(self) -> bool:
        return self._context.cursor.is_live and self._context.source.state == "ready"
