"""Pause, single steps and slow motion by button and key: they never change what is generated. And the keys act only
while no input has the focus."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QWidget

from engine import records as r
from engine.config import LiveSettings
from tests.support.live_window import LiveWindow, tiny_config, undisturbed, words
from tests.support.tiny_directory import make_directory
from ui.transport import SPEEDS

pytestmark = pytest.mark.slow
# a small pool and budget, so that chunks, preemptions and drafts are under way whenever it is paused
SETTINGS = LiveSettings(max_batch=6, max_context=256, kv_blocks=40, token_budget=32, draft_length=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_directory(tmp_path_factory.mktemp("model"))


@pytest.fixture
def live(qapp, model: Path) -> Iterator[LiveWindow]:
    window = LiveWindow(tiny_config(model, SETTINGS, start_paused=True))
    yield window
    window.close()


def press(widget: QWidget, key: Qt.Key, modifier: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> None:
    QTest.keyClick(widget, key, modifier)


def test_pausing_stepping_and_slowing_change_no_output(live: LiveWindow, model: Path) -> None:
    window, source = live.window, live.source
    assert window.transport.paused and window.topbar.badge.text().endswith("paused")
    requests = [
        r.Request(
            number=n, token_ids=words(n, 20 + n), max_tokens=50, ignore_eos=True, label="test",
            sampling=r.Sampling(temperature=0.0 if n % 3 else 0.8, seed=n),
        )
        for n in range(1, 13)
    ]  # fmt: skip
    expected = undisturbed(tiny_config(model, SETTINGS, start_paused=True), requests)
    for request in requests:
        live.workload.submit(request)
    live.pump(lambda: len(window.mirror.live.waiting) == 12)
    assert window.mirror.live.step == 0, "nothing runs while paused"

    for _ in range(5):
        before = window.mirror.live.step
        press(window, Qt.Key.Key_Right)
        live.pump(lambda b=before: window.mirror.live.step > b)
        live.run(0.05)
        assert window.mirror.live.step == before + 1, "one step, no more"
    for _ in range(3):
        before = window.mirror.live.step
        live.click(window.topbar.step)
        live.pump(lambda b=before: window.mirror.live.step > b)

    window.transport.slow(next(s for s in SPEEDS if s.label == "4/s"))
    press(window, Qt.Key.Key_Space)
    before = window.mirror.live.step
    live.pump(lambda: window.mirror.live.step > before + 3)
    live.drawn()
    assert window.topbar.badge.text().endswith("slow motion")
    starts = [step.start for step in source.steps() if step.step > before]
    assert all(b - a > 0.24e9 for a, b in pairwise(starts)), "four steps a second, fewer where a step takes long"
    window.transport.slow(SPEEDS[0])
    for _ in range(10):
        live.run(0.02)
        live.click(window.topbar.pause)
        live.pump(lambda: window.mirror.status.paused)
        at = window.mirror.live.step
        live.run(0.03)
        assert window.mirror.live.step == at
        window.cursor.pin(max(1, at - 5))
        press(window, Qt.Key.Key_Escape)
        press(window, Qt.Key.Key_Right)
        live.click(window.topbar.pause)
        live.pump(lambda: not window.mirror.status.paused)
    live.await_end([request.number for request in requests])
    assert source.seen.tokens() == expected
    assert source.seen.events(r.Preempted) and any(step.drafts for step in source.steps()), "an eventful run"
    shown = {q.number: q.output_tokens for q in window.mirror.history.requests}
    assert shown == {request.number: 50 for request in requests}


def test_keys_act_only_while_no_input_has_the_focus(live: LiveWindow) -> None:
    window = live.window
    view = window.deck.docks["requests"].view
    prompt = view.composer.prompt
    live.load(6, tokens=120)
    live.pump(lambda: window.mirror.live.waiting)
    for _ in range(6):
        press(window, Qt.Key.Key_Right)
    live.pump(lambda: window.mirror.live.step == 6)
    commands = len(live.source.sent)

    live.click(prompt)
    assert prompt.hasFocus()
    QTest.keyClicks(prompt, "say f + ? = -")
    press(prompt, Qt.Key.Key_Left)
    press(prompt, Qt.Key.Key_Right)
    press(prompt, Qt.Key.Key_Left, Qt.KeyboardModifier.ShiftModifier)
    press(prompt, Qt.Key.Key_Right, Qt.KeyboardModifier.ShiftModifier)
    live.run(0.2)
    assert prompt.toPlainText() == "say f + ? = -"
    assert len(live.source.sent) == commands and window.mirror.status.paused and window.mirror.live.step == 6
    assert window.theme.scale == 1.0 and window.cursor.is_live
    assert window.deck.filled is None and not window.help.isVisible()

    box = window.controls.sliders["max_batch"].box
    window.controls.area.ensureWidgetVisible(box)
    live.click(box)
    QTest.keyClicks(box, " 7 ")
    live.run(0.1)
    assert len(live.source.sent) == commands and window.mirror.status.paused
    press(box, Qt.Key.Key_Escape)

    live.click(prompt)
    press(prompt, Qt.Key.Key_Escape)
    assert not prompt.hasFocus()
    press(window, Qt.Key.Key_Left, Qt.KeyboardModifier.ShiftModifier)
    assert window.cursor.pinned == 5
    press(window, Qt.Key.Key_Escape)
    assert window.cursor.is_live
    press(window, Qt.Key.Key_Space)
    live.pump(lambda: not window.mirror.status.paused)
    assert prompt.toPlainText() == "say f + ? = -", "what was typed stays"


def test_a_typed_prompt_is_served_and_streams(live: LiveWindow) -> None:
    window = live.window
    view = window.deck.docks["requests"].view
    live.click(view.composer.prompt)
    QTest.keyClicks(view.composer.prompt, "w3 w5 w8 w13")
    press(view.composer.prompt, Qt.Key.Key_Return)
    live.pump(lambda: window.mirror.live.waiting)
    assert view.composer.prompt.toPlainText() == ""
    press(view.composer.prompt, Qt.Key.Key_Escape)
    press(window, Qt.Key.Key_Space)
    live.pump(lambda: window.mirror.history.requests)
    done = window.mirror.history.requests[-1]
    assert done.label == "playground" and done.output_tokens > 0
    live.drawn()
    assert window.selection.seq == done.seq == view.shown
    assert done.text.strip() and done.text.strip()[:20] in view.text.toPlainText()
