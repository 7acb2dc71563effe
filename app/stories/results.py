"""What both phases of a story came to, so far: captions filled with it, the verdict, curves, and how far each is."""

from __future__ import annotations

from app.stories import figures
from app.stories.measure import Measured
from app.stories.script import PHASES, Story
from app.stories.words import fill
from ui.contracts import StoryPanel

EVEN = 0.03  # a ratio this close to 1 is called even
_BEFORE, _AFTER = 0.1, 0.9  # of a phase's progress: where its requests begin and end


class Results:
    """Attributes: phases: what was measured, one a phase that began."""

    def __init__(self, story: Story):
        self._story = story
        self.phases: list[Measured] = []

    def figure(self, phase: str, name: str, group: str = "") -> float:
        """Of a phase "a" or "b", or of one group of its requests; NaN before it began."""
        index = PHASES.index(phase)
        return figures.of(self.phases[index], group, name) if index < len(self.phases) else figures.NAN

    def fill(self, text: str) -> str:
        return fill(text, lambda phase, group, name: self.figure(phase, name, group), figures.FORMATS)

    def verdict(self) -> str:
        """The sentence that fits what was measured."""
        verdict = self._story.verdict
        a, b = (self.figure(phase, verdict.figure) for phase in PHASES)
        near = abs(b - a) <= EVEN * abs(a)
        return self.fill(verdict.even if near else verdict.more if b > a else verdict.less)

    def panels(self) -> tuple[StoryPanel, ...]:
        return tuple(figures.panel(name, self.phases) for name in self._story.panels) if self.phases else ()

    def progress(self, index: int, part: int) -> float:
        """How far a phase is, 0..1, while `part` goes on."""
        if index != part or index >= len(self.phases):
            return 1.0 if index < part else 0.0
        phase = self.phases[index]
        if phase.ended:
            return _AFTER
        answers = phase.of("")
        ended = sum(answer.ended for answer in answers) / max(1, len(answers))
        known = self.phases[0].tokens if index else 0
        share = min(1.0, phase.tokens / known) if known else ended
        return _BEFORE + (_AFTER - _BEFORE) * max(ended, share)
