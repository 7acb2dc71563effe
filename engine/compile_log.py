"""What is compiled in this process, as it happens: numba's functions, Triton's kernels, and graphs that are captured.

While the engine loads, the CPU program's functions are counted as progress: at the very first start they take ten
seconds, later ones find them in the cache. Once it serves nothing should be compiled any more; what is, a step waited
for, and the log tells which. numba tells by events, Triton by a listener among its knobs; neither library is imported
for that, for which of them is needed the model and the device decide.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

STAGE = "compiling the CPU program, first start only"
UNKEPT = "compiling the CPU program, at every start: its cache can't be written"
UNIT = "functions"
LEAST = 8  # functions of a program that is worth a stage of its own

Tell = Callable[[str, int, int, str], None]  # stage, done, in all, unit


class Entry(NamedTuple):
    what: str
    ns: int


class CompileLog:
    """`graphs`: how many are captured so far; asked at each `take`."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns):
        self._clock = clock
        self._found: deque[Entry] = deque()  # appended to by any thread that compiles
        self._tell: Tell | None = None  # while it loads
        self._graphs: Callable[[], int] = lambda: 0
        self._captured = 0
        self._depth = threading.local()
        self._parts: set[object] = set()
        self._done, self._stage = 0, STAGE
        self._listens: set[str] = set()

    def loading(self, tell: Tell) -> Callable[[str, int, int], None]:
        """Progress of loading, which tells of compiling as well."""
        self._tell = tell

        def progress(stage: str, done: int, total: int) -> None:
            self._listen()  # between two stages libraries were imported
            tell(stage, done, total, "bytes")

        return progress

    def serving(self, graphs: Callable[[], int] = lambda: 0) -> None:
        """From now on: what was compiled so far belongs to loading."""
        self._listen()
        self._tell, self._graphs, self._captured = None, graphs, graphs()
        self._found.clear()

    def take(self) -> list[Entry]:
        """What was compiled since the last call; a graph's time is its step's own."""
        self._listen()
        found = [self._found.popleft() for _ in range(len(self._found))]
        if (captured := self._graphs()) != self._captured:
            if captured > self._captured:
                count = captured - self._captured
                found.append(Entry("a CUDA graph" if count == 1 else f"{count} CUDA graphs", 0))
            self._captured = captured
        return found

    # --- the libraries ---

    def _listen(self) -> None:
        if "numba" in sys.modules and "numba" not in self._listens:
            self._listens.add("numba")
            self._listen_to_numba()
        if "triton" in sys.modules and "triton" not in self._listens and hasattr(sys.modules["triton"], "knobs"):
            self._listens.add("triton")
            self._listen_to_triton()

    def _listen_to_numba(self) -> None:
        from numba.core import event

        log = self

        class Listener(event.Listener):
            def on_start(self, told: event.Event) -> None:
                log._begin(told.data["dispatcher"])

            def on_end(self, told: event.Event) -> None:
                log._end(told.data["dispatcher"])

        event.register("numba:compile", Listener())

    def _listen_to_triton(self) -> None:
        from triton import knobs

        before = knobs.compilation.listener

        def compiled(*, src: Any, times: Any, cache_hit: bool, **more: Any) -> None:
            if not cache_hit:
                name = getattr(getattr(src, "fn", None), "__name__", None) or getattr(src, "name", "?")
                self._found.append(Entry(f"the kernel {name}", int(1e3 * getattr(times, "total", 0))))
            if before is not None:
                before(src=src, times=times, cache_hit=cache_hit, **more)

        knobs.compilation.listener = compiled

    def _begin(self, dispatcher: object) -> None:
        depth = getattr(self._depth, "value", 0)
        self._depth.value = depth + 1
        if depth:
            return
        self._depth.began = self._clock()
        if self._tell is not None:
            parts = functions_of(dispatcher)
            if len(parts) >= LEAST:
                self._parts, self._done = parts, 0
                self._stage = UNKEPT if _unkept(dispatcher) else STAGE
                self._tell(self._stage, 0, len(parts), UNIT)

    def _end(self, dispatcher: object) -> None:
        self._depth.value -= 1
        if self._tell is not None and dispatcher in self._parts:
            self._done += 1
            self._tell(self._stage, min(self._done, len(self._parts)), len(self._parts), UNIT)
        if not self._depth.value:
            name = getattr(getattr(dispatcher, "py_func", None), "__name__", "?").strip("_")
            self._found.append(Entry(f"the CPU's {name}", self._clock() - self._depth.began))
            self._parts = set()


def _unkept(dispatcher: Any) -> bool:
    """What numba compiles of this is gone with the process (`engine.cpu.compiled`)."""
    return type(getattr(dispatcher, "_cache", None)).__name__ == "NullCache"


def functions_of(dispatcher: Any) -> set[object]:
    """A numba function and those that it calls, as far as its code names them."""
    kind, found, todo = type(dispatcher), set(), [dispatcher]
    while todo:
        one = todo.pop()
        if one in found:
            continue
        found.add(one)
        names, scope = one.py_func.__code__.co_names, one.py_func.__globals__
        values = [scope[name] for name in names if name in scope]
        modules = [value for value in values if isinstance(value, ModuleType)]
        values += [getattr(module, name) for module in modules for name in names if hasattr(module, name)]
        values += [cell.cell_contents for cell in one.py_func.__closure__ or ()]
        todo += [value for value in values if isinstance(value, kind)]
    return found
