"""The window's process of `bench overhead`: one engine, and observers that take turns at it on command.

A line on standard input names what is to be done, and a line of JSON answers when it is:

  headless      no window: its own loop reads the pipe and decodes the records 60 times a second, nothing else runs
  open, hidden  the window shown, or minimised
  submit N      N more requests
  frames        what frames cost since then, and the step that the window shows
  check         has the engine send a keyframe and compares the window's mirror with it, piece by piece
  stop

Whoever sends the lines can also stop this process, as a frozen window would be.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import msgspec

from app.bench.recount import differences
from app.sources.live import LiveEngine
from engine import records as r
from engine.client import EngineClient
from engine.config import EngineConfig

if TYPE_CHECKING:
    from ui.mirror import Mirror

EVERY = 1 / 60  # s between two looks of the headless reader at the pipe, as a window has them
CHILD = "engine.step_log:main"
PROMPT_TOKENS = 32
SEED = 11


class Job(msgspec.Struct, frozen=True):
    """`lengths`: least and most new tokens of a request, drawn evenly, so that streams end one by one."""

    config: EngineConfig
    lengths: tuple[int, int]
    size: tuple[int, int]


class Switched(LiveEngine):
    """A source that may be read past the window. Coming back it tells the window what it missed, as a slow reader is
    told: a gap, then a keyframe.

    Attributes:
        away: the window hasn't had the keyframe yet.
        mirror: what keyframes are compared with, when that is asked for.
        gaps: those that were really lost, first and last step.
        keyframes: how many the window had.
    """

    def __init__(self, config: EngineConfig):
        super().__init__(config, CHILD)
        self.away = False
        self.mirror: Mirror | None = None
        self.gaps: list[tuple[int, int]] = []
        self.keyframes = 0
        self._missed: list[int] = []  # first and last step that went past the window
        self._held: deque[r.Message] = deque()
        self._lost = False  # in a gap
        self._asked: int | None = None  # the command whose keyframe is to be compared
        self._answer: Callable[[list[str]], None] = print

    def skip(self) -> int:
        """Read and decode what is there; how many messages."""
        messages = EngineClient.poll(self)
        self._miss(messages)
        self.away = True
        return len(messages)

    def back(self) -> None:
        self.send(r.SendKeyframe(id=self.next_id()))

    def check(self, answer: Callable[[list[str]], None]) -> None:
        """`answer` gets what of the mirror isn't as a keyframe says that no gap ends."""
        self._answer = answer
        self._asked = self.next_id()
        self.send(r.SendKeyframe(id=self._asked))

    def poll(self, limit: int = 0) -> list[r.Message]:
        self._held.extend(super().poll(limit))
        messages: list[r.Message] = []
        while self._held:
            # by itself, so that whatever came before it is in the mirror
            if messages and isinstance(self._held[0], r.Keyframe):
                break
            messages.append(self._held.popleft())
            self._see(messages[-1])
        return self._caught_up(messages) if self.away else messages

    def _see(self, message: r.Message) -> None:
        if isinstance(message, r.Gap):
            self._lost = True
            self.gaps.append((message.first, message.last))
        elif isinstance(message, r.Keyframe):
            self.keyframes += 1
            if self._asked is not None and not self._lost and not self.away:
                assert self.mirror is not None
                self._asked = None
                self._answer(differences(self.mirror.live, message))
            self._lost = False
        elif isinstance(message, r.Ack) and message.id == self._asked:
            self.check(self._answer)  # its keyframe found no room, or ended a gap

    def _caught_up(self, messages: list[r.Message]) -> list[r.Message]:
        """Nothing that changes the mirror before the keyframe."""
        kept: list[r.Message] = []
        for message in messages:
            if self.away and isinstance(message, r.Keyframe):
                kept += [r.Gap(first=self._missed[0], last=self._missed[1])] if self._missed else []
                self.away, self._missed = False, []
            if self.away:
                self._miss([message])
            if not (self.away and isinstance(message, r.StepRecord | r.Between | r.Gap)):
                kept.append(message)
        return kept

    def _miss(self, messages: list[r.Message]) -> None:
        steps = [message.step for message in messages if isinstance(message, r.StepRecord)]
        if steps:
            self._missed = [(self._missed or steps)[0], steps[-1]]


class Observed:
    """`until` is called by the session's own tick, twenty times a second."""

    def __init__(self, job: Job):
        from app.session import Appearance, Session
        from app.settings import Unsaved
        from ui.contracts import WorkloadSettings

        self._job = job
        self._rng = random.Random(SEED)
        self._number = 0
        self._lines: SimpleQueue[str] = SimpleQueue()
        self.source = Switched(job.config)
        self.session = Session(
            job.config, Appearance("dark", 1.0, job.size), WorkloadSettings(running=False), Unsaved(), self.source
        )
        self._told = False
        self._awaited = ""  # an arm that is begun, and told when the mirror is up to date

    def run(self) -> int:
        threading.Thread(target=self._read, name="orders", daemon=True).start()
        return self.session.run(self._until)

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line.strip())
        self._lines.put("stop")

    def _until(self, session) -> bool:
        mirror = session.window.mirror
        if self.source.state == "dead":
            self._say(died=mirror.died.reason if mirror.died else "the engine died")
            return True
        if mirror.ready is not None and not self._told:
            self._told = True
            self._say(engine=self.source.pid, device=mirror.ready.device, model=mirror.ready.model.name)
        if self._awaited and not self.source.away:
            self._say(arm=self._awaited)
            self._awaited = ""
        line = self._next()
        while line == "headless":
            line = self._headless()
        return self._obey(line)

    def _next(self) -> str:
        try:
            return self._lines.get_nowait()
        except Empty:
            return ""

    def _obey(self, line: str) -> bool:
        window = self.session.window
        word, _, count = line.partition(" ")
        if word == "submit":
            self._submit(int(count))
            self._say(submitted=int(count))
        elif word in ("open", "hidden"):
            window.showNormal() if word == "open" else window.showMinimized()
            window.frames.clear()
            self._awaited = word
        elif word == "frames":
            frames, percentile = window.frames, window.frames.percentile_ms
            self._say(
                frame_ms_p50=percentile(50), frame_ms_p99=percentile(99), frames_per_s=frames.rate(),
                step=window.mirror.last_step,
            )  # fmt: skip
        elif word == "check":
            self.source.mirror = window.mirror
            self.source.check(self._checked)
        return word == "stop"

    def _headless(self) -> str:
        """Until the next line. The event loop stands still meanwhile, and with it every timer of the window."""
        self.session.window.hide()
        while self.source.skip():  # what the window left
            pass
        self._say(arm="headless")
        while self.source.state != "dead":
            line = self._next()
            if line.startswith("submit"):
                self._obey(line)
            elif line:
                self.source.back()
                return line
            self.source.skip()
            time.sleep(EVERY)
        return ""

    def _checked(self, differing: list[str]) -> None:
        gaps, self.source.gaps = self.source.gaps, []
        self._say(differing=differing[:8], gaps=gaps, keyframes=self.source.keyframes)

    def _submit(self, count: int) -> None:
        low, high = self._job.lengths
        for _ in range(count):
            self._number += 1
            ids = [100 + self._rng.randrange(40_000) for _ in range(PROMPT_TOKENS)]
            request = r.Request(
                number=self._number, token_ids=ids, max_tokens=self._rng.randint(low, high), ignore_eos=True,
                label="bench",
            )  # fmt: skip
            self.source.send(r.Submit(id=self.source.next_id(), request=request))

    def _say(self, **figures: object) -> None:
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    sys.exit(Observed(msgspec.json.decode(sys.argv[1], type=Job)).run())
