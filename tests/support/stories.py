"""A story played on the engine in this process, turn by turn, with a clock that the test turns."""

from __future__ import annotations

from collections.abc import Callable

from app.stories.asks import Draw
from app.stories.play import Player
from app.stories.script import Story, read
from app.workload.prompts import PromptSet
from engine import records as r
from engine.config import EngineConfig, LiveSettings
from tests.support.clients import Seen
from tests.support.inprocess import InProcessEngine

TICK = 0.05  # s of the story's clock a turn

BEFORE = LiveSettings(max_batch=4, max_context=64, kv_blocks=48, block_size=8, token_budget=64, draft_length=3)

RESERVE = """
title = "Reserve or page"
line = "for a test"
order = 1

[settings]
kv_tokens = 512
max_context = 128
max_batch = 16

[[requests]]
max_tokens = 112
stop = ["#"]
prompts = ["aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "cccccccccccccccc", "dddddddddddddddd", "eeeeeeeeeeeeeeee",
           "ffffffffffffffff", "gggggggggggggggg", "hhhhhhhhhhhhhhhh"]

[[phase]]
name = "reserved"
settings = { allocation = "reserved" }
before = "First reserved."
after = "{a.running_max} of {a.requests} ran."

[[phase]]
name = "paged"
before = "Then paged."
during = [{ at = 0.0, text = "Running now." }]

[verdict]
figure = "running_max"
more = "{b.running_max / a.running_max} as many."
less = "fewer"
even = "as many"
"""


def story(text: str = RESERVE, **replaced: str) -> Story:
    """`replaced`: a key of the text's own lines and what stands after it instead."""
    lines = text.splitlines()
    for key, value in replaced.items():
        place = next(i for i, line in enumerate(lines) if line.startswith(f"{key} = "))
        lines[place] = f"{key} = {value}"
    return read("test.toml", "\n".join(lines).encode())


class Held:
    """What a story asked of the workload."""

    def __init__(self) -> None:
        self.held = False

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False


class Stage:
    """Attributes: engine, player, seen (all messages), arrivals, captions (each as it came)."""

    def __init__(self, settings: LiveSettings = BEFORE, reading: float = 1.0, steps_per_poll: int = 1):
        config = EngineConfig(block_size=settings.block_size, settings=settings)
        self.engine = InProcessEngine(config, steps_per_poll=steps_per_poll)
        self.seen, self.arrivals, self.now = Seen(), Held(), 100.0
        self.captions: list[str] = []
        self._number = 0
        self.player = Player(self.engine, Draw(PromptSet.load()), self.next_number, self.arrivals, reading)
        self.turn()

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            messages = self.engine.poll()
            self.seen.extend(messages)
            self.player.take(messages)
            self.now += TICK
            self.player.tick(self.now)
            if self.player.caption and self.captions[-1:] != [self.player.caption]:
                self.captions.append(self.player.caption)

    def until(self, met: Callable[[], object], turns: int = 5000) -> None:
        for _ in range(turns):
            if met():
                return
            self.turn()
        raise AssertionError(f"not met in {turns} turns: {self.player.stage}, {self.player.caption!r}")

    def play(self, told: Story) -> None:
        """To its end, whatever that is."""
        self.player.start(told)
        self.until(lambda: not self.player.going)

    def submit(self, max_tokens: int = 40) -> int:
        """A request of somebody else."""
        number = self.next_number() + 1000
        request = r.Request(number=number, token_ids=[1, 2, 3, 4], max_tokens=max_tokens, ignore_eos=True)
        self.engine.send(r.Submit(id=self.engine.next_id(), request=request))
        return number
