"""The live source is what the window expects of a source, over a real child."""

from __future__ import annotations

import inspect
import os
import signal
import time

from app.sources.live import LiveEngine
from engine import records as r
from engine.config import EngineConfig, LiveSettings
from tests.support.clients import Seen, until
from tests.support.inprocess import InProcessEngine
from ui.contracts import Source

CONFIG = EngineConfig(settings=LiveSettings(max_context=128, kv_blocks=64))


def test_live_engine_and_its_twin_offer_all_of_a_source():
    wanted = {name for name in vars(Source) if not name.startswith("_")}
    for kind in (LiveEngine, InProcessEngine):
        source = kind(CONFIG, *(["tests.support.inprocess:table_main"] if kind is LiveEngine else []))
        try:
            assert all(hasattr(source, name) for name in wanted)
            for name in ("poll", "send", "next_id", "restart", "close"):
                theirs, ours = (inspect.signature(getattr(owner, name)) for owner in (Source, kind))
                assert list(theirs.parameters) == list(ours.parameters)
            assert source.provenance == "measured" and "engine" in source.title
        finally:
            source.close()
            assert source.join(10)


def test_starting_sending_and_closing_never_wait():
    source = LiveEngine(CONFIG, "tests.support.inprocess:table_main")
    source.send(r.Pause(id=source.next_id()))
    source.poll()
    assert source.state == "starting"
    seen = until(source, Seen(), lambda s: s.of(r.Ack))
    assert source.state == "ready" and seen.of(r.Ready)
    if os.name == "posix":
        os.kill(source.pid, signal.SIGSTOP)  # for this long it can't end
    started = time.perf_counter()
    source.close()
    assert time.perf_counter() - started < 1
    if os.name == "posix":
        os.kill(source.pid, signal.SIGCONT)
    assert source.join(10)
