"""Deaths and endings, with the window: the engine killed, the program killed, the window closed at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.live_window import LiveWindow, tiny_config
from tests.support.tiny_directory import make_directory

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_directory(tmp_path_factory.mktemp("model"))


def gone(pids: list[int], within: float) -> bool:
    end = time.monotonic() + within
    while any(_lives(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_killing_the_engine_shows_why_keeps_what_was_seen_and_a_click_serves_again(qapp, model: Path) -> None:
    live = LiveWindow(tiny_config(model))
    window, banner = live.window, live.window.banner
    try:
        live.drag(window.controls.sliders["max_batch"], 3)
        live.settle()
        live.load(12, tokens=220)
        live.pump(lambda: window.mirror.live.step > 40 and window.mirror.live.running)
        kill(live)
        assert "killed (SIGKILL)" in banner.text and "kept" in banner.text
        assert window.topbar.badge.text().endswith("stopped") and not window.topbar.pause.isEnabled()
        died_at, kept = window.mirror.last_step, len(window.mirror.history)
        assert kept >= 40 and window.mirror.history.last == died_at
        assert window.mirror.live.running, "the last moment stays on the screen"

        window.cursor.pin(20)  # and so does the past
        live.drawn()
        assert window.cursor.state.step == 20 and window.cursor.state.sequences
        window.escape()

        first = live.source.pid
        live.click(banner.restart)
        live.pump(lambda: live.source.state == "ready" and window.mirror.died is None)
        live.pump(lambda: not window.mirror.live.sequences)  # what it was serving is gone
        live.drawn()
        assert live.source.pid != first and not banner.restart.isVisible()
        assert window.mirror.last_step >= died_at and len(window.mirror.history) >= kept
        assert [m.new for m in window.mirror.history.marks if m.key == "engine"] == ["restarted"]
        assert window.mirror.settings.max_batch == 3 == window.controls.sliders["max_batch"].value
        numbers = live.load(4, tokens=20)
        live.await_end(numbers)
        done = [q for q in window.mirror.history.requests if q.number in numbers]
        assert [q.output_tokens for q in done] == [20] * 4
        assert all(q.finish_step > died_at for q in done), "one axis carries both lives"
        assert window.mirror.drift == 0 and window.topbar.pause.isEnabled()

        kill(live)
        started = time.monotonic()
    finally:
        live.close()
    assert time.monotonic() - started < 2, "a dead engine doesn't hold the window's end up"


def kill(live: LiveWindow) -> None:
    os.kill(live.source.pid, signal.SIGKILL)
    live.pump(live.window.banner.restart.isVisible)
    live.drawn()


# --- a program of its own ---


@pytest.fixture
def start(model: Path) -> Iterator:
    """Start a session; (process, pid of its engine) once its moment has come."""
    begun: list[subprocess.Popen] = []

    def begin(when: str) -> tuple[subprocess.Popen, int]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.session_main", str(model), when],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env=os.environ | {"QT_QPA_PLATFORM": "offscreen"},
        )  # fmt: skip
        begun.append(process)
        line = process.stdout.readline()
        assert line.startswith("now "), process.stderr.read()
        return process, int(line.split()[1])

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def test_the_engine_dies_with_a_killed_program(start) -> None:
    process, child = start("never")
    assert child in [p.pid for p in psutil.Process(process.pid).children(recursive=True)]
    family = [p.pid for p in psutil.Process(process.pid).children(recursive=True)]
    process.send_signal(signal.SIGKILL)
    process.wait(5)
    assert gone([child], within=2)
    assert gone(family, within=3), "nor anything else that it had started"


@pytest.mark.parametrize("when", ["loading", "serving", "paused"])
def test_closing_the_window_ends_the_program_and_leaves_no_process(start, when: str) -> None:
    process, child = start(when)
    out, err = process.communicate(timeout=15)
    assert process.returncode == 0
    assert gone([child], within=0.5)
    assert (out, err) == ("", ""), "nothing is printed: no warning of Qt's, no traceback"


def test_ctrl_c_closes_the_window(start) -> None:
    process, child = start("never")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=15)
    assert process.returncode == 130 and (out, err) == ("", "")
    assert gone([child], within=0.5)
