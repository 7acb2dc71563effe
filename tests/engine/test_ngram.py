"""Prompt lookup against a plain search through all the tokens, and what it must not do."""

import time
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.ngram import MAX_N, MIN_N, NgramProposer


def search(tokens: list[int], limit: int, min_n: int, max_n: int) -> list[int]:
    """The same rule without an index: longest suffix first, most recent earlier occurrence, copied into itself."""
    length = len(tokens)
    for n in range(max_n, min_n - 1, -1):
        for end in range(length - 1, n - 1, -1):
            if tokens[end - n : end] == tokens[length - n :]:
                known = list(tokens)
                for i in range(limit):
                    known.append(known[end + i])
                return known[length:]
    return []


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    steps=st.lists(st.integers(1, 5), max_size=20),
    limit=st.integers(0, 6),
    sizes=st.tuples(st.integers(1, 4), st.integers(0, 3)),
    data=st.data(),
)
def test_same_as_a_plain_search(tokens, steps, limit, sizes, data):
    min_n, max_n = sizes[0], sizes[0] + sizes[1]
    proposer = NgramProposer(min_n, max_n)
    known = list(tokens)
    for grown in [0, *steps]:
        known += data.draw(st.lists(st.integers(0, 3), min_size=grown, max_size=grown))
        if data.draw(st.integers(0, 9)) == 0:
            proposer.forget(7)  # as a preemption may
        before = list(known)
        assert proposer.follow(7, known, limit) == search(known, limit, min_n, max_n)
        assert known == before


def test_finds_what_followed():
    proposer = NgramProposer()
    assert proposer.follow(1, [5, 6, 7, 8, 9, 5, 6], 3) == [7, 8, 9]


def test_the_most_recent_match_wins():
    assert NgramProposer().follow(1, [5, 6, 1, 5, 6, 2, 5, 6], 1) == [2]


def test_the_longest_match_wins():
    assert NgramProposer().follow(1, [4, 5, 6, 1, 9, 5, 6, 2, 4, 5, 6], 1) == [1]


def test_a_loop_is_drafted_as_a_loop():
    assert NgramProposer().follow(1, [1, 2, 3, 2, 3, 2, 3], 5) == [2, 3, 2, 3, 2]
    assert NgramProposer().follow(1, [8, 8, 8], 4) == [8, 8, 8, 8]


def test_nothing_repeats_nothing_drafted():
    proposer = NgramProposer()
    assert proposer.follow(1, list(range(50)), 4) == []
    assert proposer.follow(1, [], 4) == []
    assert proposer.follow(1, [1], 4) == []


def test_sequences_do_not_mix():
    proposer = NgramProposer()
    proposer.follow(1, [5, 6, 7, 8], 4)
    assert proposer.follow(2, [9, 5, 6], 4) == []


def test_forgetting_is_complete_and_harmless():
    proposer = NgramProposer()
    proposer.forget(3)
    proposer.follow(3, [5, 6, 7, 5, 6], 4)
    proposer.forget(3)
    assert proposer.follow(3, [1, 5, 6], 4) == []


def test_cost_does_not_grow_with_the_length():
    """A pass over a 50,000-token sequence must look at its new token, not at all of them."""
    proposer = NgramProposer()
    tokens = list(range(50_000))
    proposer.follow(1, tokens, 4)
    seconds = []
    for token in range(200):
        tokens.append(token)
        start = time.perf_counter()
        proposer.follow(1, tokens, 4)
        seconds.append(time.perf_counter() - start)
    assert median(seconds) < 0.5e-3  # a scan of it takes over 5 ms


def test_sizes_are_checked():
    assert 1 <= MIN_N <= MAX_N
    with pytest.raises(ValueError, match="min_n"):
        NgramProposer(0, 4)
    with pytest.raises(ValueError, match="min_n"):
        NgramProposer(3, 2)


def test_how_much_matched():
    proposer = NgramProposer(2, 3)
    for tokens, matched in (([5, 6, 1, 5, 6], 2), ([5, 6, 1, 5, 6, 1], 3), ([5, 6, 1, 5, 6, 1, 8], 0)):
        proposer.follow(1, tokens, 2)
        assert proposer.matched(1) == matched
    assert proposer.matched(2) == 0
