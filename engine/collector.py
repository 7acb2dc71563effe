"""Python's collector of reference cycles, kept out of the steps.

A step makes some thousand tuples and lists, which are gone by their reference counts when it ends; the collector, which
by default looks at every 700 of them, finds next to nothing. Measured at 256 sequences with drafts of 4: it took 0.2 ms
of each step, and a full collection, which follows every reference of torch too, 100 ms.
"""

from __future__ import annotations

import gc

# Objects more than at the last look. What a step makes stays far below; cycles, which only failures leave behind, wait
# no longer than some thousand requests.
YOUNG = 20_000
# The same for a window's frames: the collector looks more often there and at fewer at a time, 20,000 took it 2.5 ms.
YOUNG_OF_FRAMES = 4_000


def keep_out_of_steps(young: int = YOUNG) -> None:
    """What is there now stays to the end of the process and is never looked at again, the rest seldom. For a process
    that is an engine, or a window onto one, once the engine is ready."""
    gc.freeze()
    gc.set_threshold(young, 10, 10)
