"""The stories of a window: the list, and the player behind `ui.contracts.Stories`."""

from __future__ import annotations

from app.sources.live import LiveEngine
from app.stories import script
from app.stories.asks import Draw
from app.stories.play import Player
from app.workload.arrivals import PoissonWorkload
from app.workload.prompts import PromptSet
from ui.contracts import StoryLine, StoryShown


class LiveStories:
    """Implements `ui.contracts.Stories` over a source that tells it what it polls."""

    def __init__(self, source: LiveEngine, prompts: PromptSet, workload: PoissonWorkload):
        stories, problems = script.load()
        self._stories = {story.key: story for story in stories}
        self.listed = tuple(StoryLine(key=s.key, title=s.title, line=s.line) for s in stories)
        self.problems = tuple(problems)
        self._player = Player(source, Draw(prompts), workload.next_number, workload)
        source.listeners.append(self._player.take)

    @property
    def shown(self) -> StoryShown | None:
        return self._player.shown

    def tick(self, now: float, paused: bool) -> None:
        """Time went by: `now` is monotonic seconds, `paused` what the window knows or asked for last."""
        self._player.tick(now, paused)

    def start(self, key: str) -> None:
        self._player.start(self._stories[key])

    def skip(self) -> None:
        self._player.skip()

    def leave(self) -> None:
        self._player.leave()

    def close(self) -> None:
        self._player.close()
