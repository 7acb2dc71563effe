"""A window over a simulated engine: what such an engine can't tell is said where somebody looks for it, never passed
over in silence, and whatever is shown says *simulated*."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from engine import records as r
from engine.config import EngineConfig, LiveSettings, Simulation
from tests.support.live_window import LiveWindow
from ui import simulated
from ui.contracts import WorkloadSettings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def live(qapp):
    config = EngineConfig(
        simulation=Simulation(profile="h200:llama-3-8b"),
        settings=LiveSettings(max_batch=16, kv_blocks=2_000, max_context=2_048, draft_method="suffix"),
    )
    made = LiveWindow(config, workload=WorkloadSettings(rate=10.0, prompt_tokens=64, output_tokens=64))
    made.pump(lambda: len(made.window.mirror.history.requests) > 3, arrivals=True)
    yield made
    made.close()


def test_every_surface_says_simulated(live):
    window = live.window
    assert "SIMULATED" in window.windowTitle()
    assert "SIMULATED" in window.topbar.badge.content()[0]
    assert window.topbar.numbers.all_simulated
    for key, dock in window.deck.docks.items():
        # the calculator computes by formula whatever runs; what it says of the engine is told apart in its table
        assert dock.view.provenance == ("derived" if key == "calculator" else "simulated"), key
    assert any(n.message.startswith("Simulated: a cost model") for n in window.mirror.notices)


def test_the_stepper_says_that_there_is_nothing_to_walk_and_leaves_the_engine_running(live):
    window, sent = live.window, len(live.source.sent)
    window.fill("verification")
    view = window.deck.docks["verification"].view
    live.drawn()
    assert view.begin.isHidden(), "no button that can do nothing"
    view.setFocus()
    QTest.keyClick(view, Qt.Key.Key_Right)
    assert view.stepper.problem == simulated.NO_VERIFICATION and not view.stepper.seeking
    assert not any(isinstance(c, r.StepOnce | r.Watch) for c in live.source.sent[sent:])
    assert not window.transport.paused
    window.fill("verification")


def test_a_check_says_that_there_is_no_text_to_compare(live):
    window, view = live.window, live.window.deck.docks["requests"].view
    window.selection.choose(window.mirror.history.requests[-1].seq)
    live.drawn()
    assert not view.check_button.isEnabled() and view.check_button.toolTip() == simulated.NO_CHECK
    window.check_request()
    live.pump(lambda: view.check_line.told is not None)
    assert "no text to compare" in view.check_line.told.headline
    window.selection.choose()


def test_beams_are_refused_where_they_were_asked_for(live):
    composer = live.window.deck.docks["requests"].view.composer
    composer.prompt.setPlainText("Four ways to say hello")
    composer.ways.setValue(4)
    composer.beams.setChecked(True)
    composer.submit()
    live.pump(lambda: not composer.problem.isHidden())
    assert "no probabilities to search by" in composer.problem.text()
    assert composer.prompt.toPlainText() == "Four ways to say hello"
    composer.beams.setChecked(False)


def test_the_engine_refuses_to_be_watched_in_words(live):
    command = r.Watch(id=live.source.next_id(), seq=1, k=4)
    live.source.send(command)
    live.pump(lambda: command.id in live.window.mirror.acks)
    ack = live.window.mirror.acks[command.id]
    assert not ack.ok and "no probabilities" in ack.message
    nobody = r.Watch(id=live.source.next_id())
    live.source.send(nobody)
    live.pump(lambda: nobody.id in live.window.mirror.acks)
    assert live.window.mirror.acks[nobody.id].ok


def test_a_story_that_needs_probabilities_ends_with_the_reason(live):
    window = live.window
    place = next(i for i, line in enumerate(live.stories.listed) if "beams" in line.key)
    window.telling.begin(place)

    def failed() -> bool:
        live.stories.skip()  # what is read before it begins
        return live.stories.shown is not None and live.stories.shown.stage == "failed"

    live.pump(failed)
    shown = live.stories.shown
    assert "no probabilities to search by" in f"{shown.caption} {shown.note} {shown.verdict}"
    window.telling.close()
