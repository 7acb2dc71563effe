"""Freed memory between chunks in use goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine import heap
from engine.heap import Tidy

# in a process of its own: what else a heap holds decides where chunks come to lie
SCRIPT = """
from engine.heap import give_back
from engine.memory import resident

MIB = 1 << 20
chunks = [bytearray(16_000 + 16 * (at % 64)) for at in range(4_000)]  # 64 MiB and more
full = resident().total
del chunks[::2], chunks[-1]  # what is left lies between the holes, to the very top of the heap
holes = resident().total
give_back()
print((full - holes) // MIB, (holes - resident().total) // MIB)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
def test_holes_in_the_heap_are_given_back():
    told = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    before, after = map(int, told.stdout.split())
    assert before <= 2  # of itself the allocator gives back nothing
    assert after >= 18  # of 31 MiB of holes, what whole pages of them are


def test_it_is_tidied_every_now_and_then(monkeypatch):
    gave, now = [], [0.0]
    monkeypatch.setattr(heap, "give_back", lambda: gave.append(now[0]))
    tidy = Tidy(every=60, clock=lambda: now[0])
    for at in (0.0, 30.0, 59.9, 60.0, 60.1, 119.9, 150.0, 209.9, 210.0):
        now[0] = at
        tidy.turn()
    assert gave == [60.0, 150.0, 210.0]
