"""The real window on the real engine in a real child, with a tiny model: what a person would do, a test does.

`Recorded` is the live source that also remembers every message and command, so that a test can recount by itself
what the window shows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic

from PySide6.QtCore import QEvent, QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QSlider, QStyle, QWidget

from app.sources.live import LiveEngine
from app.stories.live import LiveStories
from app.workload.arrivals import PoissonWorkload
from app.workload.prompts import PromptSet
from engine import records as r
from engine.client import EngineClient
from engine.config import EngineConfig, LiveSettings
from tests.support.clients import Seen
from tests.support.synthetic import NoProbe
from tests.support.tiny_models import VOCABULARY
from ui.contracts import WorkloadSettings
from ui.controls.slider import SettingSlider
from ui.window import Window

QUIET = WorkloadSettings(running=False)
# the tiny model was "trained" for 512 tokens
SETTINGS = LiveSettings(max_batch=8, max_context=256, kv_blocks=160, block_size=8, token_budget=64, draft_length=4)


def tiny_config(model: Path, settings: LiveSettings = SETTINGS, **options: object) -> EngineConfig:
    """One thread, so that a step takes a millisecond or three on any machine and leaves a core to the window."""
    return EngineConfig(
        model=str(model), device="cpu", dtype="float32", block_size=8, threads=1, settings=settings, **options
    )  # type: ignore[arg-type]


class Recorded(LiveEngine):
    """Attributes:
        seen: every message polled, oldest first. sent: every command handed over.
        deaf: kinds of commands that are only noted, not sent.
    """

    def __init__(self, config: EngineConfig):
        self.seen = Seen()
        self.sent: list[r.Command] = []
        self.deaf: tuple[type, ...] = ()
        super().__init__(config)

    def poll(self, limit: int = 0) -> list[r.Message]:
        messages = super().poll(limit)
        self.seen.extend(messages)
        return messages

    def send(self, command: r.Command) -> None:
        self.sent.append(command)
        if not isinstance(command, self.deaf):
            super().send(command)

    def steps(self) -> list[r.StepRecord]:
        return self.seen.of(r.StepRecord)


class LiveWindow:
    """A QApplication must be there. Requests of the workload arrive only while `pump` is told to let them.

    Attributes: window, source, workload, stories.
    """

    def __init__(
        self, config: EngineConfig, size: tuple[int, int] = (1600, 1000),
        workload: WorkloadSettings = QUIET, ready: bool = True,
    ):  # fmt: skip
        self.source = Recorded(config)
        prompts = PromptSet.load()
        self.workload = PoissonWorkload(self.source, prompts, workload)
        self.stories = LiveStories(self.source, prompts, self.workload)
        self.window = Window(
            self.source, self.workload, NoProbe(), theme="dark", scale=1.0, size=size, stories=self.stories
        )
        self.window.show()
        self.window.activateWindow()
        assert QTest.qWaitForWindowActive(self.window, 5000)
        if ready:
            self.pump(lambda: self.window.mirror.ready is not None and self.source.seen.of(r.Status))
            self.drawn()

    def close(self) -> None:
        self.window.close()
        self.source.close()
        assert self.source.join(10)
        self.window.deleteLater()
        QApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)

    def pump(self, met: Callable[[], object], timeout: float = 60, arrivals: bool = False) -> None:
        """Let window and engine run until `met`."""
        end, before = monotonic() + timeout, monotonic()
        while not met():
            now = monotonic()
            assert now < end, f"not met in {timeout} s"
            if arrivals and self.window.serving:
                self.workload.advance(now - before)
            self.stories.tick(now, self.window.transport.paused)
            before = now
            QTest.qWait(10)

    def run(self, seconds: float, arrivals: bool = False) -> None:
        end = monotonic() + seconds
        self.pump(lambda: monotonic() >= end, seconds + 60, arrivals)

    def drawn(self) -> None:
        """Until what has come is on the window, all of it. A frame may only collect, figures and hints are shown a few
        times a second, and some views take turns."""
        docks = self.window.deck.docks.values()
        self._next_frame()
        turns = {dock: dock._next for dock in docks if dock.shown and dock.due}
        self.pump(lambda: all(not dock.due or dock._next != turn for dock, turn in turns.items()))
        self._next_frame()  # the summaries that these views gave

    def _next_frame(self) -> None:
        """One that draws, with figures and hints."""
        frame = self.window.frame
        frame.hurry()
        self.pump(lambda: frame._numbers_at and frame._hints_at)

    # --- requests ---

    def submit(self, prompt: list[int], tokens: int, **fields: object) -> int:
        number = self.workload.next_number()
        fields.setdefault("sampling", r.Sampling(temperature=0.0))
        self.workload.submit(
            r.Request(number=number, token_ids=prompt, max_tokens=tokens, ignore_eos=True, label="test", **fields)
        )
        return number

    def load(self, count: int, prompt: int = 24, tokens: int = 150) -> list[int]:
        """Requests that keep the engine busy; prompts differ and repeat themselves."""
        return [self.submit(words(n, prompt), tokens) for n in range(count)]

    def await_end(self, numbers: list[int]) -> None:
        """Until these requests have ended, one way or another."""
        def ended() -> bool:
            events = self.source.seen.events(r.Finished) + self.source.seen.events(r.Aborted)
            return set(numbers) <= {event.number for event in events}

        self.pump(ended)

    @property
    def idle(self) -> bool:
        mirror = self.window.mirror
        return mirror.status.idle and not mirror.live.running and not mirror.live.waiting

    # --- mouse ---

    def click(self, widget: QWidget, at: QPoint | None = None) -> None:
        QTest.mouseClick(widget, Qt.MouseButton.LeftButton, pos=widget.rect().center() if at is None else at)

    def drag(self, setting: SettingSlider, value: float, hold: Callable[[], object] | None = None) -> float:
        """Pull the handle to where `value` is, in a few moves; the value that it came to. `hold`: what to wait for
        before letting go."""
        slider = setting.slider
        self.window.controls.area.ensureWidgetVisible(slider)
        QApplication.processEvents()
        start, end = handle(slider, slider.value()), handle(slider, setting._scale.position(value))
        QTest.mousePress(slider, Qt.MouseButton.LeftButton, pos=start)
        for part in (0.3, 0.7, 1.0):
            QTest.mouseMove(slider, start + QPoint(round((end.x() - start.x()) * part), 0))
            QTest.qWait(5)
        reached = setting.value
        if hold is not None:
            self.pump(hold)
        QTest.mouseRelease(slider, Qt.MouseButton.LeftButton, pos=end)
        return reached

    def settle(self) -> None:
        """Until nothing that was asked for waits for an answer."""
        sender = self.window.controls.sender
        self.pump(lambda: not sender._in_flight)


def handle(slider: QSlider, position: int) -> QPoint:
    """The middle of the handle when the slider is at a position."""
    length = slider.style().pixelMetric(QStyle.PixelMetric.PM_SliderLength, None, slider)
    room = max(1, slider.width() - length)
    x = QStyle.sliderPositionFromValue(slider.minimum(), slider.maximum(), position, room)
    return QPoint(x + length // 2, slider.height() // 2)


def words(seed: int, count: int) -> list[int]:
    """A prompt of `count` tokens in which things repeat."""
    pattern = [(seed * 31 + 7 * i * i + i) % VOCABULARY for i in range(9)]
    return (pattern * (count // 9 + 1))[:count]


def undisturbed(config: EngineConfig, requests: list[r.Request]) -> dict[int, list[int]]:
    """Output tokens by number of the same engine without a window, all requests sent at once."""
    client, seen = EngineClient(config), Seen()
    try:
        for request in requests:
            client.send(r.Submit(id=client.next_id(), request=request))
        client.send(r.Resume(id=client.next_id()))
        end = monotonic() + 60
        while len(seen.events(r.Finished)) < len(requests):
            assert monotonic() < end
            client.wait(0.05)
            seen.extend(client.poll())
    finally:
        client.close()
        assert client.join(10)
    return seen.tokens()
