"""Run, pause, step, slow motion: what the buttons and keys ask of the engine. No Qt.

Answers take a frame or two, so it remembers what it asked for last: pressing twice fast pauses and resumes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.records import Pause, Resume, SetDelay, StepOnce
from ui.contracts import Source
from ui.mirror import Mirror


@dataclass(frozen=True)
class Speed:
    """`slower` times the step's own time is waited before each step; or `seconds`, whatever the step takes."""

    label: str
    meaning: str
    slower: float = 0.0
    seconds: float = 0.0


SPEEDS = (
    Speed("1×", "Full speed"),
    Speed("½×", "Half speed", slower=1),
    Speed("¼×", "Quarter speed", slower=3),
    Speed("⅛×", "An eighth", slower=7),
    Speed("4/s", "About four steps a second", seconds=0.25),
    Speed("1/s", "About one step a second", seconds=1.0),
    Speed("⅓/s", "A step every three seconds", seconds=3.0),
)
_LEAST_STEP = 0.005  # s; below this a factor of the step's time is too little to see


class Transport:
    """Asks the source to run, pause, step or slow down.

    Attributes:
        speed: the speed asked for last.
    """

    def __init__(self, source: Source, mirror: Mirror):
        self._source, self._mirror = source, mirror
        self._asked: bool | None = None  # paused, as asked for and not yet told by a Status
        self._status_then: object = None
        self.speed = SPEEDS[0]

    @property
    def paused(self) -> bool:
        """As far as it is known or asked for. An engine that is gone isn't: nothing could go on."""
        if self.gone:
            return False
        if self._asked is not None and self._mirror.status is self._status_then:
            return self._asked
        return self._mirror.status.paused

    @property
    def gone(self) -> bool:
        """The engine died or was ended."""
        return self._mirror.died is not None or self._mirror.ended

    @property
    def slowed(self) -> bool:
        return self._mirror.status.delay > 0

    @property
    def label(self) -> str:
        """The speed in force, in a few characters."""
        if not self.slowed:
            return SPEEDS[0].label if self.speed.slower or self.speed.seconds else self.speed.label
        named = self.speed is not SPEEDS[0]
        return self.speed.label if named else f"+{self._mirror.status.delay:.2g} s"

    def toggle(self) -> None:
        self._ask(not self.paused)

    def step(self) -> None:
        """One step; a running engine is paused first."""
        if not self.paused:
            self._ask(True)
        self._source.send(StepOnce(id=self._source.next_id()))

    def slow(self, speed: Speed) -> None:
        self.speed = speed
        delay = speed.seconds or speed.slower * max(_LEAST_STEP, self._step_time())
        self._source.send(SetDelay(id=self._source.next_id(), seconds=round(delay, 4)))

    def _ask(self, paused: bool) -> None:
        command = Pause if paused else Resume
        self._source.send(command(id=self._source.next_id()))
        self._asked, self._status_then = paused, self._mirror.status

    def _step_time(self) -> float:
        """Median time of the last 50 steps, seconds."""
        columns = self._mirror.history.slice(max(0, self._mirror.history.last - 49))
        if not len(columns):
            return 0.0
        total = columns.schedule + columns.draft + columns.swap + columns.forward + columns.sample + columns.commit
        return float(np.median(total)) / 1e9
