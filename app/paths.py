"""Where this user's settings live. The model cache has its own place, see `engine.model.cache`."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def config_dir() -> Path:
    """SERVESCOPE_CONFIG, or the platform's place for settings. Not created here. A user without a home gets a path
    that can't be written."""
    try:
        return _config_dir()
    except RuntimeError:  # pathlib's, where there is no home directory
        return Path(os.devnull) / "servescope"


def _config_dir() -> Path:
    chosen = os.environ.get("SERVESCOPE_CONFIG")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "Servescope"
    if sys.platform == "win32":
        base = os.environ.get("APPDATA")
        return (Path(base) if base else Path.home() / "AppData" / "Roaming") / "Servescope"
    base = os.environ.get("XDG_CONFIG_HOME", "")
    # the XDG specification: a relative path there is to be ignored
    return (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "servescope"
