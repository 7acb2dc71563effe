"""Programs are taken from the cache when they are of these sources, and compiled in every other case."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import numba
import pytest
from numba import njit
from numba.core.caching import IndexDataCacheFile, UserProvidedCacheLocator
from numba.core.dispatcher import Dispatcher

from engine.cpu import compiled
from engine.cpu.compiled import KEPT, compile_for


def program() -> Dispatcher:
    """A new one each time, of the same source."""

    @njit
    def double(number):
        return 2 * number

    return double


def hits(function: Dispatcher) -> int:
    assert function(3) == 6 and len(function.overloads) == 1
    return sum(function.stats.cache_hits.values())


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SERVESCOPE_CACHE", str(tmp_path))
    return tmp_path / "kernels"


def compiled_anew() -> Dispatcher:
    function = program()
    compile_for(function, 1)
    return function


def test_the_second_one_is_taken_from_the_cache(cache: Path):
    before = numba.config.CACHE_DIR
    first = compiled_anew()
    assert hits(first) == 0
    assert hits(compiled_anew()) == 1
    compile_for(first, 1)  # it is there already
    assert [folder.name for folder in cache.iterdir()] == [compiled._sources()]
    assert before == numba.config.CACHE_DIR  # other users of numba in this process keep their own


def test_another_process_takes_it_from_the_cache():
    script = (
        "from tests.engine.cpu.test_compiled import *; f = program(); compile_for(f, 1);"
        "print(sum(f.stats.cache_hits.values()), sum(f.stats.cache_misses.values()))"
    )
    found = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    ]
    assert found == [["0", "1"], ["1", "0"]]


def test_a_program_of_other_sources_is_not_taken(monkeypatch: pytest.MonkeyPatch):
    compiled_anew()
    monkeypatch.setattr(compiled, "_sources", lambda: "other")
    assert hits(compiled_anew()) == 0
    assert hits(compiled_anew()) == 1


def test_folders_that_nobody_used_for_a_month_go(cache: Path):
    for name, age in (("old", KEPT + 60), ("recent", KEPT - 60)):
        (cache / name / "cpu").mkdir(parents=True)
        os.utime(cache / name, (time.time() - age,) * 2)
    compiled_anew()
    assert sorted(folder.name for folder in cache.iterdir()) == sorted(["recent", compiled._sources()])


def test_its_own_folder_stays_however_old(cache: Path):
    compiled_anew()
    os.utime(cache / compiled._sources(), (0, 0))
    assert hits(compiled_anew()) == 1
    assert time.time() - (cache / compiled._sources()).stat().st_mtime < 60


def nothing_elsewhere() -> bool:
    return not list(Path(__file__).parent.rglob("*double*.nb?"))


def test_without_a_cache_it_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SERVESCOPE_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        function = compiled_anew()
        assert hits(function) == 0 and function.stats.cache_path is None
    assert nothing_elsewhere()


def test_a_cache_that_cannot_be_written_to_sends_numba_nowhere_else(monkeypatch: pytest.MonkeyPatch):
    """It would keep programs beside their source, and not see when another part's source changes."""

    def refuse(self: UserProvidedCacheLocator) -> None:
        raise PermissionError

    monkeypatch.setattr(UserProvidedCacheLocator, "ensure_cache_path", refuse)
    function = compiled_anew()
    assert hits(function) == 0 and function.stats.cache_path is None
    assert nothing_elsewhere()


def test_a_full_disk_costs_the_cache_only(monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(IndexDataCacheFile, "save", full)
        assert hits(compiled_anew()) == 0
    assert hits(compiled_anew()) == 0
    assert hits(compiled_anew()) == 1


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_a_damaged_file_is_as_good_as_none(cache: Path, kind: str):
    compiled_anew()
    (file,) = cache.rglob(f"*.{kind}")
    file.write_bytes(file.read_bytes()[:100])
    assert hits(compiled_anew()) == 0


def test_what_cannot_be_compiled_is_said():
    @njit
    def wrong(number):
        return number + "text"

    with pytest.raises(numba.TypingError):
        compile_for(wrong, 1)
