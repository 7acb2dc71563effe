"""Stories for windows under test: what was asked is remembered, and what is shown is what the test says."""

from __future__ import annotations

import msgspec
import numpy as np

from ui.contracts import Curve, StoryLine, StoryPanel, StoryShown


class FakeStories:
    """Implements `ui.contracts.Stories`. `asked`: what was called, oldest first."""

    def __init__(self, count: int = 8, problems: tuple[str, ...] = ()):
        self.listed = tuple(
            StoryLine(key=f"story-{i}", title=f"Story {i}", line=f"what story {i} is about") for i in range(count)
        )
        self.problems = problems
        self.shown: StoryShown | None = None
        self.asked: list[str] = []

    def start(self, key: str) -> None:
        self.asked.append(f"start {key}")
        self.shown = shown(key=key)

    def skip(self) -> None:
        self.asked.append("skip")

    def leave(self) -> None:
        self.asked.append("leave")
        self.shown = None

    def close(self) -> None:
        self.asked.append("close")
        self.shown = None

    def show(self, **changes: object) -> None:
        self.shown = msgspec.structs.replace(self.shown, **changes)


def shown(**changes: object) -> StoryShown:
    """A story in its first caption."""
    first = StoryShown(
        key="story-0", title="Story 0", stage="telling", names=("reserved", "paged"), part=0, progress=(0.0, 0.0),
        caption="Eight requests come at once.", note="", panels=(), verdict="",
    )  # fmt: skip
    return msgspec.structs.replace(first, **changes)


def panels(runs: int = 2, steps: int = 200) -> tuple[StoryPanel, ...]:
    """Four panels over curves that look like a story's."""
    times = [np.linspace(0, 6, steps), np.linspace(0, 3.4, steps)]
    values = [np.where(times[0] < 4, 4.0, 2.0), np.where(times[1] < 2.5, 8.0, 3.0)]
    curves = tuple(Curve(times=t, values=v) for t, v in zip(times, values, strict=True))[:runs]
    dots = tuple(Curve(times=t[::25], values=t[::25] * 0.8) for t in times)[:runs]
    facts = ("at most 4", "at most 8")[:runs]
    return (
        StoryPanel(title="Running sequences", unit="", kind="steps", top=0.0, curves=curves, facts=facts),
        StoryPanel(title="Waste of KV slots held", unit="%", kind="steps", top=100.0, curves=curves, facts=facts),
        StoryPanel(title="Tokens per second", unit="", kind="steps", top=0.0, curves=curves, facts=facts),
        StoryPanel(title="Time to first token, each request", unit="s", kind="dots", top=0.0, curves=dots, facts=facts),
    )
