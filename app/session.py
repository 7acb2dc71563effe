"""Joins a source, a workload and a memory probe to one window, and runs until it is closed.

asyncio runs inside Qt's loop by qasync for what is slow and asynchronous: arrivals and lifecycle. Nothing that
happens once a step goes through it. qasync 0.28 crashes at random in its own QThread executor (qasync #154),
so the loop gets a concurrent.futures one before anything can ask for the default.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from app import display
from app.nvml import NvmlProbe
from app.settings import Settings
from app.sources.live import LiveEngine
from app.stories.live import LiveStories
from app.workload.arrivals import PoissonWorkload
from app.workload.prompts import PromptSet
from engine.collector import YOUNG_OF_FRAMES, keep_out_of_steps
from engine.config import EngineConfig
from engine.heap import Tidy
from engine.records import Message, Ready
from ui.contracts import WorkloadSettings

log = logging.getLogger(__name__)

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
ARRIVAL_TICK = 0.05  # s; arrivals are late by at most this, far under one step's queueing


@dataclass(frozen=True)
class Appearance:
    """None: as it was when the window was last closed."""

    theme: str | None = None
    scale: float | None = None
    size: tuple[int, int] | None = None


class Session:
    """Owns the parts and ends them in order: window first, then engine, then probe."""

    def __init__(
        self,
        config: EngineConfig,
        appearance: Appearance | None = None,
        workload: WorkloadSettings | None = None,
        settings: Settings | None = None,
        source: LiveEngine | None = None,
    ):
        # the child reads its libraries and the model while this process reads Qt
        self.source = source or LiveEngine(config)
        self.probe = NvmlProbe(lambda: self.source.pid, config.gpu)
        self.source.listeners.append(self._follow)
        prompts = PromptSet.load()
        self.workload = PoissonWorkload(self.source, prompts, workload)
        self.stories = LiveStories(self.source, prompts, self.workload)
        self.window = None
        self._interrupted = False  # by Ctrl-C
        self._faulty = False  # arrivals or a story failed; told once
        self._settings = settings or Settings()
        self._appearance = appearance or Appearance()

    def run(self, until: Callable[[Session], bool] | None = None) -> int:
        """Show the window and stay until it closes, `until` says so, or Ctrl-C. Returns the exit code."""
        # From here on: raised as an exception inside a Qt call, Ctrl-C would be swallowed.
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            return self._show(until)
        finally:
            self.close()
            signal.signal(signal.SIGINT, before)

    def _interrupt(self, *_: object) -> None:
        self._interrupted = True
        if self.window is not None:
            from PySide6.QtCore import QTimer

            # not here: Python may be in the middle of painting the window that would be closed
            QTimer.singleShot(0, self.window.close)

    def _show(self, until: Callable[[Session], bool] | None) -> int:
        import qasync
        from PySide6.QtWidgets import QApplication

        with display.explained():
            application = QApplication.instance() or QApplication(["servescope"])
        application.setApplicationName("Servescope")
        application.setQuitOnLastWindowClosed(True)
        self.window = self._build_window()
        loop = qasync.QEventLoop(application)
        loop.set_default_executor(ThreadPoolExecutor(max_workers=2, thread_name_prefix="session"))
        asyncio.set_event_loop(loop)
        with loop:
            return loop.run_until_complete(self._live(application, until))

    async def _live(self, application, until) -> int:
        closed = asyncio.Event()
        application.aboutToQuit.connect(closed.set)
        if self._interrupted:  # before there was a window to close
            return INTERRUPTED
        arrivals = asyncio.ensure_future(self._arrive(until))
        arrivals.add_done_callback(lambda _: closed.set())  # `until` failed: nobody else would ever close the window
        self.window.show()
        try:
            await closed.wait()  # and nothing between: once the application quits, its loop has one more turn
            if arrivals.done():
                self.window.close()
                arrivals.result()
        finally:
            arrivals.cancel()
        return INTERRUPTED if self._interrupted else 0

    async def _arrive(self, until) -> None:
        before, tidy = time.monotonic(), Tidy()
        while True:
            await asyncio.sleep(ARRIVAL_TICK)
            tidy.turn()
            now = time.monotonic()
            try:
                if self.window.serving:  # ready, and neither paused nor in slow motion
                    self.workload.advance(now - before)
                self.stories.tick(now, self.window.transport.paused)
            except Exception:  # what runs goes on, and so does the window
                if not self._faulty:
                    log.exception("workload or story failed")
                self._faulty = True
            before = now
            if until is not None and until(self):
                self.window.close()

    def _build_window(self):
        from ui.window import Window

        return Window(
            source=self.source,
            workload=self.workload,
            probe=self.probe,
            settings=self._settings,
            theme=self._appearance.theme,
            scale=self._appearance.scale,
            size=self._appearance.size,
            stories=self.stories,
        )

    def _follow(self, messages: list[Message]) -> None:
        """The probe looks at the card that the engine says it runs on."""
        for message in messages:
            if isinstance(message, Ready):
                self.probe.follow(message.gpu)
                keep_out_of_steps(YOUNG_OF_FRAMES)  # nor into frames: modules, widgets and views are there to stay

    def close(self) -> None:
        self.source.close()
        self.probe.close()
