"""Plays a story: a state machine that records and a clock drive. No Qt, no threads, no waiting.

The play is written from top to bottom as a generator; each `yield` gives control back until a message came or time
went by. It steers the engine by the same commands as the window. Whatever way it ends (to the end, left, refused, the
engine gone), its own requests are aborted and the settings in force before are asked for again.

Two clocks: captions are read on the *story clock*, which stands still while the engine is paused. Arrivals follow the
*engine clock*, so that slow motion slows them too; between records it is guessed to go on with the story clock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Protocol

from app.stories.asks import Draw, Planned, groups
from app.stories.heard import Heard
from app.stories.measure import SECOND, Measured
from app.stories.results import Results
from app.stories.script import PHASES, Story, Value
from engine import records as r
from ui.contracts import StoryShown, StoryStage

LEAST_READING = 3.0  # s that a caption stands at least
WORDS_PER_SECOND = 2.8  # of a listener who also looks at the picture
REFRESH = 0.2  # s between two states of the curves


class Commands(Protocol):
    """What a player needs of a source."""

    def send(self, command: r.Command) -> None: ...

    def next_id(self) -> int: ...


class Arrivals(Protocol):
    """The built-in workload, held while a story goes on."""

    def hold(self) -> None: ...

    def release(self) -> None: ...


class _Trouble(Exception):
    """The story can't go on; the message is for the audience."""


class Player:
    """Tells one story after the other.

    Attributes:
        story: that goes on or is over; None before the first and after `close`.
        results: what was measured of it.
        stage, caption, note, verdict: see `ui.contracts.StoryShown`.
    """

    def __init__(
        self, source: Commands, draw: Draw, next_number: Callable[[], int], arrivals: Arrivals, reading: float = 1.0
    ):
        """`reading`: 1 = captions stay as long as they take to read, 0 = nobody reads."""
        self._source, self._draw, self._next_number, self._arrivals = source, draw, next_number, arrivals
        self._reading = reading
        self.story: Story | None = None
        self.results: Results | None = None
        self.stage: StoryStage = "over"
        self.caption = self.note = self.verdict = ""
        self._play: Generator[None, None, None] | None = None
        self._engine = Heard()
        # time
        self._now: float | None = None
        self._paused = False
        self._clock = 0.0  # the story's, s
        self._heard_at = 0.0  # story clock at the last record
        # the story
        self._part = 0
        self._owed: dict[str, Value] = {}  # settings to be given back
        self._own: set[int] = set()  # requests of its that may be alive
        self._skipped = False
        self._away = False  # put away before the settings are back
        self._shown: StoryShown | None = None
        self._shown_at = -REFRESH
        self._stale = True

    # --- what the user does ---

    @property
    def going(self) -> bool:
        return self._play is not None

    def start(self, story: Story) -> None:
        if self._play is not None:
            if not self._away:
                return
            self._play.close()  # what it still owes is given back after this one
        else:
            self._arrivals.hold()
        self._away = False
        self.story, self.results, self._part = story, Results(story), 0
        self.caption = self.note = self.verdict = ""
        self._play = self._whole(story)
        self._go()

    def skip(self) -> None:
        self._skipped = self.going and self.stage == "telling"
        self._go()

    def leave(self) -> None:
        if self.going and self.stage == "restoring":
            self._away = True  # an engine that is gone or silent takes its time, and nobody has to look on
        elif self.going:
            self._end_with(f"Left “{self._told.title}” before its end.", left=True)

    def close(self) -> None:
        if not self.going:
            self.story = self.results = self._shown = None

    # --- what drives it ---

    def tick(self, now: float, paused: bool | None = None) -> None:
        """`now`: monotonic seconds. `paused`: as far as anybody knows; None = as the engine said last."""
        passed, self._now = now - (now if self._now is None else self._now), now
        self._paused = self._engine.status.paused if paused is None else paused
        if not self._paused:
            self._clock += passed
        self._go()

    def take(self, messages: Iterable[r.Message]) -> None:
        """What came from the engine, oldest first. Always to be called, also while no story goes on."""
        for message in messages:
            lost = self._engine.hear(message)
            if lost and self.going and self.stage not in ("clearing", "restoring"):
                self._end_with(lost)
            if isinstance(message, r.StepRecord | r.Between):
                self._heard_at = self._clock
            if self.going and self.stage == "running":
                phase = self._measured.phases[-1]
                phase.apply(message)
                self._own -= {n for n, answer in phase.answers.by_number.items() if answer.ended}
                self._stale = True
        self._go()

    @property
    def shown(self) -> StoryShown | None:
        if self.story is None or self._away:
            return None
        now = self._now or 0.0
        if self._shown is None or (self._stale and (not self.going or now - self._shown_at >= REFRESH)):
            self._shown, self._shown_at, self._stale = self._picture(), now, False
        return self._shown

    # --- the play, from top to bottom ---

    def _whole(self, story: Story) -> Generator[None, None, None]:
        yield from self._clear()
        for index in range(len(PHASES)):
            self._part = index
            while not (yield from self._set(index)):
                yield from self._clear()
            yield from self._tell(story.phase[index].before)
            yield from self._run(index)
            if story.phase[index].after:
                yield from self._tell(story.phase[index].after)
        self.verdict = self._measured.verdict()
        yield from self._restore()
        self._away = False
        self._finish("over", self.verdict)

    def _clear(self) -> Generator[None, None, None]:
        """Wait for an engine that has nothing to do."""
        self._say("clearing", "")
        while (busy := self._engine.busy) or not self._engine.up or self._engine.settings is None:
            many = f"{busy} request{'s that run' if busy != 1 else ' that runs'}"
            waits = busy and self._engine.up  # of one that is gone nobody runs any more
            self._say("clearing", f"Waiting for {many} to end first." if waits else "Waiting for the engine.")
            yield

    def _set(self, index: int) -> Generator[None, None, bool]:
        """The phase's settings in force, and nothing left in the pool: turned off, the prefix cache lets go of all.
        False when the engine went before that, which ends a story that has begun."""
        story, settings = self._told, self._engine.settings
        assert settings is not None
        if not index:  # an engine started again has what was in force by then: what is owed already stays
            self._owed = {key: getattr(settings, key) for key in sorted(story.touched)} | self._owed
        if not story.phase[index].keep_cache and not (yield from self._change({"prefix_cache": False})):
            return False
        return (yield from self._change(story.settings_of(index, settings.block_size)))

    def _run(self, index: int) -> Generator[None, None, None]:
        """Send the requests as they are due, and wait for the end of the last one."""
        story = self._told
        planned = self._draw.plan(story, PHASES[index], self._next_number)
        phase = Measured(groups(planned))
        self._measured.phases.append(phase)
        self._own = {one.request.number for one in planned}
        self._heard_at = self._clock
        self._say("running", self.caption)
        captions = sorted(story.phase[index].during, key=lambda caption: caption.at)
        told = 0
        while not phase.ended:
            passed = self._passed(phase)
            due = [one for one in planned if one.at <= passed]
            planned = planned[len(due) :]
            self._submit(due)
            while told < len(captions) and captions[told].at <= passed:
                told += 1
            if told and phase.times:  # before a first step there is nothing to say of it
                self._say("running", self._measured.fill(captions[told - 1].text))
            yield
            _check(phase)
        if phase.foreign:
            self.note = "Requests of others ran beside it, and are in the running sequences, blocks and waste."

    def _tell(self, text: str) -> Generator[None, None, None]:
        """Show a caption for as long as it takes to read."""
        self._skipped = False
        self._say("telling", self._measured.fill(text))
        until = self._clock + self._reading * reading_time(text)
        yield  # at least once, so that it is seen
        while self._clock < until and not self._skipped:
            yield

    def _restore(self) -> Generator[None, None, None]:
        """Abort what is left of its own, and bring the settings back."""
        self._say("restoring", self.caption)
        for number in self._own:
            self._source.send(r.Abort(id=self._source.next_id(), number=number))
        self._own = set()
        while self._owed:
            failing = "The settings from before could not be brought back"
            if self._engine.up and (yield from self._change(self._owed, failing)):
                self._owed = {}
            elif self._owed:  # a dead engine starts again with the settings that it died with
                yield

    def _change(self, changes: dict[str, Value], failing: str = "") -> Generator[None, None, bool]:
        """Make the changes that are any, and wait for the answer; False when the engine went before it gave one.
        Raises _Trouble with the refusal."""
        wanted = {key: value for key, value in changes.items() if getattr(self._engine.settings, key) != value}
        if not wanted:
            return True
        command, life = r.Change(id=self._source.next_id(), changes=wanted), self._engine.lives
        self._engine.acks[command.id] = None
        self._source.send(command)
        while self._engine.acks[command.id] is None:
            yield
            if self._engine.lives != life:
                del self._engine.acks[command.id]
                return False
        ack = self._engine.acks.pop(command.id)
        assert ack is not None
        if not ack.ok:
            self._owed = {} if failing else self._owed
            raise _Trouble(f"{failing or 'The engine refused what the story needs'}: {ack.message}.")
        return True

    # --- helpers ---

    @property
    def _told(self) -> Story:
        assert self.story is not None
        return self.story

    @property
    def _measured(self) -> Results:
        assert self.results is not None
        return self.results

    def _go(self) -> None:
        """Play on as far as it goes."""
        if self._play is None:
            return
        try:
            next(self._play)
        except StopIteration:
            pass
        except _Trouble as trouble:
            self._end_with(str(trouble))

    def _end_with(self, words: str, left: bool = False) -> None:
        """End in good order: give back what is owed, then say why."""

        def ending() -> Generator[None, None, None]:
            try:
                yield from self._restore()
            except _Trouble as trouble:
                self._away = False
                self._finish("failed", f"{words} {trouble}" if str(trouble) != words else words)
                return
            away, self._away = left or self._away, False
            self._finish("failed", words)
            if away:
                self.close()

        if self._play is not None:
            self._play.close()
        self.caption = words
        self._play = ending()
        self._go()

    def _finish(self, stage: StoryStage, words: str) -> None:
        self._play = None
        self._say(stage, words)
        self._arrivals.release()

    def _say(self, stage: StoryStage, caption: str) -> None:
        if (stage, caption) != (self.stage, self.caption):
            self.stage, self.caption = stage, caption
            self._stale, self._shown_at = True, -REFRESH

    def _submit(self, due: list[Planned]) -> None:
        """Hand them over so that all arrive at one moment of the engine's clock."""
        if not due:
            return
        hold = len(due) > 1 and not (self._paused or self._engine.status.paused)
        if hold:
            self._source.send(r.Pause(id=self._source.next_id()))
        for one in due:
            self._source.send(r.Submit(id=self._source.next_id(), request=one.request))
        if hold:
            self._source.send(r.Resume(id=self._source.next_id()))

    def _passed(self, phase: Measured) -> float:
        """Seconds of the engine's clock since the phase began."""
        guess = self._engine.status.idle or not self._engine.status.delay  # slow motion: time goes by as steps do
        since = self._clock - self._heard_at if guess else 0.0
        return ((phase.clock - phase.start) / SECOND if phase.start else 0.0) + since

    def _picture(self) -> StoryShown:
        story, results = self._told, self._measured
        return StoryShown(
            key=story.key,
            title=story.title,
            stage=self.stage,
            names=(story.phase[0].name, story.phase[1].name),
            part=self._part,
            progress=(1.0, 1.0) if self.verdict else (results.progress(0, self._part), results.progress(1, self._part)),
            caption=self.caption,
            note=self.note,
            panels=results.panels(),
            verdict=self.verdict,
        )


def reading_time(text: str) -> float:
    """Seconds that a caption stands; none for none."""
    return max(LEAST_READING, len(text.split()) / WORDS_PER_SECOND) if text else 0.0


def _check(phase: Measured) -> None:
    """Raises _Trouble where a request can't end as the story wants it to."""
    for answer in phase.of(""):
        if answer.finish_reason == "refused":
            raise _Trouble(f"A request of the story was not served: {answer.error}.")
        if answer.finish_reason == "aborted":
            raise _Trouble("A request of the story was aborted, so its figures would mean nothing.")
