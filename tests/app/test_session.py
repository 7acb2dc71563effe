"""A session ends when it is told to, and a fault beside the window neither hangs it nor takes it down."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from app.session import Appearance, Session
from app.settings import Unsaved
from engine.config import EngineConfig, Simulation
from ui.contracts import WorkloadSettings


session = Session(EngineConfig(simulation=Simulation(profile="h200:llama-3-8b")), Appearance("dark", 1.0, (800, 600)),
                  WorkloadSettings(running=False), settings=Unsaved())
turns = 0

def fail(*_):
    raise RuntimeError("planted")

def until(session):
    global turns
    turns += 1
    if sys.argv[1] == "until":
        fail()
    return turns > 5

if sys.argv[1] == "stories":
    session.stories.tick = fail
if __name__ == "__main__":
    print("code", session.run(until), "turns", turns)
"""


@pytest.mark.parametrize("where", ["until", "stories"])
def test_a_fault_beside_the_window(tmp_path, where: str) -> None:
    script = tmp_path / "one.py"
    script.write_text(SCRIPT)
    ran = subprocess.run([sys.executable, str(script), where], capture_output=True, text=True, timeout=120)
    if where == "until":  # told, and nothing hangs
        assert ran.returncode == 1 and "RuntimeError: planted" in ran.stderr
    else:  # told once, and the window goes on
        assert "code 0 turns 6" in ran.stdout, ran.stderr
        assert ran.stderr.count("RuntimeError: planted") == 1
