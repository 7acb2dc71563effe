"""Poisson arrivals over the built-in prompts: what `ui.contracts.Workload` asks for.

Time comes in from outside, so that a test can run an hour of arrivals in a moment. While the engine is paused
the clock of arrivals stands still: a speaker who talks over a paused picture doesn't come back to a flood.
"""

from __future__ import annotations

import random

import msgspec

from app.workload.prompts import PromptSet, draw_length
from engine.records import Request, Submit
from ui.contracts import WORKLOAD_LIMITS, Source, WorkloadSettings

BACKLOG = 64  # arrivals made up for after a stall (a laptop's lid); later ones are dropped
# What a data-centre card is kept busy with: as many and as long requests as the workload has.
SIMULATED_LOAD = WorkloadSettings(rate=20.0, prompt_tokens=1024, output_tokens=512)
OUTPUT_AT_LEAST = 4  # tokens; a shorter answer has no time per output token to speak of


class PoissonWorkload:
    """Sends requests to a source, by itself or by hand. `settings` are the ones in force."""

    def __init__(self, source: Source, prompts: PromptSet, settings: WorkloadSettings | None = None):
        self._source = source
        self._prompts = prompts
        self.settings = settings or WorkloadSettings()
        self._rng = random.Random(self.settings.seed)
        self._number = 0
        self._next = 0.0  # time of the next arrival, s on this object's own clock
        self._now = 0.0
        self._held = False  # it ran when it was held
        self._schedule()

    def change(self, settings: WorkloadSettings) -> None:
        """Values outside the limits are brought to them. A new rate takes effect with the next arrival."""
        clean = {key: min(max(getattr(settings, key), low), high) for key, (low, high) in WORKLOAD_LIMITS.items()}
        before = self.settings
        self.settings = WorkloadSettings(**clean, running=settings.running, seed=settings.seed)
        if (before.rate, before.running) != (self.settings.rate, self.settings.running):
            self._schedule()

    def advance(self, seconds: float) -> int:
        """Let time pass; sends what arrived in it and returns how many that were."""
        self._now += seconds
        sent = 0
        while self.settings.running and self.settings.rate > 0 and self._next <= self._now:
            if sent < BACKLOG:
                self.send()
                sent += 1
            self._next += self._rng.expovariate(self.settings.rate)
        return sent

    def hold(self) -> None:
        """Stop arrivals for a while, for a story that wants the engine to itself."""
        self._held = self.settings.running
        self.change(msgspec.structs.replace(self.settings, running=False))

    def release(self) -> None:
        """Go on as before, unless somebody resumed it meanwhile."""
        if self._held and not self.settings.running:
            self.change(msgspec.structs.replace(self.settings, running=True))
        self._held = False

    def send(self, count: int = 1) -> None:
        for _ in range(count):
            self.submit(self._draw())

    def submit(self, request: Request) -> None:
        self._source.send(Submit(id=self._source.next_id(), request=request))

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def _draw(self) -> Request:
        prompt = self._prompts.choose(self.settings.prompt_tokens, self._rng)
        output = max(OUTPUT_AT_LEAST, draw_length(self.settings.output_tokens, self._rng))
        return Request(
            number=self.next_number(),
            prompt=prompt.text,
            system=prompt.system,
            max_tokens=output,
            label=prompt.kind,
        )

    def _schedule(self) -> None:
        if self.settings.rate > 0:
            self._next = self._now + self._rng.expovariate(self.settings.rate)
