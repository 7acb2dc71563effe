"""`python -m app.bench.tied PARENT MODULE ARGUMENTS` is `python -m MODULE ARGUMENTS` that ends with the process PARENT,
however that ends: a bench that is killed leaves nothing behind that goes on measuring for nobody."""

from __future__ import annotations

import runpy
import sys

from engine.lifeline import tie_to_parent

if __name__ == "__main__":
    tie_to_parent(int(sys.argv[1]))
    sys.argv[:3] = sys.argv[2:3]  # the first is replaced by the module's file
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
