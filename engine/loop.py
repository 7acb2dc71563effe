"""What happens between two steps: commands are obeyed, then perhaps a step runs.

The loop owns pause, single steps and slow motion, and keeps the engine's clock free of the time they take. It
asks `idle_for()` how long nothing is to be done, `handle()` obeys one command, `turn()` runs a step. It has no
threads and no pipe of its own: the worker drives it in the child, and tests drive it in-process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from engine import records as r
from engine.compile_log import Entry
from engine.config import Limit, LiveSettings, SettingRefused

OWN = 0  # id of commands that the engine's side gives itself; these get no Ack
# Commands that wait for the step that runs while the next was to be planned: none runs while they are obeyed.
ENDS_STEP = (r.Change, r.Pause, r.StepOnce, r.SetDelay, r.Stop)
MIN_SHRINK = 16  # blocks given up at least when memory runs out during a step


class Steps(Protocol):
    """What the loop needs of an engine; `engine.core.Engine` is one."""

    @property
    def settings(self) -> LiveSettings: ...
    @property
    def bounds(self) -> dict[str, Limit]: ...
    @property
    def last_step(self) -> int: ...
    @property
    def has_work(self) -> bool: ...
    def submit(self, number: int, token_ids: list[int], request: r.Request) -> int: ...
    def abort(self, number: int | None) -> None: ...
    def change(self, changes: dict[str, int | float | bool | str]) -> LiveSettings: ...
    def step(self, alone: bool) -> r.StepRecord: ...
    def drain(self) -> r.StepRecord | None: ...
    def between(self) -> r.Between | None: ...
    def keyframe(self) -> r.Keyframe: ...
    def now(self) -> int: ...
    def hold(self, ns: int) -> None: ...
    def watch(self, seq: int | None, k: int) -> None: ...


class Loop:
    """`refusals`: exceptions that refuse a request or a change; `out_of_memory`: those that a smaller pool cures.
    `compiled`: what was compiled since it was last asked."""

    def __init__(
        self,
        engine: Steps,
        encode_request: Callable[[r.Request], list[int]],
        send: Callable[[r.Message], None],
        *,
        refusals: tuple[type[Exception], ...] = (),
        out_of_memory: tuple[type[Exception], ...] = (),
        paused: bool = False,
        compiled: Callable[[], list[Entry]] = list,
        clock: Callable[[], int] = time.monotonic_ns,
    ):
        self.engine = engine
        self.stopped = False
        self._encode_request = encode_request
        self._send = send
        self._refusals = refusals
        self._out_of_memory = out_of_memory
        self._compiled = compiled
        self._clock = clock
        self._paused = paused
        self._granted = 0  # steps allowed while paused
        self._delay = 0.0  # s
        self._due = 0  # monotonic ns before which slow motion holds the next step
        self._held_since: int | None = clock() if paused else None
        self._keyframe_every = 0  # steps
        self._status: r.Status | None = None
        self._obeys: dict[type, Callable[..., None]] = {
            r.Submit: self._submit, r.Abort: self._abort, r.Change: self._change, r.Pause: self._pause,
            r.Resume: self._resume, r.StepOnce: self._step_once, r.SetDelay: self._set_delay,
            r.SendKeyframe: self._send_keyframe, r.Watch: self._watch, r.Shadow: self._shadow,
            r.Stop: self._stop,
        }  # fmt: skip

    def begin(self) -> None:
        """Say how things stand before the first step."""
        self._send(self.engine.keyframe())
        self.settle()

    def handle(self, command: r.Command) -> None:
        """Obey one command and answer it."""
        self._account()
        if isinstance(command, ENDS_STEP):
            self._deliver(self.engine.drain)
        self._obeys[type(command)](command)
        self._tell_compiled(self.engine.last_step + 1)
        self._mark()

    def idle_for(self) -> float | None:
        """Seconds until the next step is due: 0 = now, None = not before a command comes."""
        if not self.engine.has_work or (self._paused and not self._granted):
            return None
        return max(0, self._due - self._clock()) / 1e9

    def settle(self) -> None:
        """Call before waiting: say what changed without a step, and in what mood the engine waits."""
        if (between := self.engine.between()) is not None:
            self._send(between)
        self._say_status()

    def turn(self) -> None:
        """Run one step if one is due."""
        if self.stopped or self.idle_for() != 0:
            return
        self._say_status()
        self._account()
        self._held_since = None
        record = self._deliver(lambda: self.engine.step(alone=self._paused or self._delay > 0))
        if record is None:
            return
        if self._keyframe_every and record.step % self._keyframe_every == 0:
            self._send(self.engine.keyframe())
        self._granted = max(0, self._granted - 1) if self.engine.has_work else 0
        self._due = self._clock() + round(self._delay * 1e9)
        self._mark()

    def _deliver(self, step: Callable[[], r.StepRecord | None]) -> r.StepRecord | None:
        """End a step and send its record; None: there was none, or memory ran out in it."""
        try:
            record = step()
        except self._out_of_memory as error:
            self._shrink(error)
            return None
        if record is not None:
            self._send(record)
            self._tell_compiled(record.step, record.end_clock)
        return record

    def _tell_compiled(self, step: int, clock: int = 0) -> None:
        """A step that is slow for the first time that something is needed says so."""
        if entries := self._compiled():
            clock = clock or self.engine.now()
            what, ns = [entry.what for entry in entries], sum(entry.ns for entry in entries)
            self._send(r.Compiled(step=step, clock=clock, what=what, ns=ns))

    # --- time that doesn't count ---

    def _account(self) -> None:
        """Move the time held back since the last mark off the engine's clock, which therefore never goes back."""
        if self._held_since is not None:
            now = self._clock()
            self.engine.hold(now - self._held_since)
            self._held_since = now

    def _mark(self) -> None:
        """Whether the time from here on is held back."""
        now = self._clock()
        held = self._paused or (self.engine.has_work and now < self._due)
        self._held_since = now if held else None

    def _say_status(self) -> None:
        status = r.Status(paused=self._paused, delay=self._delay, idle=not self.engine.has_work)
        if status != self._status:
            self._status = status
            self._send(status)

    # --- commands ---

    def _ack(self, command: r.Command, **more: object) -> None:
        if command.id != OWN:
            answer: dict[str, object] = {"id": command.id, "ok": True, "step": self.engine.last_step + 1, **more}
            self._send(r.Ack(**answer))  # type: ignore[arg-type]

    def _refuse(self, command: r.Command, error: Exception) -> None:
        key = error.key if isinstance(error, SettingRefused) else ""
        self._ack(command, ok=False, message=str(error), key=key, settings=self.engine.settings)

    def _submit(self, command: r.Submit) -> None:
        request = command.request
        try:
            token_ids = self._encode_request(request)
            self._account()
            self.engine.submit(request.number, token_ids, request)
        except self._refusals as error:
            self._refuse(command, error)
            self._send(r.Refused(number=request.number, message=str(error)))
        else:
            self._ack(command)

    def _abort(self, command: r.Abort) -> None:
        self.engine.abort(command.number)
        self._ack(command)

    def _change(self, command: r.Change) -> None:
        try:
            settings = self.engine.change(command.changes)
        except (SettingRefused, *self._refusals, *self._out_of_memory) as error:
            self._refuse(command, error)
        else:
            limits = self.engine.bounds if "block_size" in command.changes else None
            self._ack(command, settings=settings, limits=limits)

    def _pause(self, command: r.Pause) -> None:
        self._paused, self._granted = True, 0
        self._ack(command)

    def _resume(self, command: r.Resume) -> None:
        self._paused, self._granted, self._due = False, 0, 0
        self._ack(command)

    def _step_once(self, command: r.StepOnce) -> None:
        """Leaves the engine paused, whatever it did before."""
        self._paused = True
        if not self.engine.has_work:
            self._ack(command, ok=False, message="there is nothing to compute: no request is running or waiting")
            return
        self._granted += max(1, command.steps)
        self._due = 0
        self._ack(command)

    def _set_delay(self, command: r.SetDelay) -> None:
        delay = command.seconds
        if not 0 <= delay <= 60:
            self._ack(command, ok=False, message=f"a delay of {delay:g} s is outside 0 to 60 s")
            return
        self._due += round((delay - self._delay) * 1e9) if self._due else 0
        self._delay = delay
        self._ack(command)

    def _send_keyframe(self, command: r.SendKeyframe) -> None:
        if command.every is not None:
            self._keyframe_every = max(0, command.every)
        # What changed before it must have been said, or a reader would apply it twice.
        if (between := self.engine.between()) is not None:
            self._send(between)
        self._send(self.engine.keyframe())
        self._ack(command)

    def _watch(self, command: r.Watch) -> None:
        try:
            self.engine.watch(command.seq, command.k)
        except self._refusals as error:
            self._ack(command, ok=False, message=str(error))
        else:
            self._ack(command)

    def _shadow(self, command: r.Shadow) -> None:
        self._account()
        try:
            self.engine.shadow(command.number)
        except self._refusals as error:
            self._ack(command, ok=False, message=str(error))
        else:
            self._ack(command)

    def _stop(self, command: r.Stop) -> None:
        self.stopped = True
        self.engine.abort(None)
        self._ack(command)
        self.settle()

    # --- faults ---

    def _shrink(self, error: Exception) -> None:
        """Memory ran out during a step: give up a part of the pool and go on, or fail with the reason."""
        now = self.engine.settings.kv_blocks
        less = now - max(MIN_SHRINK, now // 8)
        try:
            if less <= 0:
                raise error
            self.engine.change({"kv_blocks": less})
        except SettingRefused as refused:
            raise MemoryError(f"{error}; and the pool can't be made smaller: {refused}") from error
        self._send(r.Notice(message=f"Out of memory during a step: the KV pool was shrunk from {now:,} to "
                                    f"{less:,} blocks, and the step is tried again."))  # fmt: skip
