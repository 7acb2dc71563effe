"""The scheduling rule, case by case. 'compute' stands in for the runner: what was planned becomes computed."""

from __future__ import annotations

import pytest

from engine.block_pool import BlockPool
from engine.host_pool import HostPool
from engine.records import NONE, Admitted, Event, Preempted, Request
from engine.scheduler import Plan, Scheduler
from engine.sequence import Sequence
from tests.support.fake_runner import settings

SIZE = 4


class Bench:
    """A scheduler with sequences whose tokens are all different, so that no prefix is shared by chance."""

    def __init__(self, **changes: int | float | bool | str):
        self.settings = settings(**changes)
        self.events: list[Event] = []
        self.pool = BlockPool(self.settings.kv_blocks, SIZE)
        self.host = HostPool(self.settings.swap_blocks, block_bytes=100)
        self.scheduler = Scheduler(self.pool, self.host, self.settings, self.events)
        self.arrivals = 0

    def add(self, prompt: int, priority: int = 0, max_tokens: int = 20, tokens: list[int] | None = None) -> Sequence:
        self.arrivals += 1
        seq = self.arrivals
        s = Sequence(
            seq=seq,
            number=seq,
            request=Request(number=seq, max_tokens=max_tokens),
            prompt_tokens=prompt,
            tokens=tokens or [1_000 * seq + i for i in range(prompt)],
            arrival=seq,
            order=(priority, seq),
        )
        self.scheduler.add(s)
        return s

    def compute(self, plan: Plan, keep: int = 0) -> None:
        """Every row that reaches its end gets a token; of its drafts `keep` are accepted."""
        self.copied = tuple([pair.tolist() for pair in copies] for copies in self.host.copies())
        self.host.settle()
        for row in plan.rows:
            s = row.sequence
            start, accepted = s.computed, min(keep, len(row.drafts))
            s.tokens += row.drafts[:accepted] + [9_000 + s.known] * row.wants_logits
            s.computed = start + row.own + accepted
            self.pool.fill(s, start, s.computed)
            if self.settings.prefix_cache:
                self.pool.seal(s)
            self.scheduler.tidy(s)
        self.scheduler.check()

    def step(self, keep: int = 0) -> list[tuple[int, int, int]]:
        """One step; (seq, own, drafts) of its rows in order."""
        plan = self.scheduler.schedule(self.scheduler.settings.token_budget)
        rows = [(row.sequence.seq, row.own, len(row.drafts)) for row in plan.rows]
        self.bound = plan.bound
        self.compute(plan, keep)
        return rows

    def take_events(self) -> list[Event]:
        events = self.events[:]
        self.events.clear()
        return events


def test_decodes_first_then_chunks_then_admissions() -> None:
    bench = Bench(token_budget=10)
    bench.add(4)
    assert bench.step() == [(1, 4, 0)]
    bench.add(15)
    assert bench.step() == [(1, 1, 0), (2, 9, 0)]
    assert bench.bound == "token_budget"  # the chunk was cut
    bench.add(5)
    assert bench.step() == [(1, 1, 0), (2, 6, 0), (3, 3, 0)]
    assert bench.bound == "token_budget"
    assert bench.step() == [(1, 1, 0), (2, 1, 0), (3, 2, 0)]
    assert bench.bound == "no_work"


def test_drafts_take_only_what_is_left() -> None:
    bench = Bench(token_budget=8)
    a, b = bench.add(3), bench.add(3)
    bench.step()
    for s in (a, b):
        s.drafts = [7, 7, 7, 7]
    bench.add(3)
    # 2 decodes and the prompt of 3 leave 3 tokens; the older row's drafts come first
    assert bench.step() == [(1, 1, 3), (2, 1, 0), (3, 3, 0)]
    assert bench.bound == "token_budget"
    assert not a.drafts and not b.drafts


def test_drafts_never_preempt() -> None:
    bench = Bench(kv_blocks=4, max_context=16)
    a, b = bench.add(7), bench.add(7)
    bench.step()
    a.drafts, b.drafts = [7] * 4, [7] * 4
    # the pool is full: each row has room for its own token, in slot 8 of 8, and for no draft
    assert bench.step() == [(1, 1, 0), (2, 1, 0)]
    assert bench.bound == "kv_blocks"
    assert not any(isinstance(e, Preempted) for e in bench.events)


def test_drafts_with_room_for_all_are_as_those_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(one_by_one: bool) -> list[object]:
        bench, seen = Bench(kv_blocks=64, token_budget=60, max_context=64), []
        if one_by_one:
            trim = bench.scheduler._trim
            monkeypatch.setattr(bench.scheduler, "_drafts", lambda: bench.pool.grow_each(trim()[0]))
        sequences = [bench.add(3 + i, max_tokens=50) for i in range(4)]
        bench.step()
        for step in range(12):
            for i, s in enumerate(sequences):
                s.drafts = [7] * ((step + i) % 7)
            seen.append((bench.step(keep=step % 3), [list(s.table) for s in sequences], bench.pool.drain()[1]))
        return seen

    assert told(one_by_one=False) == told(one_by_one=True)


def test_rejected_drafts_give_their_blocks_back() -> None:
    bench = Bench()
    a = bench.add(4)
    bench.step()
    a.drafts = [7] * 6
    assert bench.step(keep=1) == [(1, 1, 6)]
    assert a.computed == 6 and len(a.table) == 2  # 11 slots were written in 3 blocks
    assert bench.pool.used_count == 2


def test_first_come_first_served_within_a_priority() -> None:
    bench = Bench(max_batch=2)
    bench.add(4)
    bench.add(4)
    bench.add(4, priority=-1)
    assert [seq for seq, _, _ in bench.step()] == [3, 1]
    assert bench.bound == "batch_cap"
    assert [s.seq for s in bench.scheduler.waiting] == [2]


def test_the_latest_arrival_is_preempted_and_returns_to_the_head() -> None:
    bench = Bench(kv_blocks=4, max_context=16, max_batch=2)
    a, b = bench.add(8), bench.add(8)
    bench.add(4)
    bench.step()
    bench.take_events()
    assert bench.step() == [(1, 1, 0)]  # its ninth token needs a third block
    assert bench.take_events() == [Preempted(seq=2, cause="kv_blocks", by=1, needed=1, lost=8)]
    assert bench.bound == "kv_blocks"
    assert (b.computed, len(b.table), b.preemptions, b.status) == (0, 0, 1, "waiting")
    assert [s.seq for s in bench.scheduler.waiting] == [2, 3]
    assert a.status == "running"


def test_a_row_already_planned_is_taken_out_and_its_budget_comes_back() -> None:
    bench = Bench(kv_blocks=5, max_context=20, token_budget=12)
    a = bench.add(7)
    bench.step()
    b = bench.add(9)
    bench.step()  # a and b decode now: 2 + 3 blocks
    assert (a.computed, b.computed) == (8, 9)
    a.order, b.order = (0, 9), (0, 1)  # as if b had come first
    bench.scheduler.running.sort(key=lambda s: s.order)
    for _ in range(3):
        b.tokens.append(5)  # b has prefill to do, a decodes and is planned before it
    bench.take_events()
    assert bench.step() == [(2, 4, 0)]
    preempted = [e for e in bench.take_events() if isinstance(e, Preempted)]
    assert [e.seq for e in preempted] == [1]


def test_the_needy_row_itself_is_preempted_when_it_is_the_latest() -> None:
    bench = Bench(kv_blocks=4, max_context=16)
    a, b = bench.add(6), bench.add(8)
    bench.step()
    bench.take_events()
    assert bench.step() == [(1, 1, 0)]
    assert bench.take_events() == [Preempted(seq=2, cause="kv_blocks", by=2, needed=1, lost=8)]
    assert (a.status, b.status) == ("running", "waiting")


def test_priority_decides_who_is_preempted() -> None:
    bench = Bench(kv_blocks=4, max_context=16)
    bench.add(8, priority=1)
    bench.add(8, priority=0)
    bench.step()
    assert bench.step() == [(2, 1, 0)]
    assert [s.seq for s in bench.scheduler.waiting] == [1]


def test_admission_leaves_the_watermark_and_what_running_prefills_need() -> None:
    bench = Bench(kv_blocks=10, max_context=40, watermark=0.2, token_budget=8)
    bench.add(16)
    assert bench.step() == [(1, 8, 0)]  # 2 blocks taken, 2 promised
    second = bench.add(20)
    # 10 − 2 − 2 − 2 for the watermark leave 4, and 5 are needed
    assert bench.step() == [(1, 8, 0)]
    assert second.status == "waiting" and bench.bound == "token_budget"
    bench.step()
    assert second.status == "waiting" and bench.bound == "kv_blocks"
    bench.scheduler.apply(settings(**{**_fields(bench), "watermark": 0.0}))
    bench.step()
    assert second.status == "running"


def test_the_watermark_is_waived_when_nothing_runs() -> None:
    bench = Bench(kv_blocks=4, max_context=16, watermark=0.5)
    bench.add(13)
    assert bench.step() == [(1, 13, 0)]


def test_a_pool_as_large_as_one_request_serves_one_at_a_time() -> None:
    bench = Bench(kv_blocks=4, max_context=16)
    a, b = bench.add(10, max_tokens=6), bench.add(10, max_tokens=6)
    for _ in range(5):
        bench.step()
    assert a.known == 15 and b.status == "waiting"
    bench.scheduler.remove(a)
    assert bench.step() == [(2, 10, 0)]


def test_prefix_hits_are_not_computed_again() -> None:
    bench = Bench()
    tokens = list(range(10))
    bench.add(10, tokens=tokens[:])
    bench.step()
    b = bench.add(10, tokens=tokens[:])
    assert bench.step() == [(1, 1, 0), (2, 2, 0)]
    assert b.cached_tokens == 8
    events = [e for e in bench.take_events() if isinstance(e, Admitted)]
    assert [(e.seq, e.cached_tokens, e.limit, e.again) for e in events] == [(1, 0, 30, False), (2, 8, 30, False)]


def test_without_prefix_cache_nothing_is_shared() -> None:
    bench = Bench(prefix_cache=False)
    tokens = list(range(10))
    bench.add(10, tokens=tokens[:])
    bench.step()
    b = bench.add(10, tokens=tokens[:])
    assert bench.step() == [(1, 1, 0), (2, 10, 0)]
    assert not b.hashes


def test_whole_prompts_come_before_decodes() -> None:
    bench = Bench(chunked_prefill=False, token_budget=12, max_context=12, max_batch=8)
    bench.add(4)
    bench.step()
    bench.add(9)
    bench.add(9)
    assert bench.step() == [(2, 9, 0), (1, 1, 0)]
    assert bench.bound == "token_budget"
    assert bench.step() == [(3, 9, 0), (1, 1, 0), (2, 1, 0)]


def test_a_decode_waits_for_whole_prompts() -> None:
    bench = Bench(chunked_prefill=False, token_budget=12, max_context=12)
    bench.add(4)
    bench.step()
    bench.add(6)
    bench.add(6)
    assert bench.step() == [(2, 6, 0), (3, 6, 0)]
    assert bench.bound == "token_budget"


def test_a_chunk_begun_is_finished_whole_after_the_switch() -> None:
    bench = Bench(token_budget=8)
    bench.add(20)
    assert bench.step() == [(1, 8, 0)]
    bench.scheduler.apply(settings(**{**_fields(bench), "chunked_prefill": False, "token_budget": 64}))
    assert bench.step() == [(1, 12, 0)]


def test_a_lower_batch_preempts_at_once() -> None:
    bench = Bench(max_batch=4)
    for _ in range(4):
        bench.add(5)
    bench.step()
    bench.take_events()
    bench.scheduler.apply(settings(**{**_fields(bench), "max_batch": 2}))
    assert [s.seq for s in bench.scheduler.running] == [1, 2]
    assert [s.seq for s in bench.scheduler.waiting] == [3, 4]
    assert bench.take_events() == [
        Preempted(seq=seq, cause="max_batch", by=NONE, needed=0, lost=5) for seq in (4, 3)
    ]
    bench.scheduler.check()


def test_a_smaller_pool_preempts_whoever_holds_its_end() -> None:
    bench = Bench(kv_blocks=10, max_context=16)
    for _ in range(3):
        bench.add(8)
    bench.step()  # blocks 0..5
    bench.take_events()
    bench.scheduler.apply(settings(**{**_fields(bench), "kv_blocks": 5}))
    assert bench.take_events() == [Preempted(seq=3, cause="resize", by=NONE, needed=0, lost=8)]
    assert [s.seq for s in bench.scheduler.running] == [1, 2]
    bench.scheduler.check()


def test_a_prompt_that_no_longer_fits_is_turned_away_and_the_next_is_served() -> None:
    bench = Bench(max_context=64)
    bench.add(20)
    bench.add(5)
    bench.scheduler.apply(settings(**{**_fields(bench), "max_context": 20}))
    plan = bench.scheduler.schedule(bench.scheduler.settings.token_budget)
    assert [s.seq for s in plan.turned_away] == [1]
    assert [row.sequence.seq for row in plan.rows] == [2]


def test_a_limit_settled_at_admission_is_kept() -> None:
    bench = Bench(max_context=64, max_batch=1)
    a, b = bench.add(10, max_tokens=20), bench.add(10, max_tokens=20)
    bench.step()
    bench.scheduler.preempt(a, "max_batch")
    bench.scheduler.apply(settings(**{**_fields(bench), "max_context": 16, "max_batch": 2}))
    bench.step()
    assert (a.limit, b.limit) == (30, 16)


def test_the_order_of_a_step_does_not_depend_on_the_size_of_the_pool() -> None:
    def run(blocks: int) -> list[list[tuple[int, int, int]]]:
        bench = Bench(kv_blocks=blocks)
        for prompt in (9, 17, 3):
            bench.add(prompt)
        return [bench.step() for _ in range(6)]

    assert run(64) == run(4_096)


def _fields(bench: Bench) -> dict[str, int | float | bool | str]:
    now = bench.scheduler.settings
    return {name: getattr(now, name) for name in now.__struct_fields__}
