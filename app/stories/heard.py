"""What a player knows of the engine from its messages: whether it is up and busy, its settings, its answers."""

from __future__ import annotations

from engine import records as r
from engine.config import LiveSettings


class Heard:
    """Attributes:
    settings: in force; None before the engine told.
    up: it is there. lives: how often one came or went.
    busy: sequences that run or wait. status: as told last.
    acks: answers to commands whose ids are in it, None until they came.
    """

    def __init__(self) -> None:
        self.settings: LiveSettings | None = None
        self.up = False
        self.lives = 0
        self.busy = 0
        self.status = r.Status(paused=False, delay=0.0, idle=True)
        self.acks: dict[int, r.Ack | None] = {}

    def hear(self, message: r.Message) -> str:
        """Take one message; why a story that goes on can't be trusted any more, "" where it can."""
        match message:
            case r.StepRecord() | r.Between():
                self.settings, self.busy = message.settings, message.running + message.waiting
            case r.Keyframe():
                self.settings, self.busy = message.settings, len(message.running) + len(message.waiting)
            case r.Status():
                self.status = message
            case r.Ack():
                self._answered(message)
            case r.Ready():
                self.settings, self.busy, self.up = message.settings, 0, True
                self.lives += 1
                self.status = r.Status(paused=message.config.start_paused, delay=0.0, idle=True)
                return "The engine was started again, so the story ended."
            case r.Died() | r.Ended():
                self.up = False
                self.lives += 1
                return "The engine stopped, and the story with it."
            case r.Gap():
                return "This machine was too busy to read all that the engine said; tell the story again."
        return ""

    def _answered(self, ack: r.Ack) -> None:
        if ack.id in self.acks:
            self.acks[ack.id] = ack
        if ack.ok and ack.settings is not None:
            self.settings = ack.settings
