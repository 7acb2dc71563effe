"""What the window remembers between runs: theme, text scale, layout. One small JSON file, replaced whole.

Never a reason to fail: an unreadable file counts as none, and a disk that takes no write costs only the memory of
this run. Knows nothing of what the keys mean.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from app.paths import config_dir

VERSION = 1  # of the file; another one is not read


class Unsaved:
    """Remembers nothing beyond the run: for pictures and measurements."""

    def __init__(self) -> None:
        self._values: dict[str, object] = {}

    def get(self, key: str, default: object = None) -> object:
        return self._values.get(key, default)

    def set(self, key: str, value: object) -> None:
        self._values[key] = value


class Settings(Unsaved):
    """Values are JSON: strings, numbers, lists, dictionaries. Each change is on disk when `set` returns.

    Attributes:
        trouble: why the last change was not saved; empty when it was.
    """

    def __init__(self, path: Path | None = None):
        super().__init__()
        self._path = path or config_dir() / "window.json"
        self._values = _read(self._path)
        self.trouble = ""

    def set(self, key: str, value: object) -> None:
        if key in self._values and self._values[key] == value:
            return
        super().set(key, value)
        try:
            _write(self._path, self._values)
            self.trouble = ""
        except OSError as error:
            why = error.strerror or error
            self.trouble = (
                f"the window's settings could not be saved in {self._path.parent}: {why}; "
                "make that writable, or it opens as before next time"
            )


def _read(path: Path) -> dict[str, object]:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(stored, dict) or stored.get("version") != VERSION:
        return {}
    values = stored.get("values")
    return values if isinstance(values, dict) else {}


def _write(path: Path, values: dict[str, object]) -> None:
    """A crash in the middle leaves the old file; two windows at once leave one of both, never a mixture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            json.dump({"version": VERSION, "values": values}, file, indent=1)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
