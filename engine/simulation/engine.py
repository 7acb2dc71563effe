"""The real core on a simulated clock. What only a real model can answer is refused, in words."""

from __future__ import annotations

from engine.config import Simulation
from engine.core import Engine
from engine.records import Request, StepRecord
from engine.requests import RequestRefused
from engine.sequence import Sequence
from engine.simulation.clock import SimulatedClock
from engine.simulation.sampler import SimulatedRow


class SimulatedEngine(Engine):
    """`clock`: the one that the runner advances."""

    def __init__(self, *args, simulation: Simulation, clock: SimulatedClock, **kwargs):
        self._simulation, self._clock = simulation, clock
        super().__init__(*args, clock=clock, **kwargs)

    def now(self) -> int:
        if self._clock.held and not self.has_work:
            self._clock.release()
        return super().now()

    def hold(self, ns: int) -> None:
        if not self._clock.held:  # a clock that stands has left it out already
            super().hold(ns)

    def step(self, alone: bool = False) -> StepRecord:
        self._clock.begin()
        record = super().step(alone)
        self._clock.end()
        if not self.has_work:
            self._clock.release()
        return record

    def submit(self, number: int, token_ids: list[int], request: Request) -> int:
        if request.beams:
            raise RequestRefused("a simulated engine has no probabilities to search by; send it without beams")
        return super().submit(number, token_ids, request)

    def shadow(self, number: int) -> int:
        raise RequestRefused("a simulated engine has no text to compare: run a real one to check its output")

    def watch(self, seq: int | None, k: int = 10) -> None:
        """Raises RequestRefused: there are no distributions to tell."""
        if seq is not None:
            raise RequestRefused("a simulated engine has no probabilities to tell: run a real one to see its tokens'")

    def _resolve(self, sequence: Sequence) -> None:
        super()._resolve(sequence)
        for each in sequence.group.lanes if sequence.group is not None else (sequence,):
            assert each.params is not None
            each.params = SimulatedRow.of(each.params, each.prompt_tokens, self._simulation)
