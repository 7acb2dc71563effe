"""What the window needs from the program around it. No Qt, no torch: protocols and plain values.

The window reads one `Source` and doesn't care which; it steers one `Workload`. `app` implements both.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.config import Dtype
from engine.records import Command, Message, Request

Provenance = Literal["measured", "derived", "simulated", "unavailable"]
SourceState = Literal["starting", "ready", "ended", "dead"]
SILENT = 4.0  # s of silence from which on it is told: most steps take less, and who waits longer wants to know


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


class HostMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What the system says now, bytes. None where it doesn't."""

    own: int | None  # pages of the engine's process that are no file's; 0 once it is gone
    available: int | None  # memory that programs may take without swapping


class DeviceProbe(Protocol):
    """NVML, sampled by the program by the child's pid, so that it outlives the child."""

    def host(self) -> HostMemory:
        """The same of the host's memory, asked now."""

    def latest(self) -> DeviceMemory | None:
        """The last sample; None without an NVIDIA GPU."""

    @property
    def reason(self) -> str:
        """Why there is none, in words for the user."""


class StoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the list of stories."""

    key: str
    title: str
    line: str


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """One run's values over seconds since it began."""

    times: NDArray[np.float64]
    values: NDArray[np.float64]


class StoryPanel(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity in both runs. `kind` steps: a value holds until the next; dots: each stands for itself.

    `curves` and `facts` (a figure for each whole curve, in words) are those of the runs that began, in their order.
    """

    title: str
    unit: str
    kind: Literal["steps", "dots"]
    top: float  # where the scale ends at least; 0 = where the values do
    curves: tuple[Curve, ...]
    facts: tuple[str, ...]


# waiting for what runs already; telling a caption; running requests; giving the settings back; over; ended by trouble
StoryStage = Literal["clearing", "telling", "running", "restoring", "over", "failed"]


class StoryShown(msgspec.Struct, frozen=True, kw_only=True):
    """How a story stands. Another object whenever anything in it is another."""

    key: str
    title: str
    stage: StoryStage
    names: tuple[str, str]  # of the two runs
    part: int  # the run that goes on or comes next, 0 or 1
    progress: tuple[float, float]  # of each, 0..1
    caption: str
    note: str  # what the audience should know beside it, "" = nothing
    panels: tuple[StoryPanel, ...]
    verdict: str  # "" before both runs are over

    @property
    def going(self) -> bool:
        """Neither over nor failed."""
        return self.stage not in ("over", "failed")


class Stories(Protocol):
    """Small scripts that drive the engine for an audience. Pausing the engine pauses them."""

    listed: tuple[StoryLine, ...]
    problems: tuple[str, ...]  # stories that can't be told, and why

    @property
    def shown(self) -> StoryShown | None:
        """The story that goes on, or the last one's result until it is closed or put away; else None."""

    def start(self, key: str) -> None:
        """Begin a story; a result that is still there goes. Nothing happens while another goes on."""

    def skip(self) -> None:
        """Go on at once where only a caption is waited for."""

    def leave(self) -> None:
        """End it now: its requests are aborted, the settings in force before come back. While they do, put it away."""

    def close(self) -> None:
        """Forget the result of one that is over."""


class NoStories:
    """For a window over something that nobody drives."""

    listed: tuple[StoryLine, ...] = ()
    problems: tuple[str, ...] = ()
    shown: StoryShown | None = None

    def start(self, key: str) -> None: ...

    def skip(self) -> None: ...

    def leave(self) -> None: ...

    def close(self) -> None: ...
