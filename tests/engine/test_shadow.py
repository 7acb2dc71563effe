"""The canary sings only when it should: on sound runs never, on a corrupted table, copy or reused block at once."""

from __future__ import annotations

import numpy as np
import pytest

from engine.core import Engine
from engine.records import Request
from engine.sampler import Sampler
from engine.speculation.ngram import NgramProposer
from tests.support.fake_runner import FakeRunner, TableModel, settings
from tests.support.shadow import Corrupted, Shadow


class Blind(FakeRunner):
    """Answers without looking at what it reads, so that only the canary can find out."""

    def _read(self, batch, row, i):
        return self.table_model.table[0, int(batch.tokens[i])]


def build(**changes: int | float | bool | str) -> tuple[Engine, Shadow]:
    now = settings(**{"draft_method": "ngram", **changes})
    runner = Blind(now.kv_blocks, 8, TableModel(8, seed=3, sharpness=3.0))
    runner.resize_host(now.swap_blocks)
    engine = Engine(runner, now, Sampler(8), bounds=runner.bounds(), proposers={"ngram": NgramProposer.of})
    shadow = Shadow(engine)
    for number in range(3):
        prompt = [1, 2, 3, 4] * 4 + [number] * 3
        engine.submit(number, prompt, Request(number=number, max_tokens=30, ignore_eos=True))
    return engine, shadow


def test_a_sound_run_is_silent_and_everything_was_looked_at() -> None:
    engine, shadow = build(kv_blocks=12, preemption="swap", swap_blocks=12)
    while engine.has_work:
        engine.step()
    assert shadow.reads > 500 and shadow.shared > 0


def test_a_corrupted_table_is_caught() -> None:
    engine, _ = build()
    for _ in range(3):
        engine.step()
    a, b, _ = engine.scheduler.running
    a.table[2], b.table[2] = b.table[2], a.table[2]
    with pytest.raises(Corrupted, match="there is 16 of sequence"):
        engine.step()


def test_two_blocks_of_one_table_in_the_wrong_order_are_caught() -> None:
    engine, _ = build(prefix_cache=False)
    engine.step()
    table = engine.scheduler.running[0].table
    table[0], table[1] = table[1], table[0]
    with pytest.raises(Corrupted, match="position 0; there is 8 of sequence 1"):
        engine.step()


def test_a_block_freed_too_early_is_caught() -> None:
    engine, _ = build(prefix_cache=False, max_batch=2)
    for _ in range(2):
        engine.step()
    a, b = engine.scheduler.running
    lost = a.table[0]
    engine.abort(b.number)
    a.table[0] = engine.pool.lru()[0]  # as if it had been given back and another taken
    with pytest.raises(Corrupted):
        for _ in range(3):
            engine.step()
    assert lost != a.table[0]


def test_blocks_that_come_back_in_the_wrong_order_are_caught() -> None:
    engine, shadow = build(prefix_cache=False, preemption="swap", swap_blocks=12)
    engine.step()
    engine.scheduler.preempt(engine.scheduler.running[0], "max_batch")
    swap_in = shadow.swap_in
    shadow.swap_in = lambda host, device: swap_in(host, np.flip(device))  # type: ignore[method-assign]
    with pytest.raises(Corrupted):
        engine.step()
