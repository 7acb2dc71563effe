"""A story in the real window on a real child: by keys, with arrivals going on, to its end or left in the middle."""

from __future__ import annotations

import msgspec
import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from engine import records as r
from tests.support.live_window import SETTINGS, LiveWindow, tiny_config
from tests.support.tiny_directory import make_directory
from ui.contracts import WorkloadSettings

pytestmark = pytest.mark.slow
BUSY = WorkloadSettings(rate=4.0, prompt_tokens=64, output_tokens=8)


@pytest.fixture
def live(qapp, tmp_path):
    shown = LiveWindow(tiny_config(make_directory(tmp_path)), workload=BUSY)
    yield shown
    shown.close()


def press(live: LiveWindow, key: Qt.Key) -> None:
    QTest.keyClick(live.window, key)
    live.drawn()


def story_numbers(live: LiveWindow) -> set[int]:
    sent = [command.request for command in live.source.sent if isinstance(command, r.Submit)]
    return {request.number for request in sent if request.label == "story"}


def test_told_to_its_end_beside_arrivals(live):
    live.run(1.0, arrivals=True)
    press(live, Qt.Key.Key_1)
    assert not live.workload.settings.running and live.window.story.isVisible()
    live.pump(lambda: live.stories.shown.stage == "telling", arrivals=True)
    QTest.keyClick(live.window, Qt.Key.Key_Space)
    live.run(0.3)
    QTest.keyClick(live.window, Qt.Key.Key_Space)

    def over() -> bool:
        if live.stories.shown.stage == "telling":
            live.stories.skip()
        return not live.stories.shown.going

    live.pump(over, timeout=200, arrivals=True)
    shown = live.stories.shown
    assert shown.stage == "over", shown.caption
    assert shown.panels[0].facts == ("at most 4", "at most 8")
    live.pump(lambda: live.window.deck.filled == "story")
    assert live.source.settings == SETTINGS and live.workload.settings.running
    assert len(story_numbers(live)) == 16
    live.click(live.window.story.leave)
    live.drawn()
    assert live.stories.shown is None and live.window.story.isHidden() and live.window.deck.filled is None


def test_left_in_the_middle(live):
    press(live, Qt.Key.Key_1)
    live.pump(lambda: live.stories.shown.stage == "telling")
    press(live, Qt.Key.Key_N)
    live.pump(lambda: len(live.window.mirror.live.running) == 4)
    assert live.source.settings.allocation == "reserved"
    other = live.submit(list(range(20)), 30)
    press(live, Qt.Key.Key_L)
    live.pump(lambda: live.stories.shown is None)
    live.await_end([other])
    assert live.source.settings == SETTINGS and live.workload.settings.running
    aborted = {event.number for event in live.source.seen.events(r.Aborted)}
    assert aborted == story_numbers(live) and other not in aborted


def test_what_a_model_can_not_do_is_told(live):
    """The tiny model was trained for 512 tokens, and the story needs more."""
    press(live, Qt.Key.Key_4)
    live.pump(lambda: not live.stories.shown.going)
    live.drawn()
    caption = live.window.story.caption.text()
    assert "The engine refused what the story needs: max_context" in caption and "trained for 512" in caption
    assert live.source.settings == SETTINGS and live.workload.settings.running
    assert msgspec.structs.asdict(live.stories.shown)["verdict"] == "" and live.window.deck.filled is None
