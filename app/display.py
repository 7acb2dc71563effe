"""Whether a window can be shown here, in words. Qt itself would end the process without a way to catch it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

REMEDY = (
    "set DISPLAY or WAYLAND_DISPLAY, run under `xvfb-run servescope`, or use the commands that need no screen: "
    "servescope generate, servescope shot, servescope bench"
)
LIBRARIES = "sudo apt-get install -y libegl1 libgl1 libxkbcommon-x11-0 libdbus-1-3 libfontconfig1 libxcb-cursor0"


def problem(platform: str = sys.platform, environment: Mapping[str, str] | None = None) -> str:
    """Why no window can be shown, with the remedy; empty when one can."""
    environment = os.environ if environment is None else environment
    if not platform.startswith("linux") or environment.get("QT_QPA_PLATFORM"):
        return ""
    if environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"):
        return ""
    return f"no display; {REMEDY}"


def library_problem(error: ImportError) -> str:
    """What Qt needs could not be read: name what lacks and how to get it."""
    if ".so" in str(error):
        return f"Qt could not start ({error}); on Debian or Ubuntu: {LIBRARIES} libxcb-icccm4 libxcb-keysyms1"
    return f"the window could not be loaded ({error}); reinstall Servescope in this environment"


def platform_problem(said: str, environment: Mapping[str, str] | None = None) -> str:
    """Qt reached no display although one is named; `said` is why, in its own words."""
    environment = os.environ if environment is None else environment
    names = ("QT_QPA_PLATFORM", "WAYLAND_DISPLAY", "DISPLAY")
    named = " ".join(f"{name}={environment[name]}" for name in names if environment.get(name))
    # Qt says that "xcb-cursor0 is needed" in either case, but connects only when it is there
    if "cursor" in said and "could not connect" not in said:
        return f"Qt lacks a library for this display ({named}); on Debian or Ubuntu: {LIBRARIES}"
    return f"the display could not be opened ({named}); check that it is there and may be used, or {REMEDY}"


@contextmanager
def explained() -> Iterator[None]:
    """While Qt starts: where it can't, it ends the process at once; then the last word is one line with the remedy."""
    from PySide6.QtCore import QtMsgType, qInstallMessageHandler

    said: list[str] = []

    def hear(kind: QtMsgType, context: object, message: str) -> None:
        said.append(message)
        if kind == QtMsgType.QtFatalMsg:
            print(f"servescope: {platform_problem(' '.join(said))}", file=sys.stderr, flush=True)
            os._exit(1)  # Qt would abort when this returns

    before = qInstallMessageHandler(hear)
    try:
        yield
    finally:
        qInstallMessageHandler(before)
    for message in said:  # it did start
        print(message, file=sys.stderr)
