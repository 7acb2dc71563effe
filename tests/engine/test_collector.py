"""An engine's process, once ready, hardly ever collects cycles within its steps; but it still does collect."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import gc, json
from engine.collector import YOUNG, keep_out_of_steps
from engine.kv_load import Load, make_engine

class Cycle:
    def __init__(self):
        self.self = self

engine = make_engine(4096, 256, 4, seed=1)
load = Load(engine, 256, seed=1)
looks = []
gc.callbacks.append(lambda phase, info: looks.append(info["generation"]) if phase == "start" else None)

def steps():
    looks.clear()
    for _ in range(40):
        load.top_up()
        engine.step()
    return len(looks)

before = steps()
keep_out_of_steps()
after = steps()
cycles = [Cycle() for _ in range(3 * YOUNG)]
looks.clear()
cycles.clear()
more = [[] for _ in range(3 * YOUNG)]
print(json.dumps([before, after, len(looks), sum(isinstance(o, Cycle) for o in gc.get_objects())]))
"""


def test_steps_are_left_alone_and_cycles_are_found() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    before, after, looks, left = json.loads(done.stdout)
    assert before > 20 and after <= 2
    assert looks > 0 and left < 60_000
