"""The load of the pool's bench is what its figures say, and its parts are all that they count."""

from __future__ import annotations

import time

import numpy as np
import pytest

from engine.kv_load import AHEAD, BLOCK_SIZE, COMMON_TOKENS, KEPT, Load, hold, make_engine
from engine.kv_times import PARTS, Job, Stopwatch, run
from engine.records import ACCEPTED, CACHE, DRAFT, EVICTED, REJECTED, SHARED, Admitted, unpack

ROWS, BLOCKS = 16, 512


@pytest.mark.parametrize("gamma", [0, 4])
def test_the_load_is_steady_and_the_pool_warm(gamma: int) -> None:
    engine = make_engine(BLOCKS, ROWS, gamma, seed=1)
    load = Load(engine, ROWS, seed=1)
    load.warm()
    engine.pool.check([])
    assert engine.pool.free_count == 0 and engine.pool.cached_count == BLOCKS and not engine.pool.changed
    order = engine.pool.lru()
    assert np.count_nonzero(np.abs(np.diff(order)) > 1) > len(order) // 40  # sequences went in no order
    running, kinds, hits, admitted, drafted, kept = [], [], 0, 0, 0, 0
    for _ in range(300):
        load.top_up()
        assert len(engine.scheduler.running) + len(engine.scheduler.waiting) == ROWS + AHEAD
        record = engine.step()
        running.append(record.running)
        kinds += unpack(record.cache, CACHE)["kind"].tolist()
        drafts = unpack(record.drafts, DRAFT)["verdict"].tolist()
        drafted, kept = drafted + len(drafts), kept + drafts.count(ACCEPTED)
        for event in record.events:
            assert type(event).__name__ in ("Submitted", "Admitted", "Finished")
            if isinstance(event, Admitted):
                admitted, hits = admitted + 1, hits + (event.cached_tokens == COMMON_TOKENS)
    engine.check()
    assert min(running[50:]) >= ROWS - 4 and admitted > ROWS
    assert hits > admitted // 2 and {EVICTED, SHARED} <= set(kinds)
    assert (drafted > 0) == (gamma > 0)


def test_drafts_stay_with_the_chance_that_is_said() -> None:
    engine = make_engine(BLOCKS, ROWS, 4, seed=2)
    load = Load(engine, ROWS, seed=2)
    examined = accepted = 0
    for _ in range(200):
        load.top_up()
        rows = engine.step()
        for verdict, count in zip(*np.unique(unpack(rows.drafts, DRAFT)["verdict"], return_counts=True), strict=True):
            examined += int(count) * (verdict in (ACCEPTED, REJECTED))
            accepted += int(count) * (verdict == ACCEPTED)
    assert examined > 2000 and accepted / examined == pytest.approx(KEPT, abs=0.04)


def test_the_same_seed_asks_the_same() -> None:
    told = []
    for _ in range(2):
        engine = make_engine(BLOCKS, ROWS, 0, seed=3)
        load = Load(engine, ROWS, seed=3)
        for _ in range(20):
            load.top_up()
            engine.step()
        told.append([(s.seq, s.tokens, s.request.max_tokens, list(s.table)) for s in engine.scheduler.running])
    assert told[0] == told[1]


def test_what_is_held_is_found_again() -> None:
    engine = make_engine(BLOCKS, ROWS, 0, seed=4)
    tokens = Load(engine, ROWS, seed=4).tokens(4 * BLOCK_SIZE)
    held = hold(engine, tokens)
    engine.pool.check([held])
    assert engine.pool.lookup(held) == list(held.table)


def test_a_stopwatch_counts_what_it_is_put_around() -> None:
    watch = Stopwatch()
    slow = watch.around(lambda seconds: time.sleep(seconds) or seconds)
    began = time.perf_counter_ns()
    assert [slow(0.01), slow(0.02)] == [0.01, 0.02]
    assert 30e6 <= watch.take() <= time.perf_counter_ns() - began and watch.take() == 0


def test_the_answer_has_every_step_and_its_parts() -> None:
    answer = run(Job(blocks=BLOCKS, gammas=[0, 4], rows=ROWS, steps=30))
    assert (answer["blocks"], answer["rows"], answer["block_size"]) == (BLOCKS, ROWS, BLOCK_SIZE)
    assert [load["gamma"] for load in answer["loads"]] == [0, 4]
    for load in answer["loads"]:
        assert len(load["us"]) == 30 and min(load["us"]) > 0
        assert set(load["parts_ms"]) == set(PARTS) and all(ms > 0 for ms in load["parts_ms"].values())
        assert max(load["parts_ms"].values()) * 1e3 < np.median(load["us"]) < 3 * sum(load["parts_ms"].values()) * 1e3
        assert ROWS - 4 < load["running"] <= ROWS and load["ended"] > 0 and load["evicted"] > 0
        assert load["drafted"] == 0 if load["gamma"] == 0 else load["drafted"] > 3.5
    assert answer["loads"][1]["ended"] > answer["loads"][0]["ended"]  # drafts bring ends nearer
    assert 0 < answer["alloc_free_us"] < 1000 and 0 < answer["lookup_us_per_block"] < 1000
