"""A window over the synthetic stream, driven a frame at a time."""

from __future__ import annotations

from PySide6.QtWidgets import QApplication

from tests.support.synthetic import NoProbe, NoWorkload, SyntheticSource
from tests.ui.views_for_window import recording_views
from ui.window import Window


class Harness:
    """Attributes: window, source, workload."""

    def __init__(self, qtbot, size=(1600, 1000), steps=40, **options):
        self.source = SyntheticSource(blocks=256, sequences=8)
        self.workload = NoWorkload()
        options.setdefault("theme", "dark")
        options.setdefault("scale", 1.0)
        options.setdefault("views", recording_views())  # None: the real ones
        self.window = Window(self.source, self.workload, NoProbe(), size=size, **options)
        qtbot.addWidget(self.window)
        self.window.clock.stop()  # frames come from the test
        self.window.show()
        qtbot.waitExposed(self.window)
        self.run(steps)

    def run(self, steps: int = 1) -> None:
        """That many steps, and frames until all of them are applied: a frame's share of time may not suffice."""
        self.source.advance(steps)
        for _ in range(200):
            self.frame()
            if not self.source._queue:
                break
        self.frame()

    def frame(self, count: int = 1) -> None:
        for _ in range(count):
            self.window.frame.hurry()  # as if time enough had passed
            self.window.frame.run()
            QApplication.processEvents()

    def view(self, key: str):
        return self.window.deck.docks[key].view

    def sent(self, kind: type) -> list:
        return [command for command in self.source.sent if isinstance(command, kind)]
