"""A `Source` over the synthetic stream, with twins of workload and probe that do nothing."""

from __future__ import annotations

import msgspec

from engine.config import Dtype
from engine.records import (
    Ack,
    Change,
    Command,
    Message,
    Pause,
    Request,
    Resume,
    SendKeyframe,
    SetDelay,
    Status,
    StepOnce,
    Stop,
)
from tests.support.synthetic_world import Synthetic
from ui.contracts import DeviceMemory, HostMemory, Provenance, SourceState, WorkloadSettings


class SyntheticSource:
    """Deterministic: `advance(n)` makes n steps, `poll` hands them over. Answers commands as an engine would.

    Attributes:
        sent: every command that came, oldest first.
    """

    title = "synthetic stream"
    provenance: Provenance = "simulated"
    silence = 0.0
    form: Dtype = "bfloat16"
    fixed = "a synthetic stream has no weights"

    def __init__(
        self, blocks: int = 512, sequences: int = 16, seed: int = 7, keyframe_every: int = 0, fill: float = 0.6
    ):
        self._make = lambda: Synthetic(blocks, sequences, seed, fill=fill)
        self._every = keyframe_every
        self._ids = 0
        self.sent: list[Command] = []
        self._start()

    def _start(self) -> None:
        self.world = self._make()
        self.state: SourceState = "ready"
        self._status = Status(paused=False, delay=0.0, idle=False)
        self._queue: list[Message] = [self.world.ready(), self.world.keyframe(), self._status]

    def advance(self, steps: int = 1) -> None:
        for _ in range(steps):
            self._queue.append(self.world.next())
            if self._every and self.world.step % self._every == 0:
                self._queue.append(self.world.keyframe())

    def poll(self, limit: int = 0) -> list[Message]:
        count = limit or len(self._queue)
        out, self._queue = self._queue[:count], self._queue[count:]
        return out

    def send(self, command: Command) -> None:
        self.sent.append(command)
        problem = ""
        if isinstance(command, Change):
            try:
                self.world.change(**command.changes)
            except (TypeError, ValueError) as error:
                problem = str(error)
        elif isinstance(command, StepOnce):
            self.advance(command.steps)
        elif isinstance(command, SendKeyframe):
            self._queue.append(self.world.keyframe())
            self._every = self._every if command.every is None else command.every
        elif isinstance(command, Pause | Resume):
            self._say(paused=isinstance(command, Pause))
        elif isinstance(command, SetDelay):
            self._say(delay=command.seconds)
        elif isinstance(command, Stop):
            self.state = "ended"
        self._queue.append(
            Ack(
                id=command.id, ok=not problem, step=self.world.step + 1, message=problem,
                settings=self.world.settings,
            )
        )

    def _say(self, **changes: bool | float) -> None:
        self._status = msgspec.structs.replace(self._status, **changes)
        self._queue.append(self._status)

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def restart(self) -> None:
        self._start()

    def rebuild(self, form: Dtype) -> None:
        self.form = form
        self._start()

    def close(self) -> None:
        self.state = "ended"


class NoWorkload:
    """Sends nothing; remembers what it was asked.

    Attributes:
        asked: requests submitted, oldest first. bursts: counts of `send`.
    """

    def __init__(self) -> None:
        self.settings = WorkloadSettings()
        self.asked: list[Request] = []
        self.bursts: list[int] = []
        self._number = 0

    def change(self, settings: WorkloadSettings) -> None:
        self.settings = settings

    def send(self, count: int = 1) -> None:
        self.bursts.append(count)

    def submit(self, request: Request) -> None:
        self.asked.append(request)

    def next_number(self) -> int:
        self._number += 1
        return self._number


class NoProbe:
    """A machine without an NVIDIA GPU, or one with the sample it is given."""

    def __init__(self, sample: DeviceMemory | None = None):
        self._sample = sample

    def latest(self) -> DeviceMemory | None:
        return self._sample

    def host(self) -> HostMemory:
        return HostMemory(own=None, available=None)

    @property
    def reason(self) -> str:
        return "" if self._sample else "no NVIDIA GPU: the stream is synthetic"
