"""The top bar: figures, badge, transport, and what gives way when room is short."""

from __future__ import annotations

import math

import pytest
from PySide6.QtCore import Qt

from engine.records import Pause, Resume, SetDelay, StepOnce
from tests.ui.window_harness import Harness
from ui.contracts import SILENT
from ui.figures import Headline, headline
from ui.headline import FIGURES, HeadlineNumbers, texts
from ui.theme import Theme
from ui.transport import SPEEDS


def test_texts_of_figures():
    figures = Headline(1234.4, ttft_p50=0.084, tpot_p50=0.0049, kv_used=0.714, acceptance=0.778, running=12, waiting=3)
    assert texts(figures) == {
        "rate": "1,234", "ttft": "84 ms", "tpot": "4.9 ms", "kv": "71 %", "alpha": "0.78", "queue": "12 + 3",
    }  # fmt: skip
    nothing = Headline(math.nan, math.nan, math.nan, math.nan, math.nan, 0, 0)
    assert texts(nothing)["rate"] == "–" and texts(nothing)["alpha"] == "–" and texts(nothing)["queue"] == "0 + 0"
    assert set(texts(None).values()) == {"–"}


def test_the_least_important_figures_are_left_out(qtbot):
    numbers = HeadlineNumbers(Theme())
    qtbot.addWidget(numbers)
    assert len(numbers.shown(10_000)) == len(FIGURES)
    kept = [figure.key for figure in numbers.shown(numbers.needed(3))]
    assert kept == ["rate", "kv", "queue"]
    assert [figure.key for figure in numbers.shown(1)] == ["rate"]


def test_figures_are_the_mirrors(qtbot):
    h = Harness(qtbot, steps=200)
    expected = texts(headline(h.window.mirror, h.window.cursor))
    assert h.window.topbar.numbers.values == expected


@pytest.mark.parametrize("size", [(960, 600), (1280, 720), (1600, 1000), (3840, 2160)])
@pytest.mark.parametrize("scale", [1.0, 1.25, 1.5, 2.0])
def test_nothing_in_the_bar_overlaps_or_is_cut(qtbot, size, scale):
    h = Harness(qtbot, size=size, scale=scale, steps=5)
    bar = h.window.topbar
    parts = [w for w in (bar._name, bar.model, bar.badge, bar.pause, bar.step, bar.speed, bar.numbers) if w.isVisible()]
    for i, part in enumerate(parts):
        assert bar.rect().contains(part.geometry()), part
        for other in parts[:i]:
            assert not part.geometry().intersects(other.geometry()), (part, other)
    kept = bar.numbers.shown()
    assert len(kept) >= (3 if size[0] / scale >= 640 else 2)
    assert sum(bar.numbers._slot(figure) for figure in kept) <= bar.numbers.width()
    assert bar.badge.isVisible() or h.window.badge.isVisible()


def test_badge_says_provenance_and_state(qtbot):
    h = Harness(qtbot)
    assert h.window.topbar.badge.text() == "SIMULATED · running"
    h.source.silence = SILENT + 1  # stopped from outside, or in a very long step
    h.frame()
    assert h.window.topbar.badge.text() == "SIMULATED · no answer" and "has not answered" in h.window.banner.text
    h.source.silence = 0.0
    h.frame()
    assert h.window.topbar.badge.text() == "SIMULATED · running"
    h.window.transport.toggle()
    h.frame()
    assert h.window.topbar.badge.text() == "SIMULATED · paused"
    h.source.state = "dead"
    h.frame()
    assert h.window.topbar.badge.text() == "SIMULATED · stopped"


def test_pause_and_step_buttons(qtbot):
    h = Harness(qtbot)
    bar = h.window.topbar
    qtbot.mouseClick(bar.pause, Qt.MouseButton.LeftButton)
    assert len(h.sent(Pause)) == 1
    qtbot.mouseClick(bar.pause, Qt.MouseButton.LeftButton)  # before the answer
    assert len(h.sent(Resume)) == 1
    h.frame()
    qtbot.mouseClick(bar.step, Qt.MouseButton.LeftButton)
    assert len(h.sent(Pause)) == 2 and len(h.sent(StepOnce)) == 1
    h.frame()
    qtbot.mouseClick(bar.step, Qt.MouseButton.LeftButton)
    assert len(h.sent(Pause)) == 2 and len(h.sent(StepOnce)) == 2


def test_slow_motion(qtbot):
    h = Harness(qtbot)
    transport = h.window.transport
    half = next(speed for speed in SPEEDS if speed.label == "½×")
    quarter = next(speed for speed in SPEEDS if speed.label == "¼×")
    transport.slow(half)
    transport.slow(quarter)
    delays = [command.seconds for command in h.sent(SetDelay)]
    assert delays[0] > 0 and delays[1] == pytest.approx(3 * delays[0], rel=0.01)
    h.frame()
    assert h.window.topbar.speed.text() == "¼×" and h.window.topbar.badge.text() == "SIMULATED · slow motion"
    transport.slow(SPEEDS[0])
    h.frame()
    assert h.sent(SetDelay)[-1].seconds == 0 and h.window.topbar.speed.text() == "1×"
