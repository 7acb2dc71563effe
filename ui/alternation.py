"""Measuring what drafting gains: while it is on, some steps run without drafts, again and again.

A speed-up is a ratio to what would have been, and only a step without drafts, at the same batch and on the same
texts, tells that. So γ goes to 0 for PLAIN of every PERIOD steps and back. For everybody else γ is what the user
set: plots get no marks, sliders don't move. It ends when anybody sets another γ, or turns drafts off. No Qt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from engine.config import LiveSettings
from engine.records import Ack, Change
from ui.contracts import Source

PLAIN, PERIOD = 32, 256  # steps; an eighth of the gain is what measuring costs
Phase = Literal["idle", "drafting", "plain", "returning", "leaving"]


class Alternation:
    """The machine. `tick` moves it, once a frame.

    Attributes:
        gamma: the draft length that is really wanted; 0 while nothing is measured.
        refused: why it ended by itself, "" = it didn't.
    """

    def __init__(self) -> None:
        self.gamma = 0
        self.refused = ""
        self._phase: Phase = "idle"
        self._since = 0  # first step of the phase
        self._asked: int | None = None  # a Change that is unanswered

    @property
    def on(self) -> bool:
        return self._phase in ("drafting", "plain")

    @property
    def plain(self) -> bool:
        """A stretch without drafts is on, or on its way."""
        return self._phase == "plain"

    def begin(self, settings: LiveSettings, step: int) -> None:
        """The first plain stretch comes at once: somebody waits for a figure. Nothing happens with drafts off."""
        if settings.draft_length and settings.draft_method != "off" and self._phase == "idle":
            self.gamma, self.refused = settings.draft_length, ""
            self._phase, self._since = "drafting", step - PERIOD + PLAIN

    def end(self, source: Source) -> None:
        """Stop, with γ as it was."""
        if self._phase == "plain":
            self._turn("returning", self._since)
            self._ask(source, self.gamma)
        elif self._phase == "drafting":
            self._stop()

    def leave(self) -> None:
        """Stop without asking for anything: somebody else has just asked for another γ."""
        if self._asked is None:
            self._stop()
        else:
            self._turn("leaving", self._since)

    def tick(self, source: Source, settings: LiveSettings | None, step: int, acks: Mapping[int, Ack]) -> None:
        """Once a frame: turn to the next stretch when this one has had its steps. `acks`: answers, by command."""
        if self._phase == "idle" or settings is None:
            return
        if source.state != "ready":  # what was asked is never answered; the next engine may start without drafts
            self._asked = None
            self._turn("leaving" if self._phase == "leaving" else "returning", step)
            return
        length = settings.draft_length
        if not self._settled(length, step, acks):
            return
        if self._phase == "leaving" or settings.draft_method == "off" or length not in (0, self.gamma):
            self._stop()
        elif self._phase == "returning":
            if length:
                self._stop()
            else:
                self._ask(source, self.gamma)
        elif (length == 0) != (self._phase == "plain"):
            self._stop()
        elif self._phase == "drafting" and step - self._since >= PERIOD - PLAIN:
            self._turn("plain", step)
            self._ask(source, 0)
        elif self._phase == "plain" and step - self._since >= PLAIN:
            self._turn("drafting", step)
            self._ask(source, self.gamma)

    def _settled(self, length: int, step: int, acks: Mapping[int, Ack]) -> bool:
        """What was last asked for is answered, and the first step that obeys has been seen."""
        if self._asked is not None:
            ack = acks.get(self._asked)
            if ack is None:
                return False
            self._asked = None
            if not ack.ok:
                self._stop()
                self.refused = ack.message
                return False
            self._since = ack.step
        return step >= self._since or (length == 0) == (self._phase == "plain")

    def meant(self, length: int) -> int:
        """The γ that people should be shown where `length` is in force."""
        return self.gamma if length == 0 and self._phase not in ("idle", "leaving") else length

    def hides(self, old: object, new: object) -> bool:
        """A change of γ that is this machine's own doing."""
        return self._phase != "idle" and {old, new} == {0, self.gamma}

    def _turn(self, phase: Phase, step: int) -> None:
        self._phase, self._since = phase, step

    def _ask(self, source: Source, gamma: int) -> None:
        self._asked = source.next_id()
        source.send(Change(id=self._asked, changes={"draft_length": gamma}))

    def _stop(self) -> None:
        self._phase, self.gamma, self._asked = "idle", 0, None
