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

from app.stories import figures
from app.stories.asks import Draw, Planned
from app.stories.measure import SECOND, Measured
from app.stories.script import PHASES, Story, Value
from app.stories.words import fill
from engine import records as r
from engine.config import LiveSettings
from ui.contracts import StoryShown, StoryStage

EVEN = 0.03  # a ratio this close to 1 is called even
LEAST_READING = 3.0  # s that a caption stands at least
WORDS_PER_SECOND = 2.8  # of a listener who also looks at the picture
REFRESH = 0.2  # s between two states of the curves
_BEFORE, _AFTER = 0.1, 0.9  # of a phase's progress: where its requests begin and end


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
        phases: what was measured, one a phase that began.
        stage, caption, note, verdict: see `ui.contracts.StoryShown`.
    """

    def __init__(
        self, source: Commands, draw: Draw, next_number: Callable[[], int], arrivals: Arrivals, reading: float = 1.0
    ):
        """`reading`: 1 = captions stay as long as they take to read, 0 = nobody reads."""
        self._source, self._draw, self._next_number, self._arrivals = source, draw, next_number, arrivals
        self._reading = reading
        self.story: Story | None = None
        self.phases: list[Measured] = []
        self.stage: StoryStage = "over"
        self.caption = self.note = self.verdict = ""
        self._play: Generator[None, None, None] | None = None
        # the engine, as far as was heard
        self._settings: LiveSettings | None = None
        self._up = False
        self._busy = 0  # sequences that run or wait
        self._acks: dict[int, r.Ack | None] = {}  # answers that are waited for
        self._status = r.Status(paused=False, delay=0.0, idle=True)
        self._lives = 0  # engines that came or went
        # time
        self._now: float | None = None
        self._paused = False
        self._clock = 0.0  # the story's, s
        self._heard_at = 0.0  # story clock at the last record
        self._begun_at = 0.0  # … when the phase's requests were sent
        # the story
        self._part = 0
        self._owed: dict[str, Value] = {}  # settings to be given back
        self._own: set[int] = set()  # requests of its that may be alive
        self._skipped = False
        self._shown: StoryShown | None = None
        self._shown_at = -REFRESH
        self._stale = True

    # --- what the user does ---

    @property
    def going(self) -> bool:
        return self._play is not None

    def start(self, story: Story) -> None:
        if self.going:
            return
        self.story, self.phases, self._part = story, [], 0
        self.caption = self.note = self.verdict = ""
        self._arrivals.hold()
        self._play = self._whole(story)
        self._go()

    def skip(self) -> None:
        self._skipped = self.going and self.stage == "telling"
        self._go()

    def leave(self) -> None:
        if self.going and self.stage != "restoring":
            self._end_with(f"Left “{self._told.title}” before its end.", left=True)

    def close(self) -> None:
        if not self.going:
            self.story, self.phases, self._shown = None, [], None

    # --- what drives it ---

    def tick(self, now: float, paused: bool | None = None) -> None:
        """`now`: monotonic seconds. `paused`: as far as anybody knows; None = as the engine said last."""
        passed, self._now = now - (now if self._now is None else self._now), now
        self._paused = self._status.paused if paused is None else paused
        if not self._paused:
            self._clock += passed
        self._go()

    def take(self, messages: Iterable[r.Message]) -> None:
        """What came from the engine, oldest first. Always to be called, also while no story goes on."""
        for message in messages:
            self._hear(message)
            if self.going and self.stage == "running" and self.phases:
                self.phases[-1].apply(message)
                self._own -= {n for n, answer in self.phases[-1].answers.by_number.items() if answer.ended}
                self._stale = True
        self._go()

    @property
    def shown(self) -> StoryShown | None:
        if self.story is None:
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
            yield from self._set(index)
            yield from self._tell(story.phase[index].before)
            yield from self._run(index)
            if story.phase[index].after:
                yield from self._tell(story.phase[index].after)
        self.verdict = self._judge()
        yield from self._restore()
        self._finish("over", self.verdict)

    def _clear(self) -> Generator[None, None, None]:
        """Wait for an engine that has nothing to do."""
        self._say("clearing", "")
        while not self._up or self._settings is None or self._busy:
            many = f"{self._busy} request{'s that run' if self._busy != 1 else ' that runs'}"
            self._say("clearing", f"Waiting for {many} to end first." if self._busy else "Waiting for the engine.")
            yield

    def _set(self, index: int) -> Generator[None, None, None]:
        """The phase's settings in force, and nothing left in the pool: turned off, the prefix cache lets go of all."""
        story, settings = self._told, self._settings
        assert settings is not None
        if not index:
            self._owed = {key: getattr(settings, key) for key in sorted(story.touched)}
        if not story.phase[index].keep_cache:
            yield from self._change({"prefix_cache": False})
        yield from self._change(story.settings_of(index, settings.block_size))

    def _run(self, index: int) -> Generator[None, None, None]:
        """Send the requests as they are due, and wait for the end of the last one."""
        story = self._told
        planned = self._draw.plan(story, PHASES[index], self._next_number)
        phase = Measured(groups_of(planned))
        self.phases.append(phase)
        self._own = {one.request.number for one in planned}
        self._begun_at = self._heard_at = self._clock
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
                self._say("running", self._fill(captions[told - 1].text))
            yield
            _check(phase)
        if phase.foreign:
            self.note = "Requests of others ran beside it, and are in the running sequences, blocks and waste."

    def _tell(self, text: str) -> Generator[None, None, None]:
        """Show a caption for as long as it takes to read."""
        self._skipped = False
        self._say("telling", self._fill(text))
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
            if self._up and (yield from self._change(self._owed, "The settings from before could not be brought back")):
                self._owed = {}
            elif self._owed:  # a dead engine starts again with the settings that it died with
                yield

    def _change(self, changes: dict[str, Value], failing: str = "") -> Generator[None, None, bool]:
        """Make the changes that are any, and wait for the answer; False when the engine went before it gave one.
        Raises _Trouble with the refusal."""
        wanted = {key: value for key, value in changes.items() if getattr(self._settings, key) != value}
        if not wanted:
            return True
        command, life = r.Change(id=self._source.next_id(), changes=wanted), self._lives
        self._acks[command.id] = None
        self._source.send(command)
        while self._acks[command.id] is None:
            yield
            if self._lives != life:
                del self._acks[command.id]
                return False
        ack = self._acks.pop(command.id)
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
                self._finish("failed", f"{words} {trouble}" if str(trouble) != words else words)
                return
            self._finish("failed", words)
            if left:
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
        hold = len(due) > 1 and not (self._paused or self._status.paused)
        if hold:
            self._source.send(r.Pause(id=self._source.next_id()))
        for one in due:
            self._source.send(r.Submit(id=self._source.next_id(), request=one.request))
        if hold:
            self._source.send(r.Resume(id=self._source.next_id()))

    def _passed(self, phase: Measured) -> float:
        """Seconds of the engine's clock since the phase began."""
        guess = self._status.idle or not self._status.delay  # slow motion: time goes by as steps do
        since = self._clock - self._heard_at if guess else 0.0
        return ((phase.clock - phase.start) / SECOND if phase.start else 0.0) + since

    def _hear(self, message: r.Message) -> None:
        match message:
            case r.StepRecord() | r.Between():
                self._settings = message.settings
                self._busy = message.running + message.waiting
                self._heard_at = self._clock
            case r.Keyframe():
                self._settings, self._busy = message.settings, len(message.running) + len(message.waiting)
            case r.Status():
                self._status = message
            case r.Ack():
                if message.id in self._acks:
                    self._acks[message.id] = message
                if message.ok and message.settings is not None:
                    self._settings = message.settings
            case r.Ready():
                self._settings, self._busy, self._up = message.settings, 0, True
                self._lives += 1
                self._status = r.Status(paused=message.config.start_paused, delay=0.0, idle=True)
                self._lost("The engine was started again, so the story ended.")
            case r.Died() | r.Ended():
                self._up = False
                self._lives += 1
                self._lost("The engine stopped, and the story with it.")
            case r.Gap():
                self._lost("This machine was too busy to read all that the engine said; tell the story again.")

    def _lost(self, words: str) -> None:
        """What was under way can't be trusted any more."""
        if self.going and self.stage not in ("clearing", "restoring"):
            self._end_with(words)

    def _fill(self, text: str) -> str:
        return fill(text, self._figure, figures.FORMATS)

    def _figure(self, phase: str, group: str, name: str) -> float:
        index = PHASES.index(phase)
        return figures.of(self.phases[index] if index < len(self.phases) else None, group, name)

    def _judge(self) -> str:
        """The sentence that fits what was measured."""
        verdict = self._told.verdict
        a, b = (self._figure(phase, "", verdict.figure) for phase in PHASES)
        near = abs(b - a) <= EVEN * abs(a)
        return self._fill(verdict.even if near else verdict.more if b > a else verdict.less)

    def _picture(self) -> StoryShown:
        story = self._told
        return StoryShown(
            key=story.key,
            title=story.title,
            stage=self.stage,
            names=(story.phase[0].name, story.phase[1].name),
            part=self._part,
            progress=(self._progress(0), self._progress(1)),
            caption=self.caption,
            note=self.note,
            panels=tuple(figures.panel(name, self.phases) for name in story.panels) if self.phases else (),
            verdict=self.verdict,
        )

    def _progress(self, index: int) -> float:
        if index < self._part or self.verdict:
            return 1.0
        if index > self._part or len(self.phases) <= index:
            return 0.0
        phase = self.phases[index]
        if phase.ended:
            return _AFTER
        answers = phase.of("")
        ended = sum(answer.ended for answer in answers) / max(1, len(answers))
        known = self.phases[0].tokens if index else 0
        share = min(1.0, phase.tokens / known) if known else ended
        return _BEFORE + (_AFTER - _BEFORE) * max(ended, share)


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


def groups_of(planned: list[Planned]) -> dict[str, list[int]]:
    """Numbers of all requests under "", and of those that go by a name."""
    groups: dict[str, list[int]] = {"": [one.request.number for one in planned]}
    for one in planned:
        if one.name:
            groups.setdefault(one.name, []).append(one.request.number)
    return groups
