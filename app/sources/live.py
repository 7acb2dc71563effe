"""The source that runs here: an engine in a child process of this program, measured as it serves."""

from __future__ import annotations

from engine.client import EngineClient
from ui.contracts import Provenance


class LiveEngine(EngineClient):
    """`ui.contracts.Source` over the engine's client, which already speaks it but for its name."""

    @property
    def provenance(self) -> Provenance:
        return "measured"

    @property
    def fixed(self) -> str:
        return ""

    @property
    def title(self) -> str:
        return "live engine"
