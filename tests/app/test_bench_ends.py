"""A bench whose engine is killed, or that is interrupted, says so in one line; it is nothing to report."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
import pytest

COMMANDS = {
    "soak": ("soak", "--minutes", "1", "--simulate", "h200:llama-3-8b", "--json"),
    "overhead": ("overhead", "--engines", "simulated", "--blocks", "4000", "--sequences", "8", "--seconds", "1",
                 "--frozen", "0", "--json"),
    "window": ("window", "--blocks", "4000", "--sequences", "8", "--steps", "50", "--seconds", "20", "--json"),
}  # fmt: skip


def _engine(bench: subprocess.Popen) -> psutil.Process:
    """The spawned child that serves: the last of the line."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        below = psutil.Process(bench.pid).children(recursive=True)
        serving = [p for p in below if "spawn_main" in " ".join(p.cmdline())]
        if serving and psutil.cpu_count() and serving[-1].cpu_times().user > 0.5:
            return serving[-1]
        time.sleep(0.1)
    raise AssertionError("no engine came up")


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_it_ends_in_one_line(name: str, how: str) -> None:
    command = [sys.executable, "-m", "app", "bench", *COMMANDS[name]]
    bench = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        engine = _engine(bench)
        time.sleep(2)
        if how == "killed":
            engine.kill()
        else:
            bench.send_signal(signal.SIGINT)
        _, said = bench.communicate(timeout=90)
    finally:
        bench.kill()
    said = "\n".join(line for line in said.splitlines() if "raise()" not in line and " min, " not in line)
    assert bench.returncode == (1 if how == "killed" else 130), said
    assert "please report" not in said and "Traceback" not in said and len(said.splitlines()) == 1, said
    if how == "killed":
        assert "kill" in said.lower() or "ended" in said.lower(), said
