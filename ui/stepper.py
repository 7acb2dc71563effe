"""Asks the engine for one verification after another: watch a sequence, and step until it has a draft. No Qt.

It sends commands that buttons send too, one step at a time, and waits for what comes of each; a step asked for pauses
the engine. It never resumes it.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.records import StepOnce, Watch
from ui import explain, simulated
from ui.contracts import Source
from ui.mirror import Mirror
from ui.verification import Told, Walk

CANDIDATES = 12  # tokens that the engine tells of each distribution
PATIENCE = 64  # steps without a draft, after which it is said that none comes


class Stepper:
    """`chosen` gives the sequence that the user chose. Call `look` whenever something came.

    Attributes:
        walk: the verification shown; None: there is none.
        seq: the sequence last watched. seeking: steps are asked for until it has a verification.
        stepped: how many were made. problem: why it can't go on, in words; "" = it can.
    """

    def __init__(self, source: Source, mirror: Mirror, chosen: Callable[[], int | None]):
        self._source, self._mirror, self._chosen = source, mirror, chosen
        self.walk: Walk | None = None
        self.seq: int | None = None
        self.seeking = False
        self.stepped = 0
        self.problem = ""
        self._watching = False
        self._asked = 0  # id of the step asked for
        self._seen: Told | None = None  # the last one that came
        self._paused = False  # the engine has said that it is, since it was asked for a step
        self._engine = mirror.ready

    # --- asking ---

    def begin(self) -> None:
        """Find the next verification of the chosen sequence, else of the one that is drafted for most."""
        self.problem = self._obstacle()
        seq = None if self.problem else self.choice()
        if seq is None:
            self.problem = self.problem or "No request is running: send a prompt first"
            self.stop()
            return
        if seq != self.seq or not self._watching:
            self._source.send(Watch(id=self._source.next_id(), seq=seq, k=CANDIDATES))
            self.seq, self._watching = seq, True
        self._seen, self._engine = self._mirror.verification, self._mirror.ready
        self.seeking, self.stepped, self._paused = True, 0, False
        self._step()

    def stop(self) -> None:
        """No more steps; what was found stays."""
        self.seeking = False

    def rest(self) -> None:
        """Nobody looks: the engine spares the work. The walk stays."""
        self.stop()
        if self._watching and self._source.state == "ready":
            self._source.send(Watch(id=self._source.next_id()))
        self._watching = False

    def leave(self) -> None:
        """The walk is over."""
        self.rest()
        self.walk, self.problem = None, ""

    def choice(self) -> int | None:
        """The sequence that would be taken now: beams are never drafted for."""
        live, chosen = self._mirror.live, self._chosen()
        fit = [seq for seq in (*live.running, *live.waiting) if not live.sequences[seq].beams]
        if chosen in fit:
            return chosen
        if self._watching and self.seq in fit:
            return self.seq
        drafted = [live.sequences[seq] for seq in live.running if seq in fit]
        if drafted:
            return max(drafted, key=lambda info: (info.drafted / max(1, info.output_tokens), -info.seq)).seq
        return fit[0] if fit else None

    def _obstacle(self) -> str:
        settings = self._mirror.settings
        if self._source.state != "ready" or settings is None:
            return "The engine isn't running"
        if simulated.engine(self._mirror.ready):
            return simulated.NO_VERIFICATION
        if settings.draft_method == "off" or not settings.draft_length:
            return "Drafting is off: choose a draft method, and a draft length γ above 0"
        return ""

    def _step(self) -> None:
        self._asked = self._source.next_id()
        self._source.send(StepOnce(id=self._asked))

    # --- what came ---

    def look(self) -> None:
        mirror = self._mirror
        if mirror.ready is not self._engine:  # started again: nothing of the old one holds
            self._engine, self._watching = mirror.ready, False
            self.leave()
        told, seen = mirror.verification, self._seen
        self._seen = told
        if self._resumed():
            self.leave()
        elif told is not None and told is not seen and self._watching and told.seq == self.seq:
            self.walk, self.problem = Walk(told), ""
            self.stop()
        elif self.seeking:
            self._seek()

    def _resumed(self) -> bool:
        """Somebody let the engine run: what it does now can't be walked."""
        active = self.walk is not None or self.seeking
        if not active or self._mirror.status.paused:
            self._paused = active
            return False
        return self._paused

    def _seek(self) -> None:
        """The step asked for is done: ask for another, unless there is no hope in it."""
        mirror = self._mirror
        ack = mirror.acks.get(self._asked)
        if self._source.state != "ready":
            self.problem = self._obstacle()
        elif ack is not None and not ack.ok:
            self.problem = ack.message
        elif ack is None or mirror.live.step < ack.step:
            return
        else:
            self.stepped += 1
            if self.seq not in mirror.live.sequences:
                info = mirror.live.info(self.seq) if self.seq is not None else None
                why = explain.REASONS.get(info.finish_reason, info.finish_reason) if info else "ended"
                self.problem = f"Sequence {self.seq} {why} before another draft"
            elif self.stepped >= PATIENCE:
                self.problem = f"Sequence {self.seq} had no draft in {explain.count(self.stepped, 'step')}"
            else:
                self._step()
                return
        self.stop()
