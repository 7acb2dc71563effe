"""What records tell of the prefix cache: who continues whom, in whose words, and what can't be found any more."""

from __future__ import annotations

import hashlib
from array import array

from engine.block_pool import BlockPool
from engine.prefix_log import PrefixLog
from engine.records import NONE, SEAL, Admitted, PrefixUse, unpack
from tests.engine.test_block_pool import SIZE, compute, drop, held, sequence
from tests.support.fake_texts import LetterTexts


def made(blocks: int = 8) -> tuple[BlockPool, PrefixLog]:
    pool = BlockPool(blocks, SIZE)
    return pool, PrefixLog(pool, LetterTexts())


def told(log: PrefixLog) -> list[tuple]:
    buffer, texts = log.drain([])
    return [(*seal, text) for seal, text in zip(unpack(buffer, SEAL).tolist(), texts, strict=True)]


def chain(*blocks: list[int]) -> list[int]:
    """Short hashes of a prompt's blocks."""
    found, parent = [], b""
    for tokens in blocks:
        parent = hashlib.blake2b(parent + array("I", tokens).tobytes(), digest_size=32).digest()
        found.append(int.from_bytes(parent[:8], "little"))
    return found


def test_a_block_names_its_parent_and_says_its_text_once() -> None:
    pool, log = made()
    first, second = chain([0, 1, 2, 3], [4, 5, 6, 7])
    a = held(pool, 5, [0, 1, 2, 3, 4, 5, 6, 7, 8], 9)
    assert told(log) == [(0, 0, 5, first, 0, "abcd"), (1, 1, 5, second, first, "efgh")]
    compute(pool, a, 9)
    assert told(log) == []
    log.check()


def test_branches_have_one_parent_and_an_equal_block_is_not_told() -> None:
    pool, log = made()
    stem = [0, 1, 2, 3]
    held(pool, 1, stem + [4] * 5, 8)
    held(pool, 2, stem + [5] * 5, 8)  # computed beside the first: its first block equals that one's
    (first,) = chain(stem)
    assert [(block, parent) for block, _, _, _, parent, _ in told(log)] == [(0, 0), (1, first), (3, first)]


def test_an_evicted_parent_leaves_its_child_and_comes_back_elsewhere() -> None:
    pool, log = made(4)
    stem = [0, 1, 2, 3]
    a = held(pool, 1, [*stem, 9], 4)
    b = held(pool, 2, stem + [5] * 5, 8)  # its first block is the equal one, which can't be found
    drop(pool, a)
    pool.grow(sequence(3, [7]), 2)  # one free, and a's, evicted
    first, child = chain(stem, [5] * 4)
    assert told(log) == [(0, 0, 1, first, 0, "abcd"), (2, 1, 2, child, first, "ffff"), (0, 0, NONE, 0, 0, "")]
    b.sealed = 0
    pool.seal(b)
    assert told(log) == [(1, 0, 2, first, 0, "abcd")]
    log.check()


def test_settings_that_forget_are_told() -> None:
    pool, log = made()
    a = held(pool, 1, [0] * 13, 12)
    drop(pool, a)
    told(log)
    pool.resize(2)
    assert told(log) == [(2, 0, NONE, 0, 0, "")]
    pool.drop_cache()
    assert told(log) == [(NONE, 0, NONE, 0, 0, "")]
    log.check()
    compute(pool, a, 4)
    drop(pool, a)
    pool.drop_cache()
    pool.rebuild(4, 2)
    assert told(log)[-1][0] == NONE and log.whole() == (b"", [])


def test_a_keyframe_has_everything_and_takes_nothing_from_the_next_record() -> None:
    pool, log = made()
    held(pool, 1, [0, 1, 2, 3, 4, 5, 6, 7, 8], 9)
    buffer, texts = log.whole()
    assert texts == ["abcd", "efgh"] and unpack(buffer, SEAL)["index"].tolist() == [0, 1]
    assert log.drain([]) == (buffer, texts)


def test_what_was_asked_is_counted_without_returns_from_preemption() -> None:
    _, log = made()

    def admitted(looked_up: int, hit: int, again: bool = False) -> Admitted:
        return Admitted(seq=1, cached_tokens=hit, limit=99, again=again, looked_up=looked_up)

    log.drain([admitted(48, 0), admitted(48, 32), admitted(64, 64, again=True), admitted(0, 0)])
    assert log.use == PrefixUse(requests=2, hits=1, looked_up=96, hit=32)
