"""Policies of admission and allocation, case by case: who may come in, into which blocks, and what they waste."""

from __future__ import annotations

import msgspec
import pytest

from engine.formulas import Waste, waste_parts
from engine.records import Preempted
from engine.sequence import Sequence
from tests.engine.test_scheduler import SIZE, Bench


def switch(bench: Bench, **changes: int | float | bool | str) -> None:
    bench.settings = msgspec.structs.replace(bench.settings, **changes)
    bench.scheduler.apply(bench.settings)
    bench.scheduler.check()


def waste(bench: Bench) -> Waste:
    pool = bench.pool
    return waste_parts(pool.stored, pool.used_count, pool.empty, bench.scheduler.admission.gaps, pool.block_size)


def running(bench: Bench) -> list[int]:
    return [s.seq for s in bench.scheduler.running]


# --- reserved ---


def test_a_reservation_is_a_row_of_blocks_for_the_limit() -> None:
    bench = Bench(allocation="reserved", max_context=64)
    a, b = bench.add(5, max_tokens=8), bench.add(3, max_tokens=100)
    bench.step()
    assert list(a.table) == [0, 1, 2, 3] and list(b.table) == [4 + i for i in range(16)]
    assert a.reserved and waste(bench) == Waste(8, (2 + 15) * SIZE, 3 + 1, 0)
    for _ in range(6):
        bench.step()
    assert list(a.table) == [0, 1, 2, 3] and a.known == 12  # never grew
    assert not any(isinstance(e, Preempted) for e in bench.events)


def test_first_fit_takes_the_lowest_row_that_is_long_enough() -> None:
    bench = Bench(kv_blocks=12, allocation="reserved", max_context=48)
    a, b, c = (bench.add(4, max_tokens=n) for n in (4, 12, 4))  # 2, 4 and 2 blocks: 0–1, 2–5, 6–7
    bench.step()
    bench.scheduler.remove(a)
    bench.scheduler.remove(c)
    d, e = bench.add(4, max_tokens=12), bench.add(4, max_tokens=2)  # 4 fit from 6 on, 2 from 0 on
    bench.step()
    assert (d.table[0], e.table[0]) == (6, 0) and list(b.table) == [2, 3, 4, 5]


def test_gaps_that_the_next_reservation_does_not_fit_into_are_waste() -> None:
    bench = Bench(kv_blocks=8, allocation="reserved", max_context=32)
    rows = [bench.add(3, max_tokens=5) for _ in range(4)]  # 2 blocks each
    bench.step()
    bench.scheduler.remove(rows[0])
    bench.scheduler.remove(rows[2])
    big = bench.add(5, max_tokens=7)  # 3 blocks, and 2 and 2 are there
    bench.step()
    assert big.status == "waiting" and bench.bound == "kv_blocks"
    assert waste(bench) == Waste(8, 8, 0, 16) and waste(bench).share == pytest.approx(24 / 32)
    bench.step()
    assert bench.scheduler.admission.gaps == 4  # not counted again, and still so
    bench.scheduler.remove(rows[1])
    bench.step()
    assert list(big.table) == [0, 1, 2] and bench.scheduler.admission.gaps == 0


def test_a_reservation_evicts_cached_blocks_and_shares_nothing() -> None:
    bench = Bench(kv_blocks=8, max_context=32)
    tokens = list(range(8))
    a = bench.add(8, tokens=tokens[:])
    bench.step()
    bench.scheduler.remove(a)
    assert bench.pool.cached_count == 2
    switch(bench, allocation="reserved")
    b = bench.add(8, tokens=tokens[:], max_tokens=8)
    assert bench.step() == [(2, 8, 0)]
    assert (list(b.table), b.cached_tokens, bench.pool.cached_count, b.sealed) == ([0, 1, 2, 3], 0, 0, 0)


def test_who_runs_keeps_the_allocation_it_came_with() -> None:
    bench = Bench(allocation="reserved")
    a = bench.add(6, max_tokens=10)
    bench.step()
    switch(bench, allocation="paged")
    b = bench.add(6, max_tokens=10)
    bench.step()
    assert (len(a.table), len(b.table)) == (4, 2) and a.reserved and not b.reserved
    switch(bench, allocation="reserved")
    bench.step()
    assert not b.reserved
    bench.scheduler.preempt(b, "max_batch")
    bench.step()
    assert b.reserved and len(b.table) == 4  # it was admitted again


def test_paged_rows_grow_beside_reservations_by_preempting_the_latest() -> None:
    bench = Bench(kv_blocks=6, max_context=24)
    a = bench.add(7, max_tokens=17)
    bench.step()
    switch(bench, allocation="reserved")
    b = bench.add(4, max_tokens=12)
    bench.step()
    assert b.reserved and len(b.table) == 4 and bench.pool.available == 0
    bench.step()
    assert running(bench) == [1] and len(a.table) == 3 and not b.reserved


# --- static ---


def test_a_static_batch_lets_nobody_join_until_all_have_left() -> None:
    bench = Bench(batching="static", max_batch=2)
    rows = [bench.add(4) for _ in range(3)]
    bench.step()
    assert running(bench) == [1, 2] and bench.bound == "batch_cap"
    bench.scheduler.remove(rows[0])
    bench.step()
    assert running(bench) == [2] and bench.bound == "static"
    bench.scheduler.remove(rows[1])
    bench.step()
    assert running(bench) == [3]


def test_a_static_batch_forms_over_as_many_steps_as_the_budget_needs() -> None:
    bench = Bench(batching="static", token_budget=8, max_batch=3)
    for _ in range(4):
        bench.add(6)
    bench.step()
    assert running(bench) == [1, 2] and bench.bound == "token_budget"
    bench.step()
    bench.step()
    assert running(bench) == [1, 2, 3]
    bench.step()
    assert running(bench) == [1, 2, 3] and bench.bound == "static"


def test_an_empty_queue_closes_a_static_batch() -> None:
    bench = Bench(batching="static")
    bench.add(4)
    bench.step()
    bench.add(4)
    bench.step()
    assert running(bench) == [1] and bench.bound == "static"
    switch(bench, batching="continuous")
    bench.step()
    assert running(bench) == [1, 2]


# --- how much room ---


def test_admission_by_chunk_needs_room_for_the_next_chunk_only() -> None:
    bench = Bench(kv_blocks=10, max_context=40, token_budget=8)
    bench.add(24)
    for _ in range(3):
        bench.step()  # 6 blocks
    second = bench.add(16)  # 4 blocks whole, 2 for its first chunk of 7; 3 are left beside the first one's next
    bench.step()
    assert second.status == "waiting" and bench.bound == "kv_blocks"
    switch(bench, admission="chunk")
    assert bench.step() == [(1, 1, 0), (2, 7, 0)]


def test_the_watermark_stands_for_chunks_too() -> None:
    def second(watermark: float) -> Sequence:
        bench = Bench(kv_blocks=10, max_context=40, token_budget=8, admission="chunk", watermark=watermark)
        bench.add(24)
        for _ in range(3):
            bench.step()  # 6 blocks
        row = bench.add(12)
        bench.step()  # of 10 blocks 7 are used; the chunk of 7 needs 2
        return row

    assert second(0.0).status == "running" and second(0.2).status == "waiting"
