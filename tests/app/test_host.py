"""A process seen from outside: what it holds, and that it is gone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app.host import host_memory

MIB = 1 << 20
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


@LINUX
def test_a_process_own_pages_and_that_they_are_gone_with_it() -> None:
    code = "import sys; held = bytearray(b'1') * (64 << 20); print(flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        found = host_memory(child.pid)
        assert 64 * MIB < found.own < 120 * MIB and found.available > 0
    finally:
        child.stdin.close()
        child.wait()
        child.stdout.close()
    assert host_memory(child.pid).own == 0


@LINUX
def test_no_process_holds_nothing() -> None:
    assert host_memory(None).own == 0
