"""The suffix automaton and its proposer against plain searches through all the tokens, and what they must not do."""

import time
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sampler import SampleRow
from engine.speculation import suffix
from engine.speculation.automaton import SuffixAutomaton
from engine.speculation.proposer import Ask
from engine.speculation.suffix import PER_MATCHED, SuffixProposer

TOKENS = st.lists(st.integers(0, 3), max_size=30)  # short enough that every suffix is counted


def automaton(*texts: list[int]) -> SuffixAutomaton:
    made = SuffixAutomaton()
    for text in texts:
        made.begin()
        for token in text:
            made.append(token)
    return made


def ends(run: list[int], texts: list[list[int]]) -> list[tuple[int, int]]:
    """Where `run` ends in each text."""
    size = len(run)
    return [(i, e) for i, t in enumerate(texts) for e in range(size, len(t) + 1) if t[e - size : e] == run]


def longest(tail: list[int], texts: list[list[int]]) -> int:
    """Tokens of the longest suffix of `tail` that is in `texts`."""
    return max((n for n in range(len(tail) + 1) if n == 0 or ends(tail[len(tail) - n :], texts)), default=0)


def followers(run: list[int], texts: list[list[int]]) -> dict[int, int]:
    """How often each token came after `run`."""
    found: dict[int, int] = {}
    for i, end in ends(run, texts):
        if end < len(texts[i]):
            found[texts[i][end]] = found.get(texts[i][end], 0) + 1
    return found


@given(text=TOKENS)
def test_the_longest_repeated_suffix(text):
    made = SuffixAutomaton()
    for i, token in enumerate(text, 1):
        made.append(token)
        known = text[:i]
        wanted = max(n for n in range(i) if n == 0 or len(ends(known[i - n :], [known])) > 1)
        assert made.repeated()[1] == wanted


@given(texts=st.lists(TOKENS, min_size=1, max_size=4), read=TOKENS, more=TOKENS)
def test_a_text_is_followed_to_its_longest_match_while_others_come(texts, read, more):
    made, place = automaton(*texts), (0, 0)
    for i, token in enumerate(read, 1):
        place = made.step(*place, token)
        assert place[1] == longest(read[:i], texts)
    matched = place[1]
    for token in more:  # continues the last text; states split under the reader
        made.append(token)
    state, length = made.settled(*place)
    assert length == matched
    if matched:
        assert made.count[state] == len(ends(read[len(read) - matched :], [*texts[:-1], texts[-1] + more]))


@given(texts=st.lists(TOKENS, min_size=1, max_size=4), read=TOKENS)
def test_continuations_are_the_most_frequent_with_their_shares(texts, read):
    made, place = automaton(*texts), (0, 0)
    for token in read:
        place = made.step(*place, token)
    if not place[1]:
        return
    run = read[len(read) - place[1] :]
    for token, share in made.continuation(place[0], 5, 1):
        while not (after := followers(run, texts)):
            run = run[1:]  # the texts end here
        assert after[token] == max(after.values())
        assert share == pytest.approx(after[token] / sum(after.values()))
        run = [*run, token]


def draft(proposer: SuffixProposer, tokens: list[int], limit: int = 4, seq: int = 1) -> list[int]:
    return proposer.follow(seq, tokens, limit)


def test_finds_what_followed():
    assert draft(SuffixProposer(), [5, 6, 7, 8, 9, 5, 6], 3) == [7, 8, 9]


def test_the_most_frequent_wins_and_the_last_among_equals():
    often = [5, 6, 1, 5, 6, 1, 5, 6, 2, 5, 6]
    assert draft(SuffixProposer(), often, 1) == [1]
    assert draft(SuffixProposer(), [5, 6, 1, 9, 5, 6, 2, 9, 5, 6], 1) == [2]


def test_the_longest_match_wins():
    assert draft(SuffixProposer(), [4, 5, 6, 1, 9, 5, 6, 2, 5, 6, 2, 4, 5, 6], 1) == [1]


def test_a_draft_grows_with_its_match():
    text = list(range(100, 140))
    for matched in (1, 2, 4, 10):
        proposer = SuffixProposer()
        found = draft(proposer, [*text, 7, *text[5 : 5 + matched]], 16)
        assert proposer.matched(1) == matched
        assert found == text[5 + matched :][: min(16, int(PER_MATCHED * matched))]


def test_a_loop_is_drafted_as_a_loop():
    assert draft(SuffixProposer(), [1, 2, 3, 2, 3, 2, 3], 6) == [2, 3, 2, 3, 2, 3]
    assert draft(SuffixProposer(), [8] * 9, 4) == [8, 8, 8, 8]


def test_what_is_as_often_something_else_is_not_drafted():
    mixed = [token for other in range(10, 18) for token in (5, 6, other)]
    assert draft(SuffixProposer(), [*mixed, 5, 6]) == []
    assert draft(SuffixProposer(), [*mixed, 5]) == [6]


def test_nothing_repeats_nothing_drafted():
    proposer = SuffixProposer()
    assert draft(proposer, list(range(50))) == []
    assert proposer.matched(1) == 0 and proposer.matched(2) == 0
    assert draft(proposer, [1], seq=2) == []


def test_the_least_match():
    assert draft(SuffixProposer(least=3), [5, 6, 7, 8, 9, 5, 6]) == []
    assert draft(SuffixProposer(least=3), [5, 6, 7, 8, 9, 5, 6, 7]) == [8, 9, 5, 6]
    with pytest.raises(ValueError, match="at least one"):
        SuffixProposer(least=0)


# --- past outputs ---


def say(proposer: SuffixProposer, seq: int, output: list[int], prompt: tuple[int, ...] = (1, 2)) -> None:
    """A request with this output runs and ends."""
    tokens = [*prompt, output[0]]
    proposer.follow(seq, tokens, 4)
    for token in output[1:]:
        tokens.append(token)
        proposer.follow(seq, tokens, 4)
    proposer.forget(seq)


def test_what_others_said_is_drafted_from_the_first_time():
    proposer = SuffixProposer()
    say(proposer, 1, [10, 11, 12, 13, 14, 15])
    assert draft(proposer, [3, 4, 10, 11, 12], 3, seq=2) == [13, 14, 15]
    assert proposer.matched(2) == 3


def test_a_live_sequence_is_nobody_elses():
    proposer = SuffixProposer()
    proposer.follow(1, [10, 11, 12, 13], 4)
    assert draft(proposer, [3, 10, 11], seq=2) == []


def test_prompts_are_not_kept():
    proposer = SuffixProposer()
    say(proposer, 1, [20, 21], prompt=(10, 11, 12, 13))
    assert draft(proposer, [3, 10, 11], seq=2) == []


def test_its_own_text_comes_first_among_equal_matches():
    proposer = SuffixProposer()
    say(proposer, 1, [10, 11, 12, 13])
    assert draft(proposer, [10, 11, 7, 5, 10, 11], 1, seq=2) == [7]


def test_past_outputs_end_where_they_ended():
    """What one said is not taken for continued by what the next one said."""
    proposer = SuffixProposer()
    say(proposer, 1, [10, 11, 12])
    say(proposer, 2, [20, 21, 22])
    assert draft(proposer, [3, 11, 12], seq=3) == []


def test_the_oldest_output_goes_when_there_is_no_room():
    proposer = SuffixProposer(room=200)
    for seq in range(40):
        say(proposer, seq, [100 * seq + i for i in range(20)])
        draft(proposer, [1], seq=999)  # takes in what ended
        assert proposer.past <= 200
    assert draft(proposer, [3, 3901, 3902, 3903], seq=1000) == [3904, 3905, 3906, 3907]
    assert draft(proposer, [3, 101, 102, 103], seq=1001) == []


def test_an_output_longer_than_the_room_costs_nothing_but_itself():
    proposer = SuffixProposer(room=64)
    tokens = list(range(1000, 1900))
    proposer.follow(1, tokens[:1], 4)
    proposer.follow(1, tokens, 4)
    proposer.forget(1)
    for _ in range(20):
        draft(proposer, [1], seq=2)
    assert proposer.past <= 64
    assert draft(proposer, [1890, 1891, 1892], 3, seq=3) == [1893, 1894, 1895]


def test_a_long_output_is_taken_in_over_many_passes(monkeypatch):
    monkeypatch.setattr(suffix, "A_PASS", 10)
    proposer = SuffixProposer()
    proposer.follow(1, [0], 4)
    proposer.follow(1, list(range(100)), 4)
    proposer.forget(1)
    sizes = []
    for _ in range(12):
        draft(proposer, [1], seq=2)
        sizes.append(proposer.past)
    assert sizes == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 100, 100]
    assert draft(proposer, [38, 39, 40], 4, seq=3) == [41, 42, 43, 44]  # across two of the parts


def test_a_sequence_that_was_not_asked_for_catches_up():
    proposer = SuffixProposer()
    say(proposer, 1, list(range(10, 300)))
    tokens = [1, 10, 11]
    assert draft(proposer, tokens, 1, seq=2) == [12]
    tokens += [5] * 100 + [200, 201]  # more than is looked at of it in past outputs
    assert draft(proposer, tokens, 1, seq=2) == [202]
    assert proposer.matched(2) == 2


def test_cost_does_not_grow_with_the_length():
    proposer = SuffixProposer()
    tokens = [i * i % 9973 for i in range(20_000)]
    proposer.follow(1, tokens, 4)
    seconds = []
    for token in range(200):
        tokens.append(token)
        start = time.perf_counter()
        proposer.follow(1, tokens, 4)
        seconds.append(time.perf_counter() - start)
    assert median(seconds) < 0.2e-3


def test_drafts_are_told_with_what_matched():
    texts = [5, 6, 7, 5, 6], [1, 2, 3], [9, 9, 9]
    asks = [Ask(seq, tokens, 3, SampleRow()) for seq, tokens in enumerate(texts)]
    drafts = SuffixProposer().propose(asks)
    assert drafts.matched == {0: 2, 2: 2}
    assert [len(tokens) for tokens in drafts.tokens] == [3, 0, 3] and not drafts.q
