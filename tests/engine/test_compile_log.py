"""What is compiled is told: as progress while the engine loads, as an event once it serves."""

from __future__ import annotations

from types import SimpleNamespace

import numba
import pytest

from engine import records as r
from engine.compile_log import LEAST, STAGE, UNIT, UNKEPT, CompileLog, Entry, _unkept, functions_of
from engine.config import EngineConfig
from engine.cpu.compiled import _keep
from tests.support.inprocess import InProcessEngine, table_build
from ui import explain
from ui.mirror import Mirror


def plain(x):
    return x + 1


def program(parts: int):
    """A function of numba's that calls `parts` others, none of them compiled yet."""
    source = "\n".join(f"@njit\ndef part_{i}(x): return x + {i}" for i in range(parts))
    calls = " + ".join(f"part_{i}(x)" for i in range(parts))
    scope: dict[str, object] = {"njit": numba.njit}
    exec(f"{source}\n@njit\ndef whole(x): return {calls}", scope)
    return scope["whole"]


@pytest.fixture
def log():
    return CompileLog()


def test_the_functions_of_a_program_are_those_that_it_calls():
    assert len(functions_of(program(5))) == 6
    from engine.cpu.forward import forward

    names = {one.py_func.__name__ for one in functions_of(forward)}
    assert {"forward", "attend_heads", "product", "embed", "rotate_and_store"} <= names and len(names) > 20


@pytest.mark.parametrize("kept", [True, False])
def test_loading_counts_the_functions_of_a_program(log, monkeypatch, kept):
    told: list[tuple[str, int, int, str]] = []
    log.loading(lambda *words: told.append(words))("loading weights", 1, 2)
    monkeypatch.setattr("engine.compile_log._unkept", lambda dispatcher: not kept)
    program(LEAST)(1)
    assert told[0] == ("loading weights", 1, 2, "bytes")
    stage = STAGE if kept else UNKEPT
    assert told[1:] == [(stage, done, LEAST + 1, UNIT) for done in range(LEAST + 2)]
    small = len(told)
    program(2)(1)
    assert len(told) == small, "what takes no time is no stage"


def test_a_program_that_nobody_can_keep_is_compiled_at_every_start(tmp_path, monkeypatch):
    for cache, kept in ((tmp_path / "cache", True), (tmp_path / "file", False)):
        (tmp_path / "file").touch()
        monkeypatch.setenv("SERVESCOPE_CACHE", str(cache))
        one = numba.njit(plain)
        _keep(one)
        assert _unkept(one) is not kept


def test_while_it_serves_each_program_is_one_event_and_what_was_compiled_none(log):
    log.loading(lambda *words: None)("loading weights", 0, 0)
    program(3)(1)
    log.serving()
    assert log.take() == [], "what loading compiled belongs to loading"
    late = program(3)
    late(1)
    [entry] = log.take()
    assert entry.what == "the CPU's whole" and entry.ns > 1_000_000
    late(2)
    assert log.take() == []
    late(2.5)  # floats need another
    assert len(log.take()) == 1


def test_kernels_are_told_by_name_and_those_from_the_cache_are_not(log):
    knobs = pytest.importorskip("triton").knobs
    before = knobs.compilation.listener
    try:
        log.serving()
        source, more = SimpleNamespace(fn=SimpleNamespace(__name__="verify")), {"metadata": {}, "metadata_group": {}}
        knobs.compilation.listener(src=source, times=SimpleNamespace(total=2_300_000), cache_hit=False, **more)
        knobs.compilation.listener(src=source, times=SimpleNamespace(total=900), cache_hit=True, **more)
        assert log.take() == [Entry("the kernel verify", 2_300_000_000)]
    finally:
        knobs.compilation.listener = before


def test_graphs_are_counted(log):
    captured = [4]
    log.serving(lambda: captured[0])
    assert log.take() == []
    captured[0] = 6
    assert log.take() == [Entry("2 CUDA graphs", 0)]
    captured[0] = 0  # forgotten with a pool: nothing was captured
    assert log.take() == []
    captured[0] = 1
    assert log.take() == [Entry("a CUDA graph", 0)]


def test_the_step_that_waited_is_told_and_leaves_a_mark():
    engine = InProcessEngine(EngineConfig(), table_build)
    found = [[Entry("the kernel verify", 2_300_000_000)]]
    engine._loop._compiled = lambda: found.pop() if found and engine._loop.engine.last_step == 2 else []
    mirror = Mirror()
    mirror.apply_all(engine.poll())
    engine.send(r.Submit(id=1, request=r.Request(number=1, token_ids=[1, 2, 3], max_tokens=6, ignore_eos=True)))
    told = []
    for _ in range(12):
        messages = engine.poll()
        told += [m for m in messages if isinstance(m, r.Compiled)]
        mirror.apply_all(messages)
    [one] = told
    assert (one.step, one.what, one.ns) == (2, ["the kernel verify"], 2_300_000_000)
    [mark] = [m for m in mirror.history.marks if m.key == "compiled"]
    assert mark.step == 2 and mark.clock == one.clock
    assert explain.change(*mark[2:]) == "compiled the kernel verify, 2.30 s"
    assert mirror.notices[-1].message == "Step 2 waited: compiled the kernel verify, 2.30 s."
