"""The source that runs here: an engine in a child process of this program, measured as it serves."""

from __future__ import annotations

from collections.abc import Callable

from engine.client import EngineClient
from engine.config import EngineConfig
from engine.records import Message
from ui.contracts import Provenance


class LiveEngine(EngineClient):
    """`ui.contracts.Source` over the engine's client, which already speaks it but for its name.

    Attributes:
        listeners: called with the messages of every poll: who drives the engine beside the window hears what it hears.
    """

    def __init__(self, config: EngineConfig, *target: str):
        super().__init__(config, *target)
        self.listeners: list[Callable[[list[Message]], None]] = []

    def poll(self, limit: int = 0) -> list[Message]:
        messages = super().poll(limit)
        for listener in self.listeners if messages else ():
            listener(messages)
        return messages

    @property
    def provenance(self) -> Provenance:
        return "measured" if self.config.simulation is None else "simulated"

    @property
    def fixed(self) -> str:
        return ""

    @property
    def title(self) -> str:
        return "live engine" if self.config.simulation is None else f"simulated {self.config.simulation.profile}"
