"""The pool: three states, exact order of reuse, sharing by reference, change notes."""

from __future__ import annotations

import hashlib

import pytest

from engine.block_pool import BlockPool
from engine.records import CACHED, EVICTED, FREE, HIT, NONE, SHARED, USED, Request
from engine.sequence import Sequence

SIZE = 4


def sequence(seq: int, tokens: list[int]) -> Sequence:
    return Sequence(
        seq=seq,
        number=seq,
        request=Request(number=seq),
        prompt_tokens=len(tokens),
        tokens=list(tokens),
        arrival=seq,
        order=(0, seq),
    )


def compute(pool: BlockPool, s: Sequence, upto: int, seal: bool = True) -> None:
    """As a step does: blocks, K/V, hashes."""
    pool.grow(s, -(-upto // SIZE) - len(s.table))
    pool.fill(s, s.computed, upto)
    s.computed = upto
    if seal:
        pool.seal(s)


def held(pool: BlockPool, seq: int, tokens: list[int], upto: int) -> Sequence:
    s = sequence(seq, tokens)
    compute(pool, s, upto)
    return s


def drop(pool: BlockPool, s: Sequence) -> None:
    pool.truncate(s, 0)
    s.computed = 0


def states(pool: BlockPool) -> tuple[int, int, int]:
    return pool.free_count, pool.cached_count, pool.used_count


def test_blocks_come_in_order_and_the_last_freed_comes_first() -> None:
    pool = BlockPool(6, SIZE)
    a = held(pool, 1, [1] * 9, 9)
    assert list(a.table) == [0, 1, 2]
    b = sequence(2, [2] * 6)
    compute(pool, b, 6, seal=False)
    assert list(b.table) == [3, 4]
    drop(pool, b)  # never hashed, so free: 4 went first, 3 last
    assert pool.lru() == [3, 4, 5]
    assert states(pool) == (3, 0, 3)
    pool.check([a])


def test_exact_order_of_eviction() -> None:
    """Free blocks first, then cached ones, least recently used first, the tail of a prefix before its head."""
    pool = BlockPool(8, SIZE)
    a = held(pool, 1, [1] * 9, 9)  # 0 1 full, 2 not
    b = held(pool, 2, [2] * 8, 8)  # 3 4
    drop(pool, b)
    drop(pool, a)
    assert pool.lru() == [2, 5, 6, 7, 4, 3, 1, 0]
    c = sequence(3, [2] * 8)
    pool.attach(c, pool.lookup(c))  # touches 3 and 4: from now on the most recently used
    c.computed = 7
    drop(pool, c)
    assert pool.lru() == [2, 5, 6, 7, 1, 0, 4, 3]
    d = sequence(4, [5] * 32)
    order = pool.lru()
    pool.grow(d, 8)
    assert list(d.table) == order
    assert states(pool) == (0, 0, 8)
    e = sequence(5, [1] * 9)
    assert pool.lookup(e) == []  # evicted, so not found any more
    pool.check([d])


def test_eviction_is_lazy() -> None:
    pool = BlockPool(4, SIZE)
    a = held(pool, 1, [1] * 8, 8)
    drop(pool, a)
    assert states(pool) == (2, 2, 0)
    b = held(pool, 2, [2] * 8, 8)  # the two free ones: nothing cached is lost
    assert states(pool) == (0, 2, 2)
    again = sequence(3, [1] * 9)
    assert pool.lookup(again) == [0, 1]
    pool.check([b])


@pytest.mark.parametrize(("known", "hits"), [(3, 0), (4, 1), (5, 1), (8, 2), (9, 2), (12, 2), (13, 2)])
def test_a_hit_is_of_whole_blocks(known: int, hits: int) -> None:
    pool = BlockPool(8, SIZE)
    a = held(pool, 1, [1] * 8, 8)
    drop(pool, a)
    assert len(pool.lookup(sequence(2, [1] * known))) == hits


def test_a_hash_means_the_whole_prefix() -> None:
    pool = BlockPool(8, SIZE)
    held(pool, 1, [1, 1, 1, 1, 2, 2, 2, 2], 8)
    assert pool.lookup(sequence(2, [3, 3, 3, 3, 2, 2, 2, 2, 0])) == []
    assert pool.lookup(sequence(3, [1, 1, 1, 1, 3, 3, 3, 3, 0])) == [0]
    assert pool.lookup(sequence(4, [1, 1, 1, 1, 2, 2, 2, 2, 0])) == [0, 1]


class OneBucket(bytes):
    """A digest that falls into the same place of every hash table as any other."""

    def __hash__(self) -> int:
        return 7


def test_digests_in_one_bucket_of_the_table_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hash:
        def __init__(self, data: bytes, digest_size: int):
            self._digest = OneBucket(hashlib.blake2b(data, digest_size=digest_size).digest())

        def digest(self) -> bytes:
            return self._digest

    monkeypatch.setattr("engine.prefix_index.blake2b", Hash)
    pool = BlockPool(64, SIZE)
    prompts = [[first, second] * SIZE for first in range(4) for second in range(4)]
    tables = [list(held(pool, seq, prompt, 2 * SIZE).table) for seq, prompt in enumerate(prompts)]
    assert {hash(digest) for digest in pool.findable().values()} == {7}
    for seq, (prompt, table) in enumerate(zip(prompts, tables, strict=True), start=100):
        assert pool.lookup(sequence(seq, [*prompt, 9])) == table
        assert pool.lookup(sequence(seq, [*prompt[:SIZE], 9, 9, 9, 9, 9])) == table[:1]
        assert pool.lookup(sequence(seq, [9, *prompt])) == []


def test_sharing_is_by_reference_and_the_oldest_holder_owns() -> None:
    pool = BlockPool(8, SIZE)
    a = held(pool, 1, [1] * 9, 9)
    b, c = sequence(2, [1] * 10), sequence(3, [1] * 12)
    for s in (b, c):
        pool.attach(s, pool.lookup(s))
        s.computed = 8
    assert list(b.table) == list(c.table) == [0, 1]
    assert (pool.refcount[0], pool.owner[0], pool.used_count) == (3, 1, 3)
    drop(pool, a)
    assert (pool.refcount[0], pool.owner[0], pool.state[0]) == (2, 2, USED)
    pool.check([b, c])
    drop(pool, b)
    assert (pool.refcount[0], pool.owner[0]) == (1, 3)
    drop(pool, c)
    assert (pool.refcount[0], pool.owner[0], pool.state[0], pool.filled[0]) == (0, 3, CACHED, SIZE)
    pool.check([])


def test_of_equal_blocks_the_first_stays() -> None:
    pool = BlockPool(8, SIZE)
    a, b = sequence(1, [1] * 5), sequence(2, [1] * 5)
    compute(pool, a, 5)
    compute(pool, b, 5)  # ran beside the first, so it could not hit
    assert pool.lookup(sequence(3, [1] * 5)) == [a.table[0]]
    drop(pool, b)
    assert states(pool) == (6, 0, 2)  # the twin had no hash: free, not cached
    drop(pool, a)
    assert states(pool) == (7, 1, 0)
    pool.check([])


def test_only_computed_tokens_are_sealed() -> None:
    pool = BlockPool(8, SIZE)
    a = sequence(1, [1] * 12)
    pool.grow(a, 3)
    pool.fill(a, 0, 7)
    a.computed = 7
    pool.seal(a)
    assert pool.lookup(sequence(2, [1] * 12)) == [0]
    assert [pool.filled[b] for b in a.table] == [4, 3, 0]


def test_a_shared_block_is_never_written() -> None:
    pool = BlockPool(8, SIZE)
    held(pool, 1, [1] * 5, 5)
    b = sequence(2, [1] * 6)
    pool.attach(b, pool.lookup(b))
    with pytest.raises(AssertionError):
        pool.fill(b, 3, 4)


def test_dropping_the_cache_frees_and_forgets() -> None:
    pool = BlockPool(6, SIZE)
    a, b = held(pool, 1, [1] * 9, 9), held(pool, 2, [2] * 5, 5)
    drop(pool, a)
    assert states(pool) == (2, 2, 2)
    pool.drop_cache()
    assert states(pool) == (4, 0, 2)
    assert pool.lookup(sequence(3, [2] * 5)) == []  # of blocks in use too
    b.sealed = 0
    pool.check([b])
    drop(pool, b)
    assert states(pool) == (6, 0, 0)


def test_changes_are_noted_once_with_final_values() -> None:
    pool = BlockPool(4, SIZE)
    assert not pool.changed
    a = held(pool, 7, [1] * 5, 5)
    assert pool.changed
    blocks, tables = pool.drain()
    assert blocks.tolist() == [(0, USED, 1, 4, 7), (1, USED, 1, 1, 7)]
    assert tables == [(7, 0, 0), (7, 1, 1)]
    assert not pool.changed and not len(pool.drain()[0])
    drop(pool, a)
    blocks, tables = pool.drain()
    assert blocks.tolist() == [(0, CACHED, 0, 4, 7), (1, FREE, 0, 0, NONE)]
    assert tables == [(7, 0, NONE)]


def test_a_smaller_pool_keeps_what_lies_below() -> None:
    pool = BlockPool(6, SIZE)
    a = held(pool, 1, [1] * 8, 8)
    b = held(pool, 2, [2] * 16, 16)
    drop(pool, b)  # 2..5 cached
    pool.resize(4)
    assert states(pool) == (0, 2, 2)
    assert pool.lookup(sequence(3, [2] * 16)) == [2, 3]
    pool.check([a])
    with pytest.raises(AssertionError):
        pool.resize(1)


def test_new_blocks_are_taken_last() -> None:
    pool = BlockPool(2, SIZE)
    pool.resize(4)
    assert pool.lru() == [0, 1, 2, 3]
    pool.check([])


def test_a_pool_cut_and_grown_between_two_notes_tells_what_was_lost() -> None:
    pool = BlockPool(4, SIZE)
    a = held(pool, 1, [1] * 16, 16)
    drop(pool, a)
    pool.drain()
    pool.resize(2)
    pool.resize(6)
    assert pool.changed
    blocks, _ = pool.drain()
    assert blocks.tolist() == [(2, FREE, 0, 0, NONE), (3, FREE, 0, 0, NONE)]  # 4 and 5 are new, so free by definition
    pool.check([])


def test_check_finds_a_lost_block() -> None:
    pool = BlockPool(4, SIZE)
    a = held(pool, 1, [1] * 5, 5)
    a.table.pop()
    with pytest.raises(AssertionError):
        pool.check([a])


# --- what the prefix cache says of itself ---


def test_hits_tell_how_long_a_block_was_idle_and_whose_it_was() -> None:
    pool = BlockPool(8, SIZE)
    pool.at(3, 1_000)
    a = held(pool, 1, [1] * 9, 9)
    b = sequence(2, [1] * 9)
    pool.at(4, 1_100)
    pool.attach(b, pool.lookup(b))
    assert pool.take_cache_notes() == [(SHARED, 0, 2, 1, 0, 0), (SHARED, 1, 2, 1, 0, 0)]
    drop(pool, a)
    pool.at(6, 1_500)
    drop(pool, b)  # the last to let go
    pool.at(10, 4_000)
    c = sequence(3, [1] * 9)
    pool.attach(c, pool.lookup(c))
    assert pool.take_cache_notes() == [(HIT, 0, 3, 2, 4, 2_500), (HIT, 1, 3, 2, 4, 2_500)]
    assert pool.take_cache_notes() == []


def test_evictions_tell_who_took_the_place_of_whom_after_how_long() -> None:
    pool = BlockPool(3, SIZE)
    a = held(pool, 1, [1] * 9, 8)
    pool.at(2, 50)
    drop(pool, a)
    pool.at(5, 80)
    b = sequence(2, [2] * 12)
    pool.grow(b, 3)  # one was free
    assert pool.take_cache_notes() == [(EVICTED, 1, 2, 1, 3, 30), (EVICTED, 0, 2, 1, 3, 30)]


def test_what_a_setting_makes_free_is_no_eviction() -> None:
    pool = BlockPool(6, SIZE)
    drop(pool, held(pool, 1, [1] * 9, 8))
    drop(pool, held(pool, 2, [2] * 17, 16))
    pool.resize(4)
    pool.drop_cache()
    assert pool.take_cache_notes() == []


def test_a_rebuilt_pool_tells_every_block() -> None:
    pool = BlockPool(6, SIZE)
    drop(pool, held(pool, 1, [1] * 9, 8))
    pool.drain()
    pool.rebuild(5, 8)
    assert pool.changed and pool.lru() == [0, 1, 2, 3, 4]
    blocks, tables = pool.drain()
    assert blocks.tolist() == [(block, FREE, 0, 0, NONE) for block in range(5)] and tables == []
    pool.check([])
