"""What the window needs from the program around it. No Qt, no torch: protocols and plain values.

The window reads one `Source` and doesn't care which; it steers one `Workload`. `app` implements both.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from engine.config import Dtype
from engine.records import Command, Message, Request

Provenance = Literal["measured", "derived", "simulated", "unavailable"]
SourceState = Literal["starting", "ready", "ended", "dead"]


class Source(Protocol):
    """Where records come from. All methods are called on the window's thread and none of them blocks."""

    @property
    def state(self) -> SourceState: ...

    @property
    def provenance(self) -> Provenance: ...

    @property
    def title(self) -> str:
        """One line for the source badge, such as 'live engine'."""

    @property
    def silence(self) -> float:
        """Seconds for which a running engine has owed an answer or a step; 0 when it owes none."""

    def poll(self, limit: int = 0) -> list[Message]:
        """The messages that came since the last call, oldest first; at most `limit` of them (0 = all)."""

    def send(self, command: Command) -> None:
        """Hand over a command. Its Ack comes among the messages; with no engine to take it, it is dropped."""

    def next_id(self) -> int:
        """A fresh command id."""

    @property
    def form(self) -> Dtype:
        """The form of weights that the engine was last asked to hold."""

    @property
    def fixed(self) -> str:
        """Why `rebuild` can't be done of this source, in words; "" where it can."""

    def restart(self) -> None:
        """Start again after `dead` or `ended`, with the settings last in force."""

    def rebuild(self, form: Dtype) -> None:
        """Start again with the weights in another form, also from `ready`. Requests that haven't ended start over."""

    def close(self) -> None:
        """Stop for good; returns at once, and the child is gone within seconds."""


class WorkloadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the built-in workload sends. Lengths are means over requests."""

    running: bool = True
    rate: float = 0.8  # requests/s, Poisson
    prompt_tokens: int = 180
    output_tokens: int = 96
    seed: int = 7


# The shortest built-in prompt, with its template, is 39 tokens: a mean under 64 could not be kept.
WORKLOAD_LIMITS = {"rate": (0.0, 20.0), "prompt_tokens": (64, 1024), "output_tokens": (8, 512)}


class Workload(Protocol):
    """Arrivals. Requests go to the source by themselves; the window only steers."""

    settings: WorkloadSettings

    def change(self, settings: WorkloadSettings) -> None: ...

    def send(self, count: int = 1) -> None:
        """Send `count` requests of the built-in set now."""

    def submit(self, request: Request) -> None:
        """Send a request of the user's own."""

    def next_number(self) -> int:
        """A fresh request number."""


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One NVML sample, bytes. None where the driver doesn't say (WSL2, unified memory)."""

    name: str
    total: int | None
    used: int | None
    reserved: int | None  # by the driver itself, where the second memory call tells
    process: int | None  # the engine's process
    others: int | None  # other processes


class DeviceProbe(Protocol):
    """NVML, sampled by the program by the child's pid, so that it outlives the child."""

    def latest(self) -> DeviceMemory | None:
        """The last sample; None without an NVIDIA GPU."""

    @property
    def reason(self) -> str:
        """Why there is none, in words for the user."""
