"""Whether a window can be shown here, in words. Qt itself would end the process without a way to catch it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

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
    """Qt's libraries could not be read: name the one that lacks and how to get it."""
    return f"Qt could not start ({error}); on Debian or Ubuntu: {LIBRARIES} libxcb-icccm4 libxcb-keysyms1"
