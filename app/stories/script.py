"""A story as it is written: a TOML file in assets/stories, read, checked and never run by anything here.

A story has two phases, *a* and *b*, that serve the same requests under different settings. A broken file gives one
message with file, field and remedy, and costs only its own story.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Literal

import msgspec

from app.stories import figures
from app.stories.words import BadTemplate, check
from engine.config import LiveSettings, SettingRefused, change

Value = bool | int | float | str
PHASES = ("a", "b")
# Sizes of pools in tokens, so that a story means the same with any block size.
IN_TOKENS = {"kv_tokens": "kv_blocks", "swap_tokens": "swap_blocks"}
# What a story doesn't mention is as it is by default, so that it means the same whatever was set before it.
BASE: dict[str, Value] = {
    key: getattr(LiveSettings(), key)
    for key in (
        "allocation", "batching", "admission", "preemption", "chunked_prefill", "prefix_cache", "watermark",
        "token_budget", "max_gap", "draft_method",
    )
} | {"draft_length": 0}  # fmt: skip


class BadStory(ValueError):
    """A story that can't be told; the message names file, field and remedy."""


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Ask(_Part, kw_only=True):
    """Requests that arrive together. Their prompts are written out, or `count` are drawn from the built-in ones."""

    prompts: list[str] = []
    count: Annotated[int, msgspec.Meta(ge=0, le=256)] = 0
    prompt_tokens: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 64  # of those drawn, about
    system: str = ""  # name of a system message in assets/prompts/systems.json
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | list[int]  # or [least, most], drawn
    ignore_eos: bool = False
    n: Annotated[int, msgspec.Meta(ge=1, le=16)] = 1  # samples of each
    beams: Annotated[int, msgspec.Meta(ge=0, le=8)] = 0
    stop: list[str] = []
    at: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.0  # s after the phase's start, on the engine's clock
    phase: Literal["both", "a", "b"] = "both"
    name: str = ""  # shown in lists; figures of a name are those of its requests alone


class Caption(_Part, kw_only=True):
    """`at`: seconds after the phase's start, on the engine's clock."""

    at: Annotated[float, msgspec.Meta(ge=0, le=120)] = 0.0
    text: str


class Phase(_Part, kw_only=True):
    name: str  # what stands on the curves
    settings: dict[str, Value] = {}
    before: str  # told before anything runs
    during: list[Caption] = []
    after: str = ""
    keep_cache: bool = False  # go on with the blocks that the phase before left


class Verdict(_Part, kw_only=True):
    """One sentence by what was measured: whether `figure` of b is more, less or about as much as that of a."""

    figure: str
    more: str
    less: str
    even: str


class Story(_Part, kw_only=True):
    title: str
    line: str  # what it is about, for lists
    order: int
    seed: int = 7
    panels: tuple[str, ...] = ("running", "waste", "rate", "ttft")
    settings: dict[str, Value] = {}  # of both phases
    requests: list[Ask]
    phase: list[Phase]
    verdict: Verdict
    key: str = ""  # the file's name without its ending

    def settings_of(self, index: int, block_size: int) -> dict[str, Value]:
        """What a phase changes, pools in blocks."""
        merged = BASE | self.settings | self.phase[index].settings
        return {
            IN_TOKENS.get(key, key): -(-int(value) // block_size) if key in IN_TOKENS else value
            for key, value in merged.items()
        }

    @property
    def touched(self) -> set[str]:
        """Settings that it may change at any time."""
        parts = (BASE, self.settings, *(phase.settings for phase in self.phase))
        return {IN_TOKENS.get(key, key) for part in parts for key in part}


def load(folder: Traversable | None = None) -> tuple[list[Story], list[str]]:
    """All stories in their order, and what is wrong with those that can't be told."""
    folder = folder or files("assets") / "stories"
    found: list[Story] = []
    problems: list[str] = []
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".toml"):
            continue
        try:
            found.append(read(file.name, file.read_bytes()))
        except BadStory as problem:
            problems.append(str(problem))
        except OSError as error:
            problems.append(f"{file.name}: {error.strerror or error}")
    return sorted(found, key=lambda story: (story.order, story.key)), problems


def read(name: str, data: bytes) -> Story:
    """One file. Raises BadStory."""
    try:
        raw = tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise BadStory(f"{name}: not UTF-8; save the file as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise BadStory(f"{name}: not TOML: {error}; mend that line") from None
    except RecursionError:
        raise BadStory(f"{name}: brackets are nested too deep; no field of a story needs more than two") from None
    try:
        story = msgspec.convert({**raw, "key": name.removesuffix(".toml")}, Story)
    except msgspec.ValidationError as error:
        raise BadStory(f"{name}: {_in_words(str(error))}") from None
    for field, problem in _problems(story):
        raise BadStory(f"{name}: {field}: {problem}")
    return story


_REMEDIES = {
    "unknown field": "; take it out, or mend its spelling",
    "missing required field": "; write it",
}


def _in_words(error: str) -> str:
    """'Expected `int`, got `str` - at `$.phase[0].name`' with the field first."""
    what, _, where = error.partition(" - at ")
    field = where.strip("`").removeprefix("$").removeprefix(".")
    remedy = next((words for sign, words in _REMEDIES.items() if sign in what), "")
    return f"{field + ': ' if field else ''}{what[0].lower()}{what[1:]}{remedy}"


def _problems(story: Story) -> Iterable[tuple[str, str]]:
    """(field, what is wrong and the remedy)."""
    if len(story.phase) != len(PHASES):
        yield "phase", f"a story has two phases to compare, this has {len(story.phase)}; write two [[phase]] tables"
    if not story.requests:
        yield "requests", "nothing would run; write a [[requests]] table"
    for index, ask in enumerate(story.requests):
        if bool(ask.prompts) == bool(ask.count):
            yield f"requests[{index}]", "give either prompts or a count of built-in ones, and not both"
        if isinstance(ask.max_tokens, list) and not (
            len(ask.max_tokens) == 2 and 1 <= ask.max_tokens[0] <= ask.max_tokens[1]
        ):
            yield f"requests[{index}].max_tokens", "a range is [least, most], as in [16, 96]"
    for phase in PHASES:
        if not any(ask.phase in ("both", phase) for ask in story.requests):
            yield "requests", f"phase {phase} has none; give a [[requests]] table without `phase`"
    for where, part in _settings(story):
        known = {field.name for field in msgspec.structs.fields(LiveSettings)} | set(IN_TOKENS)
        for key in part:
            if key not in known:
                yield f"{where}.{key}", f"there is no such setting; settings are {', '.join(sorted(known))}"
            if key in ("block_size", *IN_TOKENS.values()):
                yield f"{where}.{key}", "a story leaves the block size and gives pools as kv_tokens and swap_tokens"
        try:
            change(LiveSettings(), {IN_TOKENS.get(key, key): value for key, value in part.items()})
        except SettingRefused as refused:
            yield f"{where}.{refused.key}", str(refused)
    for index, panel in enumerate(story.panels):
        if panel not in figures.PANELS:
            yield f"panels[{index}]", f"there is no panel {panel!r}; panels are {', '.join(figures.PANELS)}"
    if story.verdict.figure not in figures.FIGURES:
        yield "verdict.figure", f"there is no figure {story.verdict.figure!r}; {_figures()}"
    names = {ask.name for ask in story.requests if ask.name}
    for where, text in _texts(story):
        try:
            check(text, figures.FIGURES, names)
        except BadTemplate as error:
            yield where, f"{error}; {_figures()}"


def _figures() -> str:
    return f"figures are {', '.join(figures.FIGURES)}"


def _settings(story: Story) -> list[tuple[str, dict[str, Value]]]:
    return [("settings", story.settings), *((f"phase[{i}].settings", p.settings) for i, p in enumerate(story.phase))]


def _texts(story: Story) -> Iterable[tuple[str, str]]:
    for index, phase in enumerate(story.phase):
        yield f"phase[{index}].before", phase.before
        yield f"phase[{index}].after", phase.after
        for place, caption in enumerate(phase.during):
            yield f"phase[{index}].during[{place}].text", caption.text
    for key in ("more", "less", "even"):
        yield f"verdict.{key}", getattr(story.verdict, key)
