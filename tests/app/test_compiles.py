"""Once the default engine says that it is ready, nothing is compiled any more, whatever its steps are made of."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from app.bench.startup import HEAVY
from engine import records as r
from engine.client import EngineClient
from engine.config import EngineConfig, LiveSettings

pytestmark = [pytest.mark.slow(seconds=35), pytest.mark.timeout(300)]
GREEDY, DRAWN = r.Sampling(temperature=0.0), r.Sampling(temperature=0.8, top_p=0.9, top_k=40, min_p=0.01, seed=1)
KINDS = {
    "greedy": {"sampling": GREEDY},
    "drawn": {"sampling": DRAWN},
    "samples": {"sampling": DRAWN, "n": 3},
    "beams": {"beams": 3},
    "penalised": {"sampling": r.Sampling(repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1)},
    "stopped": {"sampling": GREEDY, "stop": ["."]},
    "undrafted": {"sampling": r.Sampling(temperature=0.0, speculate=False)},
}
# In force one after the other. The draft head is a program of its own, compiled when it is asked for.
SETTINGS = (
    {}, {"draft_length": 4}, {"draft_policy": "adaptive"}, {"draft_method": "ngram"}, {"draft_length": 0},
    {"block_size": 8}, {"token_budget": 16}, {"chunked_prefill": False, "token_budget": 2048},
    {"allocation": "reserved"}, {"kv_blocks": 300}, {"preemption": "swap", "swap_blocks": 64},
)  # fmt: skip


class Listener:
    def __init__(self) -> None:
        self.client = EngineClient(EngineConfig(settings=LiveSettings(max_batch=16, draft_method="suffix")))
        self.messages: list[r.Message] = []

    def until(self, met, limit: float = 120.0) -> None:
        end = time.monotonic() + limit
        while not met():
            assert time.monotonic() < end and self.client.state not in ("dead", "ended")
            self.client.wait(0.05)
            self.messages += self.client.poll()

    def of(self, kind: type) -> list:
        return [m for m in self.messages if isinstance(m, kind)]


@pytest.fixture
def engine():
    listener = Listener()
    listener.until(lambda: listener.of(r.Ready))
    yield listener
    listener.client.close()
    assert listener.client.join(10)


def test_no_step_after_ready_compiles_anything(engine):
    client, number, sent = engine.client, 0, 0
    for changes in SETTINGS:
        command = r.Change(id=client.next_id(), changes=changes)
        client.send(command)
        for kind, asked in KINDS.items():
            for tokens in (3, 40, 300):  # one row of a few queries, a chunk, several
                number += 1
                sent += max(asked.get("n", 1), asked.get("beams", 0))
                prompt = [100 + (number * 31 + i * 7) % 4_000 for i in range(tokens)]
                request = r.Request(number=number, token_ids=prompt, max_tokens=6, label=kind, **asked)
                client.send(r.Submit(id=client.next_id(), request=request))
        engine.until(lambda: sum(isinstance(e, r.Finished) for s in engine.of(r.StepRecord) + engine.of(r.Between)
                                 for e in s.events) >= sent)  # noqa: B023
        [ack] = [a for a in engine.of(r.Ack) if a.id == command.id]
        assert ack.ok, ack.message
    assert not engine.of(r.Refused)
    assert engine.of(r.Compiled) == []


def test_the_draft_head_is_compiled_when_it_is_asked_for_and_that_is_told_or_was_in_the_cache(engine):
    """Whoever hears nothing of it found it compiled: the log is asked, not a clock."""
    client = engine.client
    command = r.Change(id=client.next_id(), changes={"draft_method": "head", "draft_length": 3})
    client.send(command)
    engine.until(lambda: any(a.id == command.id for a in engine.of(r.Ack)))
    told = len(engine.of(r.Compiled))
    for number in (1, 2):
        request = r.Request(number=number, token_ids=[100 + i for i in range(20)], max_tokens=20, sampling=GREEDY)
        client.send(r.Submit(id=client.next_id(), request=request))
    engine.until(lambda: sum(isinstance(e, r.Finished) for s in engine.of(r.StepRecord) for e in s.events) >= 2)
    assert len(engine.of(r.Compiled)) == told, "its steps find it compiled"


def test_a_start_of_the_whole_window_is_light_and_compiles_nothing_late():
    command = [sys.executable, "-m", "app.bench.startup", repr(time.time())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["heavy"] == [] and len(HEAVY) > 5
    assert told["compiled_when_ready"] == []
    assert told["window_s"] < told["ready_s"] < told["first_token_s"]
    assert told["frames_while_loading"] > 5, "the window is alive while the engine loads"
    assert "loading weights" in told["stages"]
