"""No display, or Qt's libraries missing: one message with the remedy."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from app import display


@pytest.mark.parametrize(
    ("platform", "environment", "shown"),
    [
        ("linux", {}, False),
        ("linux", {"DISPLAY": ":0"}, True),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("linux", {"QT_QPA_PLATFORM": "offscreen"}, True),
        ("darwin", {}, True),
        ("win32", {}, True),
    ],
)
def test_a_missing_display_is_noticed_before_qt_ends_the_process(platform, environment, shown):
    assert (display.problem(platform, environment) == "") is shown


def test_the_messages_name_the_remedy():
    assert "xvfb-run" in display.problem("linux", {}) and "servescope generate" in display.problem("linux", {})
    assert "apt-get install" in display.library_problem(ImportError("libEGL.so.1: cannot open"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems always have a display")
def test_the_command_ends_with_one_line():
    environment = {
        k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
    }
    done = subprocess.run(
        [sys.executable, "-m", "app"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("servescope: no display") and len(done.stderr.splitlines()) == 1
