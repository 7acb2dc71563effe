"""What keeps a simulated engine busy at one scale: so many sequences at all times, in a pool that is full.

First the pool is filled with prompts that answer one token and leave their blocks to the prefix cache; then as many
requests run as the batch holds, and whoever ends is followed by another. Prompts are filler words by a seed: no model
reads them. Some begin alike, so that prefixes are found and blocks are shared.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.config import EngineConfig, LiveSettings, Simulation
from engine.records import Finished, Message, Request, StepRecord

PROFILE = "h200:smollm2-135m"
CONTEXT = 8192  # tokens; what SmolLM2 was trained for
BLOCK = 16  # tokens
FILL_BUDGET, BUDGET = 16_384, 2_048  # tokens a step, while the pool is filled and then
DRAFTS = 4
SPREAD = 0.1  # of the lengths of prompts
PREFIXES = 8  # beginnings that half of the prompts share
WORDS = 47  # ids from 1 on that say a word; `engine.simulation.words` has them, in the child alone
FULL = 0.95  # of the pool: used or cached


@dataclass(frozen=True)
class Load:
    """`steps_per_s` 0: as many as there can be."""

    blocks: int
    sequences: int
    steps_per_s: float
    drafts: int = DRAFTS

    @property
    def longest(self) -> int:
        """Tokens of a request of mean length when it ends: together they hold three quarters of the pool, or as much as
        the model's context allows."""
        return max(48, min(7_000, self.blocks * BLOCK * 3 // 4 // self.sequences))

    @property
    def output(self) -> int:
        return min(2_048, self.longest // 2)

    @property
    def prompt(self) -> int:
        return self.longest - self.output

    @property
    def shared(self) -> int:
        """Tokens that prompts of one beginning have in common: a third, of whole blocks."""
        return self.prompt // 3 // BLOCK * BLOCK

    @property
    def waiting(self) -> int:
        """Requests that wait, so that a place that becomes free is taken in the next step."""
        return 2 + self.sequences // 16

    def config(self) -> EngineConfig:
        settings = LiveSettings(
            max_batch=self.sequences,
            max_context=min(CONTEXT, self.blocks * BLOCK),
            kv_blocks=self.blocks,
            token_budget=FILL_BUDGET,
            draft_method="suffix" if self.drafts else "off",
            draft_length=self.drafts,
        )
        simulation = Simulation(profile=PROFILE, paced=self.steps_per_s > 0, steps_per_s=self.steps_per_s)
        return EngineConfig(simulation=simulation, settings=settings)

    def told(self) -> dict[str, int | float | str]:
        """For the figures' reader."""
        return {
            "engine": f"simulated {PROFILE}, real scheduler and pool in a child process",
            "prompt_tokens": self.prompt,
            "output_tokens": self.output,
            "shared_prefix_tokens": self.shared,
            "share_of_prompts_with_one": 0.5,
            "token_budget": BUDGET + self.sequences,
            "draft_method": "suffix" if self.drafts else "off",
            "draft_length": self.drafts,
        }


@dataclass
class Steady:
    """Requests of a `Load`, handed to `submit`. `hear` is told what the engine says.

    Attributes:
        running: sequences after the last step heard. held: share of the pool that was used or cached then.
        busy: the batch is full, and has been filled again since the pool was.
    """

    load: Load
    submit: Callable[[Request], None]
    seed: int = 11
    running: int = 0
    held: float = 0.0
    busy: bool = False
    _asked: int = 0
    _open: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._prefixes = [self._words(self.load.shared) for _ in range(PREFIXES)]

    def begin(self) -> None:
        """Fill the pool, then the batch; the first to run are of all ages."""
        load = self.load
        for _ in range(round(load.blocks * FULL * BLOCK / load.prompt)):
            self._ask(1)
        for place in range(load.sequences + load.waiting):
            self._ask(max(1, round(self._length() * (place + 1) / load.sequences)) if place < load.sequences else 0)

    def hear(self, messages: list[Message]) -> None:
        for message in messages:
            if isinstance(message, StepRecord):
                ended = [event.number for event in message.events if isinstance(event, Finished)]
                self._open.difference_update(ended)
                self.running = message.running
                self.held = (message.used + message.cached) / self.load.blocks
                self.busy = message.running == self.load.sequences and message.waiting <= 2 * self.load.waiting
        while self._open and len(self._open) < self.load.sequences + self.load.waiting:
            self._ask(0)

    def _ask(self, output: int) -> None:
        """`output` 0: a drawn length."""
        self._asked += 1
        mean = self.load.prompt
        length = max(4, round(mean * self._rng.uniform(1 - SPREAD, 1 + SPREAD)))
        begun = self._rng.choice(self._prefixes) if self._rng.random() < 0.5 else []
        self._open.add(self._asked)
        self.submit(Request(
            number=self._asked,
            prompt=f"Document {self._asked}",
            token_ids=begun + self._words(max(1, length - len(begun))),
            max_tokens=output or self._length(),
            ignore_eos=True,
            label="bench",
        ))  # fmt: skip

    def _length(self) -> int:
        return max(1, round(self.load.output * self._rng.uniform(0.75, 1.25)))

    def _words(self, count: int) -> list[int]:
        return self._rng.choices(range(1, 1 + WORDS), k=count)
