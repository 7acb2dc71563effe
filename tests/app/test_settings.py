"""What the window remembers comes back; what can't be read or written never stops it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from app.__main__ import main
from app.paths import config_dir
from app.settings import Settings, Unsaved


def test_values_come_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "window.json"
    first = Settings(path)
    assert first.get("theme") is None and first.get("theme", "dark") == "dark"
    first.set("theme", "light")
    first.set("layout", {"rows": [1, 2.5, None]})
    again = Settings(path)
    assert again.get("theme") == "light" and again.get("layout") == {"rows": [1, 2.5, None]}
    assert [p.name for p in path.parent.iterdir()] == ["window.json"]


def test_an_unchanged_value_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "window.json"
    settings = Settings(path)
    settings.set("scale", 1.5)
    path.unlink()
    settings.set("scale", 1.5)
    assert not path.exists()


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "1", '{"version": 99, "values": {"a": 1}}', '{"version": 1, "values": []}', "[" * 100_000],
    ids=range(7),
)
def test_an_unreadable_file_counts_as_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "window.json"
    path.write_text(content)
    settings = Settings(path)
    assert settings.get("a") is None
    settings.set("a", 2)
    assert json.loads(path.read_text())["values"] == {"a": 2}


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "window.json").write_bytes(b"\xff\xfe\x00")
    assert Settings(tmp_path / "window.json").get("a") is None


def test_a_place_that_takes_no_write_is_said_and_borne(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    settings = Settings(tmp_path / "file" / "window.json")
    settings.set("theme", "light")
    assert settings.get("theme") == "light" and str(tmp_path / "file") in settings.trouble


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "window.json"
    settings = Settings(path)
    settings.set("a", 1)
    with pytest.raises(TypeError):
        settings.set("b", object())
    assert json.loads(path.read_text())["values"] == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["window.json"]


def test_unsaved_remembers_for_the_run_only() -> None:
    settings = Unsaved()
    settings.set("a", 1)
    assert settings.get("a") == 1 and settings.get("b", 2) == 2


def test_where_settings_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVESCOPE_CONFIG", "/mine")
    assert config_dir() == Path("/mine")
    monkeypatch.delenv("SERVESCOPE_CONFIG")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/xdg")
    assert config_dir() == Path("/xdg/servescope")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert config_dir() == Path.home() / ".config" / "servescope"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert config_dir().name == "Servescope"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("APPDATA", "/roaming")
    assert config_dir() == Path("/roaming/Servescope")


def test_what_was_not_saved_is_told_when_the_window_closed(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SERVESCOPE_CONFIG", str(tmp_path / "file"))

    class Closed:
        """A session in which the theme was changed."""

        def __init__(self, config, appearance, workload, settings):
            self._settings = settings

        def run(self) -> int:
            self._settings.set("theme", "light")
            return 0

    monkeypatch.setattr("app.session.Session", Closed)
    assert main(["--simulate", "h200:llama-3-8b"]) == 0
    told = capsys.readouterr().err
    assert told.startswith("servescope: the window's settings could not be saved") and "make that writable" in told
    assert len(told.splitlines()) == 1
