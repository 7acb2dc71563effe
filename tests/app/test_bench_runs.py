"""Runs in fresh processes: what they print is read, and none outlives the bench that asked for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.bench.runs import fresh_process

SLEEPS = """
from app.bench.runs import fresh_process
fresh_process("timeit", "-n", "1", "-r", "1", "-s",
              "import os, pathlib; pathlib.Path({path!r}).write_text(str(os.getpid()))",
              "import time; time.sleep(60)", timeout=90)
"""


def test_the_object_that_a_module_prints_is_read(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"figure": [1, 2]}')
    assert fresh_process("json.tool", "--compact", str(tmp_path / "in.json"), timeout=60) == {"figure": [1, 2]}


def test_a_module_that_fails_is_told_by_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"json\.tool ended with .*none\.json"):
        fresh_process("json.tool", str(tmp_path / "none.json"), timeout=60)


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_bench_started_ends_with_it(tmp_path: Path, how: signal.Signals) -> None:
    told = tmp_path / "pid"
    bench = subprocess.Popen([sys.executable, "-c", SLEEPS.format(path=str(told))])
    try:
        _await(lambda: told.exists() and told.read_text())
        pid = int(told.read_text())
        assert _lives(pid)
        bench.send_signal(how)
        bench.wait(10)
        _await(lambda: not _lives(pid))
    finally:
        bench.kill()
        bench.wait()


def _await(met, limit: float = 30.0) -> None:
    end = time.monotonic() + limit
    while not met():
        assert time.monotonic() < end
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    """One that ended and that nobody has collected yet doesn't."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    try:
        return not Path("/proc/self").exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
