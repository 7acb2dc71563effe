"""What is asked of the engine: requests, and commands about them and about the engine itself."""

from __future__ import annotations

from typing import Literal

import msgspec


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How one request is sampled; None takes the live setting's default at the time of admission."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    speculate: bool = True  # False: never draft for this request


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """`number` is chosen by the sender, unique in its session; a sequence number is the engine's own."""

    number: int
    prompt: str = ""
    system: str = ""  # a system message, chat only
    raw: bool = False  # leave the chat template out
    token_ids: list[int] | None = None  # takes the place of `prompt` and its template
    max_tokens: int = 128
    n: int = 1  # samples, each a sequence of its own; of seed s they draw as if asked for alone with s, s + 1, …
    beams: int = 0  # beam search of that width; 0 = none
    length_penalty: float = 1.0  # beams: a finished one scores its log-probability ÷ length ** length_penalty
    early_stopping: bool | Literal["never"] = False  # beams: when a search ends; see engine.beam_search
    stop: list[str] = []
    ignore_eos: bool = False
    priority: int = 0  # lower runs first
    sampling: Sampling = Sampling()
    label: str = ""  # where it came from: workload, playground, bench


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    id: int
    request: Request


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Abort the request of that number; number None aborts all."""

    id: int
    number: int | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Change live settings: all of them, or none and the Ack says why."""

    id: int
    changes: dict[str, int | float | bool | str | list[float]]


class Pause(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    id: int


class Resume(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    id: int


class StepOnce(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """While paused: run this many steps, then stay paused."""

    id: int
    steps: int = 1


class SetDelay(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Slow motion: hold each step back by this long. 0 = full speed."""

    id: int
    seconds: float


class SendKeyframe(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Send a keyframe now, and from now on one every `every` steps (0 = none, None = leave as is)."""

    id: int
    every: int | None = None


class Watch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Send with each step of one sequence its k likeliest next tokens, and how its drafts were decided; seq None stops
    that."""

    id: int
    seq: int | None = None
    k: int = 10


class Shadow(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Run the request of that number again without drafts, in steps that nobody else has a row in, and compare the two.
    Its Ack says why where it can't be: engine.shadow."""

    id: int
    number: int


def shadow_number(number: int) -> int:
    """The number of a request's second run. Senders count up, so theirs are never negative."""
    return -1 - number


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End the child in good order."""

    id: int


Command = Submit | Abort | Change | Pause | Resume | StepOnce | SetDelay | SendKeyframe | Watch | Shadow | Stop
