"""The requests of a story's phase: prompts written out or drawn, lengths drawn, the same for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

from app.stories.script import Ask, Story
from app.workload.prompts import PromptSet
from engine.records import Request, Sampling

LABEL = "story"


@dataclass(frozen=True)
class Planned:
    request: Request
    at: float  # s after the phase's start
    name: str


class Draw:
    """Makes requests of what a story asks for."""

    def __init__(self, prompts: PromptSet):
        self._prompts = prompts
        systems = files("assets") / "prompts" / "systems.json"
        self._systems: dict[str, str] = json.loads(systems.read_text("utf-8"))

    def plan(self, story: Story, phase: str, next_number: Callable[[], int]) -> list[Planned]:
        """In the order of their arrival. Both phases draw the same."""
        rng = random.Random(story.seed)
        planned = [
            Planned(request, ask.at, ask.name)
            for ask in story.requests
            for request in self._requests(ask, rng, next_number)
            if ask.phase in ("both", phase)
        ]
        return sorted(planned, key=lambda one: one.at)

    def _requests(self, ask: Ask, rng: random.Random, next_number: Callable[[], int]) -> list[Request]:
        prompts = ask.prompts or [self._prompts.near(ask.prompt_tokens, rng).text for _ in range(ask.count)]
        return [
            Request(
                number=next_number(),
                prompt=prompt,
                system=self._systems.get(ask.system, ask.system),
                max_tokens=ask.max_tokens if isinstance(ask.max_tokens, int) else rng.randint(*ask.max_tokens),
                stop=ask.stop,
                ignore_eos=ask.ignore_eos,
                n=ask.n,
                beams=ask.beams,
                sampling=Sampling(temperature=0.0),
                label=LABEL,
            )
            for prompt in prompts
        ]


def groups(planned: list[Planned]) -> dict[str, list[int]]:
    """Numbers of all requests under "", and of those that go by a name."""
    found: dict[str, list[int]] = {"": [one.request.number for one in planned]}
    for one in planned:
        if one.name:
            found.setdefault(one.name, []).append(one.request.number)
    return found
