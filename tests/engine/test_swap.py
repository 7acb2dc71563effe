"""Preemption by swap: what moves where and when, what falls back to recompute, and what a record says of its price."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from engine.block_pool import BlockPool
from engine.config import SettingRefused
from engine.core import Engine
from engine.host_pool import HostPool
from engine.records import HOST, NONE, ROW, Admitted, Between, Dropped, Preempted, Request, StepRecord, unpack
from engine.runner import kv_pool
from engine.runner.kv_pool import KVPool, copy_blocks
from engine.sampler import Sampler
from tests.engine.test_block_pool import SIZE, compute, sequence
from tests.engine.test_scheduler import Bench
from tests.support.applier import Applier
from tests.support.fake_runner import FakeRunner, TableModel, settings

SWAP = {"preemption": "swap", "swap_blocks": 8}


def switch(bench: Bench, **changes: int | float | bool | str) -> None:
    bench.settings = msgspec.structs.replace(bench.settings, **changes)
    bench.scheduler.apply(bench.settings)


# --- bookkeeping ---


def test_blocks_go_out_in_logical_order_and_come_back_where_the_table_is() -> None:
    pool, host = BlockPool(8, SIZE), HostPool(5)
    s = sequence(1, list(range(12)))
    compute(pool, s, 10)
    assert host.move_out(s, SIZE, {})
    assert (list(s.host), s.swapped, host.free_count) == ([0, 1, 2], 10, 2)
    assert [pair.tolist() for pair in host.copies()[0]] == [[0, 1, 2], [0, 1, 2]]
    assert host.drain().tolist() == [(0, 1, 0, 4), (1, 1, 1, 4), (2, 1, 2, 2)]
    pool.truncate(s, 0)
    s.computed = 0
    host.settle()
    host.check([s], SIZE)
    other = sequence(2, [5] * 4)
    compute(pool, other, 4)  # takes a block that was its
    pool.grow(s, 3)
    host.move_in(s, 1)  # its first block came from the prefix cache
    (_, _), (back, there) = host.copies()
    assert (back.tolist(), there.tolist()) == ([1, 2], list(s.table[1:]))
    host.settle()
    assert (s.swapped, len(s.host), host.free_count) == (0, 0, 5)
    assert set(host.drain()["owner"].tolist()) == {NONE}


def test_what_does_not_fit_stays_where_it_is() -> None:
    pool, host = BlockPool(8, SIZE), HostPool(2)
    s = sequence(1, list(range(12)))
    compute(pool, s, 10)
    assert not host.move_out(s, SIZE, {})
    assert not host.pending and not s.host and s.swapped == 0


def test_a_sequence_preempted_before_it_moved_in_loses_nothing() -> None:
    pool, host = BlockPool(8, SIZE), HostPool(4)
    s = sequence(1, list(range(9)))
    compute(pool, s, 8)
    host.move_out(s, SIZE, {})
    pool.truncate(s, 0)
    host.settle()
    pool.grow(s, 2)
    host.move_in(s, 0)
    assert host.stay(s) and not host.pending and (s.swapped, list(s.host)) == (8, [0, 1])


def test_dropping_cancels_the_copy() -> None:
    pool, host = BlockPool(8, SIZE), HostPool(4)
    s = sequence(1, list(range(9)))
    compute(pool, s, 8)
    host.move_out(s, SIZE, {})
    host.drop(s)
    assert not host.pending and host.free_count == 4 and s.swapped == 0


# --- scheduling ---


def test_a_victim_is_moved_out_and_back_and_computes_nothing_twice() -> None:
    bench = Bench(kv_blocks=4, max_context=16, max_batch=2, prefix_cache=False, **SWAP)
    a, b = bench.add(8, max_tokens=8), bench.add(8, max_tokens=8)
    bench.step()
    held = list(b.table)
    bench.take_events()
    assert bench.step() == [(1, 1, 0)]
    assert bench.take_events() == [Preempted(seq=2, cause="kv_blocks", by=1, needed=1, lost=0, swapped=8, bytes=200)]
    assert bench.copied == ([held, [0, 1]], [[], []]) and (b.computed, b.swapped) == (0, 8)
    bench.scheduler.remove(a)
    assert bench.step() == [(2, 1, 0)]
    (event,) = bench.take_events()
    assert isinstance(event, Admitted) and (event.returned, event.cached_tokens, event.again) == (8, 0, True)
    assert bench.copied == ([[], []], [[0, 1], list(b.table[:2])]) and b.swapped == 0


def test_blocks_still_cached_are_not_copied_back() -> None:
    bench = Bench(max_batch=2, **SWAP)
    b = bench.add(10)
    bench.step()
    bench.scheduler.preempt(b, "max_batch")
    assert bench.step() == [(1, 1, 0)]
    assert (b.cached_tokens, b.computed) == (8, 11)
    assert bench.copied[1] == [[2], [b.table[2]]]  # the third block was not full: it comes from the host


def test_a_full_host_pool_falls_back_to_recompute_and_says_so() -> None:
    bench = Bench(kv_blocks=4, max_context=16, prefix_cache=False, preemption="swap", swap_blocks=1)
    bench.add(8)
    b = bench.add(8)
    bench.step()
    bench.take_events()
    bench.step()
    (event,) = bench.take_events()
    assert isinstance(event, Preempted) and (event.lost, event.swapped, event.bytes) == (8, 0, 0)
    assert event.note == "the host pool has 1 free blocks of 1, 2 needed"
    assert b.reached == 8


def test_a_smaller_host_pool_drops_who_holds_its_end() -> None:
    bench = Bench(max_batch=4, **SWAP)
    rows = [bench.add(8) for _ in range(3)]
    bench.step()
    for row in reversed(rows):
        bench.scheduler.preempt(row, "max_batch")
    bench.host.settle()
    bench.take_events()
    switch(bench, swap_blocks=5)  # 3 has 0 and 1, 2 has 2 and 3, 1 has 4 and 5
    assert bench.take_events() == [Dropped(seq=1, cause="swap_blocks", lost=8)]
    assert [row.swapped for row in rows] == [0, 8, 8]
    bench.scheduler.check()
    switch(bench, preemption="recompute", swap_blocks=0)
    assert [row.swapped for row in rows] == [0, 0, 0] and bench.host.num_blocks == 0


def test_who_was_swapped_out_comes_back_so_after_the_switch_to_recompute() -> None:
    bench = Bench(prefix_cache=False, **SWAP)
    row = bench.add(8)
    bench.step()
    bench.scheduler.preempt(row, "max_batch")
    switch(bench, preemption="recompute")
    assert bench.step() == [(1, 1, 0)]


# --- the engine ---


def build(**changes: int | float | bool | str) -> tuple[Engine, Applier]:
    now = settings(**{"draft_method": "off", "prefix_cache": False, **changes})
    runner = FakeRunner(now.kv_blocks, 8, TableModel(8, seed=3, sharpness=3.0), room=64)
    runner.resize_host(now.swap_blocks)
    ticks = iter(range(1_000, 1 << 60, 10))
    engine = Engine(
        runner, now, Sampler(8), bounds=runner.bounds(), proposers={}, clock=lambda: next(ticks)
    )  # fmt: skip
    return engine, Applier(engine.keyframe())


def serve(engine: Engine, reader: Applier, count: int = 4) -> list[StepRecord]:
    for number in range(count):
        prompt = [(number + i) % 7 for i in range(12)]
        engine.submit(number, prompt, Request(number=number, max_tokens=40, ignore_eos=True))
    records = []
    while engine.has_work:
        records.append(engine.step())
        reader.apply(records[-1])
        engine.check()
        reader.expect(engine.keyframe())
    return records


def test_records_tell_the_price_of_swapping() -> None:
    engine, reader = build(kv_blocks=12, preemption="swap", swap_blocks=24)
    records = serve(engine, reader)
    moved = [r.swapped for r in records if r.swapped]
    out, back = sum(m.out for m in moved), sum(m.back for m in moved)
    assert out == back > 0 and sum(m.bytes for m in moved) == 2 * out * 24 * 8
    assert all(r.timing.swap >= r.swapped.ns > 0 for r in records if r.swapped)
    assert all(r.timing.swap == 0 for r in records if not r.swapped)
    assert sum(r.recomputed for r in records) == 0
    events = [e for r in records for e in r.events if isinstance(e, Preempted)]
    assert events and sum(e.bytes for e in events) == out * 24 * 8
    assert np.concatenate([unpack(r.host, HOST) for r in records]).size


def test_records_tell_the_price_of_recomputing() -> None:
    engine, reader = build(kv_blocks=12)
    records = serve(engine, reader)
    lost = sum(e.lost for r in records for e in r.events if isinstance(e, Preempted))
    computed = sum(int(unpack(r.rows, ROW)["scheduled"].sum()) for r in records)
    recomputed = sum(r.recomputed for r in records)
    assert 0 < recomputed == lost < computed
    assert computed - recomputed == 4 * (12 + 39)  # every token but the last of each, once


def test_a_change_between_steps_copies_at_once_and_before_the_pool_shrinks() -> None:
    engine, reader = build(kv_blocks=32, **SWAP)
    for number in range(3):
        engine.submit(number, [number] * 12, Request(number=number, max_tokens=20, ignore_eos=True))
    reader.apply(engine.step())
    engine.change({"kv_blocks": 8, "max_batch": 2, "max_context": 64})
    record = engine.between()
    assert isinstance(record, Between) and record.swapped is not None and record.swapped.out == 1  # 8 of its 12 tokens
    reader.apply(record)
    engine.check()
    while engine.has_work:
        reader.apply(engine.step())
    assert reader.outputs[3] == engine.runner.table_model.greedy([2] * 12, 20)


@pytest.mark.parametrize("changes", [{"preemption": "swap"}, {"preemption": "swap", "swap_blocks": 0}])
def test_swap_without_a_host_pool_is_refused(changes: dict[str, int | str]) -> None:
    engine, _ = build()
    with pytest.raises(SettingRefused, match="swap_blocks is 0; raise swap_blocks, or take recompute") as refused:
        engine.change(changes)
    assert refused.value.key == "swap_blocks" and engine.settings.preemption == "recompute"


def test_a_host_pool_that_does_not_fit_is_refused_and_the_other_pool_stands() -> None:
    engine, _ = build(kv_blocks=32)
    with pytest.raises(SettingRefused, match="a host pool of 100 blocks needs") as refused:
        engine.change({"kv_blocks": 40, "swap_blocks": 100})
    assert refused.value.key == "swap_blocks"
    engine.check()
    assert (engine.runner.num_blocks, engine.runner.host_blocks) == (32, 0)


# --- the copies ---

CONFIG = {"layers": 2, "kv_heads": 3, "head_dim": 4}


def pool_of(blocks: int, seed: int, device: str = "cpu") -> KVPool:
    config = msgspec.defstruct("Config", list(CONFIG))(*CONFIG.values())
    pool = KVPool(config, 8, torch.float16, torch.device(device))  # type: ignore[arg-type]
    pool.resize(blocks)
    generator = torch.Generator().manual_seed(seed)
    for keys, values in pool.layers:
        for tensor in (keys, values):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return pool


@pytest.mark.parametrize("staged", [False, True])
def test_copies_land_where_they_should_and_nowhere_else(staged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = pool_of(9, 1), pool_of(7, 2)
    before = [tensor.clone() for layer in target.layers for tensor in layer]
    if staged:  # as between two devices, in transfers of two blocks
        target.device = torch.device("cpu", 0)
        monkeypatch.setattr(kv_pool, "STAGED", 2 * source.bytes_per_block)
    blocks, places = np.array([8, 0, 3, 5, 1]), np.array([2, 6, 0, 1, 4])
    copy_blocks(source, blocks, target, places)
    flat = [tensor for layer in source.layers for tensor in layer]
    for mine, old, theirs in zip([t for layer in target.layers for t in layer], before, flat, strict=True):
        assert torch.equal(mine[:, places], theirs[:, blocks])
        assert torch.equal(mine[:, [3, 5]], old[:, [3, 5]])
