"""Faults with a window: displays, Ctrl-C, an engine that stops answering, words of strangers, prompts not taken.

`tests/app/test_faults.py` has the table of all faults.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PySide6.QtCore import Qt

from app import display
from engine import records as r
from engine.client import EngineClient
from tests.support.clients import running, until
from tests.ui.window_harness import Harness
from ui import layout
from ui.labels import Elided, as_plain
from ui.views.composer import Composer
from ui.views.requests import RequestsView

ROOT = Path(__file__).resolve().parents[2]
posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
HTML = '<b>bold</b><img src="file:///etc/passwd">'


def program(*arguments: str, start: tuple[str, ...] = ("-m", "app"), **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *start, *arguments], cwd=ROOT, env={**os.environ, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


# --- displays ---


def test_a_display_that_cannot_be_opened_is_one_line(tmp_path):
    process = program("--model", "none", QT_QPA_PLATFORM="no-such-platform", SERVESCOPE_CONFIG=str(tmp_path))
    out, err = process.communicate(timeout=30)
    assert process.returncode == 1 and out == "" and len(err.splitlines()) == 1
    assert "QT_QPA_PLATFORM=no-such-platform" in err and "xvfb-run" in err


def test_why_qt_did_not_start_is_told_apart():
    no_server = "could not connect to display :9; From 6.5.0, xcb-cursor0 or libxcb-cursor0 is needed"
    assert "DISPLAY=:9" in display.platform_problem(no_server, {"DISPLAY": ":9"})
    assert "apt-get" not in display.platform_problem(no_server, {"DISPLAY": ":9"})
    assert "apt-get" in display.platform_problem("xcb-cursor0 is needed", {"DISPLAY": ":9"})
    assert "apt-get" in display.library_problem(ImportError("libEGL.so.1: cannot open shared object file"))
    assert "reinstall" in display.library_problem(ModuleNotFoundError("No module named 'pyqtgraph'"))


# --- Ctrl-C ---


BEGUN = "import app.__main__ as program; print('begun', flush=True); raise SystemExit(program.main())"


@posix
@pytest.mark.parametrize("seconds", [0.2, 1.0, 2.0])
def test_ctrl_c_at_any_moment_ends_it_at_once(tmp_path, seconds):
    """While modules are read, while the window is built, and while it shows."""
    process = program("--model", "none-of-this-name", start=("-c", BEGUN), SERVESCOPE_CONFIG=str(tmp_path))
    assert process.stdout.readline() == "begun\n"  # how long the interpreter's own start takes depends on the machine
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=15)
    assert process.returncode == 130 and out == "" and err in ("", "servescope: interrupted\n")


# --- an engine that stops answering ---


@posix
def test_a_stopped_engine_owes_an_answer_until_it_goes_on():
    with running() as (client, seen):
        until(client, seen, lambda s: s.of(r.Status))
        assert client.silence == 0
        os.kill(client.pid, signal.SIGSTOP)
        try:
            client.send(r.Submit(id=client.next_id(), request=r.Request(number=1, prompt="hello", max_tokens=5)))
            time.sleep(0.3)
            assert client.poll() == [] and 0.2 < client.silence < 5
        finally:
            os.kill(client.pid, signal.SIGCONT)
        until(client, seen, lambda s: s.events(r.Finished) and s.of(r.Ack) and client.silence == 0)


@posix
def test_a_step_is_owed_while_there_is_work_and_nothing_while_paused():
    with running() as (client, seen):
        client.send(r.Submit(id=client.next_id(), request=r.Request(number=1, prompt="hello", max_tokens=100_000)))
        until(client, seen, lambda s: s.of(r.StepRecord))
        os.kill(client.pid, signal.SIGSTOP)
        try:
            time.sleep(0.1)
            client.poll()
            time.sleep(0.3)
            assert client.silence > 0.2
        finally:
            os.kill(client.pid, signal.SIGCONT)
        client.send(r.Pause(id=client.next_id()))
        until(client, seen, lambda s: s.of(r.Status)[-1].paused and client.silence == 0)
        time.sleep(0.1)
        seen.extend(client.poll())
        assert client.silence == 0


def test_numbers_beyond_64_bits_are_answered_and_not_sent():
    with running() as (client, _):
        request = r.Request(number=4, prompt="a", max_tokens=10**30)
        client.send(r.Submit(id=client.next_id(), request=request))
        ack, refused = client.poll()
        assert not ack.ok and refused.number == 4 and "too large" in refused.message
        client.send(r.Change(id=client.next_id(), changes={"kv_blocks": 10**30}))
        assert not client.poll()[0].ok and client.silence == 0


def test_silence_is_said_with_restart_and_goes_when_the_engine_answers(qtbot):
    h = Harness(qtbot)
    h.source.silence = 2.0
    h.frame()
    assert h.window.banner.text == ""
    h.source.silence = 7.0
    h.frame()
    assert "not answered for 7 s" in h.window.banner.text and h.window.banner.restart.isVisible()
    h.source.silence = 0.0
    h.frame()
    assert h.window.banner.text == ""


@posix
def test_restart_pressed_twice_leaves_one_engine():
    with running() as (client, seen):
        first = client.pid
        os.kill(first, signal.SIGKILL)
        until(client, seen, lambda s: client.state == "dead")
        client.restart()
        client.restart()
        until(client, seen, lambda s: client.state == "ready")
        assert client.pid != first
    assert isinstance(client, EngineClient)


# --- words of strangers ---


def test_reasons_and_tooltips_are_plain_text(qtbot):
    h = Harness(qtbot)
    h.source._queue.append(r.Died(reason=HTML, detail=HTML))
    h.source.state = "dead"
    h.frame()
    banner = h.window.banner
    assert HTML in banner.text and banner._label.textFormat() == Qt.TextFormat.PlainText
    assert "<img" not in banner._label.toolTip() and "&lt;img" in banner._label.toolTip()
    assert as_plain("3 is more than 2") == "3 is more than 2"
    line = Elided(h.window.theme, "small", "text")
    qtbot.addWidget(line)
    line.set_text(HTML)
    assert line.text() == HTML and "<img" not in line.toolTip()


STRANGE = {
    "html": HTML,
    "right to left": "\u202eabc مرحبا",
    "control": "".join(map(chr, range(1, 32))) + "x",
    "emoji": "👩‍👩‍👧‍👦" * 300,
    "marks": "\u0301" * 3000,
    "nul": "a\0b",
    "a megabyte": "word " * 200_000,
}


@pytest.mark.parametrize("text", STRANGE.values(), ids=STRANGE)
def test_any_text_can_be_pasted_and_is_sent_as_it_is(qtbot, text):
    composer = Composer(Harness(qtbot).window.theme)
    qtbot.addWidget(composer)
    sent: list[str] = []
    composer.submitted.connect(lambda asked: sent.append(asked.prompt))
    composer.prompt.insertPlainText(text)
    composer.submit()
    assert [line.replace("\r", "\n") for line in sent] == [text.replace("\r", "\n")]
    assert composer.prompt.toPlainText() == "" and composer.problem.isHidden()


# --- prompts that aren't taken ---


@pytest.fixture
def playground(qtbot):
    h = Harness(qtbot)
    view = RequestsView(h.window.context)
    qtbot.addWidget(view)
    return h, view


def test_a_prompt_for_a_dead_engine_stays_where_it_was_typed(playground):
    h, view = playground
    h.source.state = "dead"
    view.composer.prompt.setPlainText("precious words")
    view.composer.submit()
    assert view.composer.prompt.toPlainText() == "precious words" and "restart" in view.composer.problem.text()


def test_a_refused_prompt_comes_back_with_the_reason(playground):
    h, view = playground
    view.composer.prompt.setPlainText("precious words")
    view.composer.submit()
    assert view.composer.prompt.toPlainText() == ""
    number = next(iter(view._awaited))
    h.window.mirror.apply(r.Refused(number=number, message=HTML))
    view._greet()
    assert view.composer.prompt.toPlainText() == "precious words" and view.composer.problem.text() == HTML
    assert view.composer.problem.textFormat() == Qt.TextFormat.PlainText


def test_what_is_typed_meanwhile_is_not_overwritten(playground):
    h, view = playground
    view.composer.prompt.setPlainText("first")
    view.composer.submit()
    view.composer.prompt.setPlainText("second")
    h.source.state = "dead"
    view._greet()
    assert view.composer.prompt.toPlainText() == "second" and "ended" in view.composer.problem.text()
    assert not view._awaited


# --- what is remembered ---


@pytest.mark.parametrize(
    ("scale", "taken"),
    [(10**400, 2.0), (-(10**400), 1.0), (float("nan"), 1.0), (float("inf"), 2.0), (True, 1.0), ("2", None)],
)
def test_remembered_scales(scale, taken):
    store = layout.NoStore()
    store.set("window", {"version": layout.VERSION, "scale": scale})
    assert layout.load(store).scale == taken
