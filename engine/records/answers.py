"""What the engine says of itself: that it is ready, what became of a command, and how it ended."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.config import EngineConfig, Limit, LiveSettings, Model
from engine.roof import Roof


class Loading(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Progress before Ready. `total` 0 = not known."""

    stage: str
    done: int
    total: int
    unit: str = "bytes"


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    v: int
    pid: int
    device: str  # in words, "CPU, 2 threads" or the card's name
    runner: str  # "cpu", "cuda"
    config: EngineConfig
    settings: LiveSettings  # in force: a default that memory didn't allow was lowered
    model: Model
    block_size: int
    limits: dict[str, Limit]
    notices: list[str] = []  # what the user should know: a shrunken pool, a missing chat template
    absent: dict[str, str] = {}  # forms of weights (`EngineConfig.dtype`) that can't be had here, and why
    absent_drafts: dict[str, str] = {}  # draft methods that can't be had here, and why
    gpu: str = ""  # CUDA: the card's identifier, or its instance's, without what NVML puts in front
    roof: Roof | None = None  # over the steps of this model on this device; None: nobody said


class Ack(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer to command `id`. `step`: the first step that obeys it. Not ok: nothing changed; `message` says why."""

    id: int
    ok: bool
    step: int
    message: str = ""
    key: str = ""  # the setting refused, if one was
    settings: LiveSettings | None = None
    limits: dict[str, Limit] | None = None  # where the change moved them


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request that was not taken, with the remedy."""

    number: int
    message: str


class Status(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Sent when it changes."""

    paused: bool
    delay: float  # seconds
    idle: bool


class Notice(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something to tell the user; nothing was lost."""

    message: str
    level: Literal["info", "warning"] = "warning"


class Compiled(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something was compiled or captured while the engine served. `step`: the one that waited for it, or that came
    next. `clock`: its end on the engine clock. `ns`: what compiling took; 0 = not known apart from the step."""

    step: int
    clock: int
    what: list[str]
    ns: int


class Gap(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Records of steps first..last were dropped before a slow reader; a keyframe follows."""

    first: int
    last: int


class Died(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine is gone. `reason` is for people, `detail` for a bug report."""

    reason: str
    detail: str = ""


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The child ended in good order."""
