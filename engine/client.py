"""The engine as its owner sees it: a child process that takes commands and gives records.

starting → ready → ended | dead. Nothing here waits for the child: commands go out through a thread, records
come in through another into a bounded `Backlog`, and `poll` takes what is there. Whatever way the child ends,
a `Died` in plain words or an `Ended` is the last message from it, and `restart` begins anew with the settings
last in force.

The child is spawned, not forked: it has its own interpreter lock, none of the window's state, and a fault or
an out-of-memory kill takes only it. This module must stay importable without torch, so the worker is looked
up by name, and only in the child.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from time import monotonic
from typing import Literal

import msgspec

from engine.child import WORKER, Child
from engine.config import Dtype, EngineConfig, LiveSettings
from engine.records import (
    Aborted,
    Ack,
    Between,
    Command,
    Died,
    Ended,
    Finished,
    Keyframe,
    Message,
    Pause,
    Ready,
    Refused,
    SendKeyframe,
    SetDelay,
    Status,
    StepRecord,
    Submit,
    Submitted,
    WrongSchema,
    decode,
    encode,
)

_FRESH = Status(paused=False, delay=0.0, idle=True)
OWN = 0  # id of commands that the client gives itself; `next_id` counts from 1
State = Literal["starting", "ready", "ended", "dead"]


class EngineClient:
    """`poll` and `send` belong to one thread, the owner's; neither waits."""

    def __init__(self, config: EngineConfig, target: str = WORKER):
        self.config = config
        # last in force, as far as polled
        self.settings = msgspec.structs.replace(config.settings, block_size=config.block_size)
        self.ready: Ready | None = None
        self._target = target
        self._ids = itertools.count(1)
        self._local: deque[Message] = deque()  # answers that need no child
        self._state: State = "starting"
        self._told = False  # a Died or Ended was polled in this life
        self._owed: dict[int, float] = {}  # commands not yet answered: id, and when they were sent (s, monotonic)
        self._heard = monotonic()  # when the last message was polled
        self._status = _FRESH
        self._open: dict[int, Submit] = {}  # requests that haven't ended, as far as polled, by number
        self._left: Counter[int] = Counter()  # of these: sequences that haven't ended
        self._child = Child(msgspec.msgpack.encode(config), target)

    @property
    def state(self) -> State:
        """As of the last message polled."""
        return self._state

    @property
    def pid(self) -> int | None:
        """The child's process id; None until it is spawned."""
        return self._child.pid

    @property
    def form(self) -> Dtype:
        """The form of weights that was asked for last."""
        return self.config.dtype

    @property
    def silence(self) -> float:
        """Seconds that a running engine has owed a word: the answer to a command, or a step while it has work."""
        if self._state != "ready":
            return 0.0
        waits = [self._heard + self._status.delay] if not (self._status.idle or self._status.paused) else []
        waits += [max(self._heard, sent) for sent in itertools.islice(self._owed.values(), 1)]
        return max(0.0, monotonic() - min(waits)) if waits else 0.0

    def next_id(self) -> int:
        return next(self._ids)

    def poll(self, limit: int = 0) -> list[Message]:
        """The messages that came since the last call, oldest first; at most `limit` of them (0 = all)."""
        messages = list(self._local)
        self._local.clear()
        for message in messages:
            self._follow(message)
        for data in self._child.backlog.take(limit):
            try:
                message = decode(data)
            except WrongSchema as error:
                message = Died(reason=f"The engine speaks another version: {error}. Reinstall Servescope.")
                self._child.close()
            if not (isinstance(message, Ack) and message.id == OWN):
                messages.append(message)
            self._follow(message)
        if self._child.backlog.keyframe_due():
            self._child.send(encode(SendKeyframe(id=OWN)))
        return messages

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until there is something to poll or the child is gone; for callers without a frame timer."""
        return bool(self._local) or self._child.backlog.wait(timeout)

    def send(self, command: Command) -> None:
        """Hand over a command; its Ack comes among the messages. Also possible before `ready`."""
        try:
            data = encode(command)
        except (UnicodeEncodeError, OverflowError) as error:
            self._refuse(command, error)
            return
        if self._state in ("ended", "dead"):
            if not self._told:
                self._local.append(Died(reason="The engine isn't running, so it took no command. Restart it."))
                self._told = True
            return
        self._owed[command.id] = monotonic()
        if isinstance(command, Submit):
            self._open[command.request.number] = command
        self._child.send(data)

    def restart(self) -> None:
        """Start again with the same configuration and the settings last in force; nothing that ran goes on."""
        self._child.close()
        self._open.clear()
        self._left.clear()
        self._status = _FRESH
        size = self.settings.block_size
        self.config = msgspec.structs.replace(self.config, settings=self.settings, block_size=size)
        self.ready = None
        self._state = "starting"
        self._told = False
        self._owed.clear()
        self._child = Child(msgspec.msgpack.encode(self.config), self._target)

    def rebuild(self, form: Dtype) -> None:
        """Start again with the weights in another form. What hasn't ended starts over; a pause, slow motion stay."""
        again, status = list(self._open.values()), self._status
        self.config = msgspec.structs.replace(self.config, dtype=form)
        self.restart()
        if status.paused:
            self.send(Pause(id=OWN))
        if status.delay:
            self.send(SetDelay(id=OWN, seconds=status.delay))
        for submit in again:
            self.send(msgspec.structs.replace(submit, id=self.next_id()))

    def close(self) -> None:
        """Stop for good; returns at once, and the child is gone within seconds, killed if need be."""
        self._child.close()

    def join(self, timeout: float | None = None) -> bool:
        """After `close`: wait until the child is gone; False when it wasn't in time."""
        return self._child.join(timeout)

    def _follow(self, message: Message) -> None:
        self._heard = monotonic()
        if isinstance(message, Ack):
            self._owed.pop(message.id, None)
        match message:
            case StepRecord() | Between():
                self.settings = message.settings
                for event in message.events:
                    if isinstance(event, Submitted):
                        self._left[event.number] = event.of
                    elif isinstance(event, Finished | Aborted):
                        self._ended(event.number)
            case Keyframe():
                self.settings = message.settings
                self._close_all_but(Counter(sequence.number for sequence in message.sequences))
            case Refused():
                self._open.pop(message.number, None)
            case Ack(ok=True, settings=LiveSettings() as settings):
                self.settings = settings
            case Status():
                self._status = message
            case Ready():
                self.ready, self.settings, self._state = message, message.settings, "ready"
            case Died():
                if self._state == "ready":  # one of them may be what it died of
                    self._open.clear()
                    self._left.clear()
                self._state, self._told = "dead", True
            case Ended() if self._state != "dead":
                self._state = "ended"

    def _ended(self, number: int) -> None:
        """One of the sequences that serve a request."""
        self._left[number] -= 1
        if self._left[number] <= 0:
            del self._left[number]
            self._open.pop(number, None)

    def _close_all_but(self, numbers: Counter[int]) -> None:
        """A keyframe names all that haven't ended, but for those that the engine has yet to take; ends may have been
        lost before it."""
        self._left = numbers
        self._open = {n: submit for n, submit in self._open.items() if n in numbers or submit.id in self._owed}

    def _refuse(self, command: Command, error: Exception) -> None:
        """Text that is no Unicode and numbers beyond 64 bits can't be encoded; answer as the engine would."""
        message = "the text holds invalid Unicode (a lone surrogate); remove or replace that character"
        if isinstance(error, OverflowError):
            message = "a number in it is far too large (beyond 64 bits); choose a smaller one"
        self._local.append(Ack(id=command.id, ok=False, step=0, message=message))
        if isinstance(command, Submit):
            self._local.append(Refused(number=command.request.number, message=message))
