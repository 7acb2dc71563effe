"""Lifetime, idle time and reuse gaps: exact against a pool at known times, and against what an engine's pool did."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from engine import records as r
from engine.block_pool import BlockPool
from engine.config import EngineConfig
from tests.engine.test_block_pool import SIZE, compute, drop, sequence
from tests.support.fake_runner import settings
from tests.support.inprocess import InProcessEngine
from ui import block_events, log_bins
from ui.block_lives import BlockLives
from ui.block_past import past
from ui.block_story import tell
from ui.latency import SECOND
from ui.mirror import Mirror


class Driven:
    """A pool whose step and clock are the test's, and a mirror that gets its records."""

    def __init__(self, num_blocks: int = 6):
        self.pool, self.mirror = BlockPool(num_blocks, SIZE), Mirror()
        self.live: dict[int, object] = {}
        self._step = 0

    @property
    def lives(self) -> BlockLives:
        return self.mirror.history.lives

    def at(self, seconds: float) -> None:
        """The next step begins."""
        self._step += 1
        self._clock = round(seconds * SECOND)
        self.pool.at(self._step, self._clock)

    def run(self, seq: int, tokens: list[int], upto: int) -> None:
        s = sequence(seq, tokens)
        found = self.pool.lookup(s)
        self.pool.attach(s, found)
        s.computed = len(found) * SIZE
        compute(self.pool, s, upto)
        self.live[seq] = s

    def end(self, seq: int) -> None:
        drop(self.pool, self.live.pop(seq))

    def tell(self, *events: r.Event) -> None:
        """The step's record."""
        blocks, tables = self.pool.drain()
        pool = self.pool
        sealed = [(block, index, seq, int.from_bytes(whole[:8], "little"), int.from_bytes(parent[:8], "little"))
                  for block, index, seq, whole, parent, _ in pool.take_seal_notes()]  # fmt: skip
        self.mirror.apply(r.StepRecord(
            v=r.SCHEMA, step=self._step, start=self._clock, clock=self._clock, end_clock=self._clock + 1,
            timing=r.Timing(), rows=b"", blocks=blocks.tobytes(), tables=r.pack(tables, r.TABLE),
            bound="no_work", running=0, waiting=0, used=pool.used_count, cached=pool.cached_count,
            free=pool.free_count, emitted=b"", text=[], drafts=b"", draft_text=[],
            settings=settings(kv_blocks=pool.num_blocks, block_size=SIZE), budget=r.StepBudget(tokens=0),
            cache=r.pack(pool.take_cache_notes(), r.CACHE), sealed=r.pack(sealed, r.SEAL),
            sealed_text=[""] * len(sealed), copies=r.pack(pool.take_copy_notes(), r.COPY), events=events,
        ))  # fmt: skip


def seconds(measure) -> list[float]:
    return measure.seconds.value.tolist()


def steps(measure) -> list[float]:
    return measure.steps.value.tolist()


def test_a_life_with_hits_and_an_eviction_to_the_nanosecond() -> None:
    d = Driven()
    d.at(1.0)
    d.run(1, [7] * 8 + [1], 9)  # blocks 0 and 1 full, 2 holds one token
    d.tell()
    d.at(3.0)
    d.end(1)
    d.tell()
    assert seconds(d.lives.freed) == [2.0] and steps(d.lives.freed) == [1]  # block 2 wasn't full
    assert d.lives.lifetime.total == d.lives.gap.total == 0
    d.at(5.0)
    d.run(2, [7] * 8 + [2], 9)  # hits 0 and 1, takes 2
    d.run(3, [7] * 4 + [3], 5)  # shares 0, takes 3
    d.tell()
    assert seconds(d.lives.gap) == [4.0, 4.0, 0.0] and steps(d.lives.gap) == [2, 2, 0]
    d.at(6.5)
    d.end(2)
    d.end(3)
    d.tell()
    assert seconds(d.lives.freed) == [2.0, 1.5, 1.5]
    d.at(16.5)
    d.run(4, [9] * 24, 24)  # all six: 1 and 0 are evicted
    d.tell()
    assert seconds(d.lives.lifetime) == [15.5, 15.5] and steps(d.lives.lifetime) == [4, 4]
    assert seconds(d.lives.idle) == [11.5, 11.5] and steps(d.lives.idle) == [2, 2]
    assert seconds(d.lives.unused) == [10.0, 10.0] and steps(d.lives.unused) == [1, 1]
    assert d.lives.lifetime.seconds.seq.tolist() == [2, 3]  # the last holders of blocks 1 and 0
    # a life is its gaps and its idle time
    assert sum(seconds(d.lives.gap)) + sum(seconds(d.lives.idle)) == 2 * 15.5
    assert d.lives.lifetime.counts.sum() == 2 and d.lives.lifetime.counts[log_bins.place([15.5])[0]] == 2


def test_a_block_that_goes_and_comes_back_within_a_step_begins_anew() -> None:
    d = Driven()
    d.at(1.0)
    d.run(1, [1, 2, 3], 3)
    d.tell()
    d.at(2.0)
    d.end(1)
    d.run(2, [4, 5, 6, 7, 8], 5)  # takes 0 again, and 1
    d.tell()
    assert seconds(d.lives.freed) == [1.0]
    assert d.lives.born.tolist()[:2] == [2, 2] and d.lives.maker.tolist()[:2] == [2, 2]


def test_an_owner_that_leaves_a_shared_block_ends_no_life() -> None:
    d = Driven()
    d.at(1.0)
    d.run(1, [7] * 4 + [1], 5)
    d.tell()
    d.at(2.0)
    d.run(2, [7] * 4 + [2], 5)
    d.tell()
    d.at(3.0)
    d.end(1)
    d.tell()
    assert d.mirror.live.owner[0] == 2 and d.lives.born[0] == 1 and d.lives.reuses[0] == 1
    assert seconds(d.lives.freed) == [2.0]  # seq 1's second block


def test_a_smaller_pool_ends_what_lay_beyond_and_a_dropped_cache_ends_all() -> None:
    d = Driven()
    d.at(1.0)
    d.run(1, [5] * 24, 24)
    d.tell()
    d.at(2.0)
    d.end(1)
    d.tell()
    d.at(4.0)
    d.pool.resize(4)
    d.tell()
    assert seconds(d.lives.freed) == [3.0, 3.0] and len(d.lives.state) == 4
    d.at(5.0)
    d.pool.drop_cache()
    d.run(2, [6], 1)
    d.tell()
    assert seconds(d.lives.freed) == [3.0, 3.0, 4.0, 4.0, 4.0, 4.0]
    assert d.lives.lifetime.total == d.lives.idle.total == 0


def test_what_was_born_unseen_is_not_counted() -> None:
    d = Driven(2)
    d.at(1.0)
    d.run(1, [5] * 8, 8)
    d.tell()
    d.at(2.0)
    d.end(1)
    d.tell()
    state = d.mirror.live
    d.mirror.apply(r.Gap(first=3, last=3))
    d.mirror.apply(r.Keyframe(
        v=r.SCHEMA, step=3, clock=3 * SECOND, block_size=SIZE, settings=state.settings, budget=state.budget,
        state=state.blocks_state.tobytes(), refcount=state.refcount.tobytes(), filled=state.filled.tobytes(),
        owner=state.owner.tobytes(), table_seqs=b"", table_lengths=b"", table_blocks=b"", sequences=[], running=[],
        waiting=[],
    ))  # fmt: skip
    d.at(3.0)
    d.at(4.0)
    d.run(2, [5] * 5, 5)  # hits 0, evicts 1
    d.tell()
    assert d.lives.lifetime.total == d.lives.idle.total == d.lives.gap.total == 0
    assert seconds(d.lives.unused) == [2.0]  # the pool itself tells that
    d.at(6.0)
    d.end(2)
    d.run(3, [5] * 5, 5)
    d.tell()
    assert seconds(d.lives.gap) == [2.0]  # from the first touch that was seen


def test_events_of_a_block_are_its_past_and_the_oldest_fall_out() -> None:
    d = Driven(2)
    for second, tokens in enumerate(([1] * 5, [2] * 5, [1] * 5)):
        d.at(second + 1.0)
        d.run(second, tokens, 5)
        d.tell()
        d.at(second + 1.5)
        d.end(second)
        d.tell()
    assert d.lives.events.of(0, 99)["kind"].tolist() == [
        block_events.TAKEN, block_events.LET_GO, block_events.EVICTED, block_events.TAKEN, block_events.FREED,
        block_events.TAKEN, block_events.AGAIN, block_events.LET_GO,
    ]  # fmt: skip
    assert d.lives.events.of(0, 2)["kind"].tolist() == [block_events.TAKEN, block_events.LET_GO]
    ring = block_events.BlockEvents(kept=5)
    for step in range(12):
        ring.add(step, step, block_events.TAKEN, np.array([step % 2]), step, r.NONE)
    assert ring.of(1, 99)["step"].tolist() == [7, 9, 11] and ring.of(1, 9)["step"].tolist() == [7, 9]
    assert ring.forgets_before() == 7 and len(ring) == 5


class Witness:
    """Writes down lives where the pool makes them."""

    def __init__(self, pool: BlockPool):
        self.lifetimes, self.freed, self.idle, self.gaps = [], [], [], []
        born, touched = {}, {}
        own, grow, evict, free, attach = pool._own, pool.grow_each, pool._evict, pool._free_now, pool.attach

        def owned(block, seq):
            born[block] = touched[block] = (pool.step, pool.clock)
            own(block, seq)

        def grown(wants):
            for s, count in wants:
                grow(((s, count),))
                for block in s.table[len(s.table) - count :]:
                    born[block] = touched[block] = (pool.step, pool.clock)

        def evicted(seq):
            block = evict(seq)
            self.lifetimes.append((pool.clock - born[block][1], pool.step - born[block][0]))
            self.idle.append((pool.clock - touched[block][1], pool.step - touched[block][0]))
            return block

        def freed(block):
            free(block)
            self.freed.append((pool.clock - born[block][1], pool.step - born[block][0]))

        def attached(s, blocks):
            blocks = list(blocks)
            for block in blocks:
                self.gaps.append((pool.clock - touched[block][1], pool.step - touched[block][0]))
                touched[block] = (pool.step, pool.clock)
            attach(s, blocks)

        pool._own, pool.grow_each, pool._evict = owned, grown, evicted
        pool._free_now, pool.attach = freed, attached


def pairs(measure) -> Counter:
    return Counter(zip(np.rint(measure.seconds.value * SECOND).astype(int).tolist(),
                       measure.steps.value.astype(int).tolist(), strict=True))  # fmt: skip


@pytest.mark.parametrize(("draft_method", "shared"), [("off", False), ("ngram", False), ("off", True)])
def test_a_busy_engine_against_what_its_pool_did(draft_method: str, shared: bool) -> None:
    """Hits, sharing, evictions, preemptions in a tight pool. Only lives within one step may be missing."""
    live = settings(kv_blocks=24, block_size=8, max_batch=6, draft_method=draft_method)
    config = EngineConfig(settings=live, block_size=8, seed=5)
    source, mirror, rng = InProcessEngine(config), Mirror(), np.random.default_rng(11)
    mirror.apply_all(source.poll())
    witness = Witness(source.engine.pool)
    heads = [rng.integers(0, 8, 24).tolist() for _ in range(3)]
    for number in range(60):
        tokens = heads[number % 3][: int(rng.integers(8, 25))] + rng.integers(0, 8, int(rng.integers(1, 9))).tolist()
        several = {"n": int(rng.integers(1, 4))} if shared else {}
        request = r.Request(
            number=number, token_ids=tokens, max_tokens=int(rng.integers(2, 30)), ignore_eos=True, **several
        )
        source.send(r.Submit(id=source.next_id(), request=request))
        for _ in range(4):
            mirror.apply_all(source.poll())
    while source.engine.has_work:
        mirror.apply_all(source.poll())
    lives = mirror.history.lives
    assert lives.lifetime.total > 20 and lives.gap.total > 20 and lives.freed.total > 20
    assert pairs(lives.gap) == Counter(witness.gaps)
    assert pairs(lives.idle) == Counter(witness.idle)
    assert pairs(lives.lifetime) == Counter(witness.lifetimes)
    brief = Counter(pair for pair in witness.freed if pair[1] == 0)
    assert Counter(witness.freed) - pairs(lives.freed) <= brief
    assert not pairs(lives.freed) - Counter(witness.freed)
    assert {kind: int(n) for kind, n in enumerate(np.bincount(mirror.live.blocks_state, minlength=3))} == {
        kind: int(n) for kind, n in enumerate(np.bincount(lives.state, minlength=3))
    }


def test_a_blocks_story_tells_its_past() -> None:
    d = Driven(2)
    d.at(1.0)
    d.run(1, [7] * 5, 5)
    d.tell()

    def story(block: int = 0) -> list[str]:
        return tell(d.mirror.live, block, d.lives).lines

    assert story()[-1] == "allocated at step 1, in this step by seq 1"
    d.at(2.0)
    d.end(1)
    d.tell()
    assert story()[-2:] == [
        "allocated at step 1, 1 step (1.00 s) ago by seq 1", "cached since step 2, in this step · of seq 1",
    ]  # fmt: skip
    assert story(1)[-1] == "let go of at step 2, in this step by seq 1, not kept"
    d.at(3.5)
    d.run(2, [7] * 4 + [2], 5)
    d.tell()
    assert story()[-1] == "got again once at step 3, in this step by seq 2, after 1.50 s unused"
    d.at(4.0)
    d.end(2)
    d.tell()
    d.at(6.0)
    d.run(3, [9] * 8, 8)
    d.tell()
    assert story()[-2:] == [
        "allocated at step 5, in this step by seq 3",
        "evicted what seq 2 left in it, unused for 2.00 s; not asked for since",
    ]
    assert "got again" not in " ".join(story())
    # as it was then, from what is known now
    assert past(d.lives, d.mirror.state_at(2), 0)[-1] == "cached since step 2, in this step · of seq 1"
    assert tell(d.mirror.live, 0).lines[-1].startswith("taken at step 5")  # without a past the state's own words


def test_what_was_evicted_and_asked_for_again_is_told_where_it_was() -> None:
    d = Driven(4)
    d.at(1.0)
    d.run(1, [1] * 5, 5)  # 0 and 1
    d.tell()
    d.at(1.5)
    d.end(1)
    d.tell()
    d.at(2.0)
    d.run(2, [2] * 13, 13)  # all four; 0 is evicted
    d.tell()
    assert "not asked for since" in tell(d.mirror.live, 0, d.lives).lines[-1]
    d.at(4.5)
    d.pool.resize(6)
    d.run(3, [1] * 5, 5)  # 4 and 5
    d.tell()
    assert seconds(d.lives.again) == [2.5] and steps(d.lives.again) == [1]
    told = tell(d.mirror.live, 0, d.lives).lines[-1]
    assert told == "evicted what seq 1 left in it, unused for 500 ms; asked for again at step 4, in this step by seq 3"
    assert d.lives.events.of(4, 99)["kind"].tolist() == [block_events.TAKEN]
    d.at(5.0)
    d.end(3)
    d.run(4, [1] * 5, 5)  # a hit, and nothing that was evicted
    d.tell()
    assert d.lives.again.total == 1


def test_forks_end_no_life_and_copies_on_write_are_told() -> None:
    d = Driven()
    d.at(1.0)
    d.run(1, [7] * 6, 6)
    d.tell()
    d.at(2.0)
    child = d.live[2] = sequence(2, [7] * 6)
    d.pool.share(child, d.live[1])
    child.computed = 6
    d.tell(r.Forked(seq=2, parent=1, known=6, computed=6, shared=2, running=True, limit=9))
    assert d.lives.gap.total == 0 and d.lives.born.tolist()[:2] == [1, 1]
    d.at(3.0)
    d.pool.copy(d.live[1])  # block 1, which both hold, is about to be written to by seq 1
    d.tell()
    told = tell(d.mirror.live, 2, d.lives).lines
    assert told[-1] == "allocated at step 3, in this step by seq 1, for a copy of block 1 before writing to it"
    d.at(4.0)
    d.end(1)
    third = d.live[3] = sequence(3, [7] * 6)
    d.pool.share(third, child)
    d.end(2)  # as beams do: another holder outlives the one before it, within a step
    d.tell(r.Forked(seq=3, parent=2, known=6, computed=6, shared=2, running=True, limit=9))
    assert d.mirror.live.owner[1] == 3 and d.lives.born.tolist()[:2] == [1, 1]
    assert seconds(d.lives.freed) == [1.0]  # the copy


def test_bins_of_the_axis() -> None:
    values = np.array([0.0, 5e-5, 1e-4, 0.001, 0.01, 1.0, 1.2, 99.9, 100.0, 2e5])
    found = log_bins.place(values)
    assert found[0] == found[1] == 0 and found[-1] == log_bins.BINS - 1
    for value, index in zip(values[2:-1], found[2:-1], strict=True):
        assert log_bins.edge(index) <= value * (1 + 1e-9) < log_bins.edge(index + 1) * (1 + 1e-9)
    assert found[5] == log_bins.of_decade(0) and log_bins.edge(found[5]) == pytest.approx(1.0)
    assert log_bins.count(values).sum() == len(values)
    assert log_bins.median(log_bins.count([1.0, 1.0, 50.0])) == pytest.approx(1.0, rel=0.25)
    assert np.isnan(log_bins.median(np.zeros(log_bins.BINS, int))) and log_bins.median(log_bins.count([0.0])) == 0.0


def test_memory_stays_bounded() -> None:
    lives = BlockLives()
    lives.start(400_000)
    assert lives.nbytes < 24 << 20
    for step in range(101):
        change = np.zeros(3_000, r.BLOCK)
        change["block"], change["owner"], change["refcount"] = np.arange(3_000), step, 1
        change["state"], change["filled"] = r.USED, 4 - step % 2 * 3  # others' now, and fewer tokens in every second
        lives._changes(change, step, step * SECOND, False)
    assert len(lives.freed.seconds) == 50_000 and lives.freed.total == 300_000 == lives.freed.counts.sum()
    assert len(lives.events) == block_events.KEPT
