"""Beam search against exhaustive search on tiny tables, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.beam_search import IDLE, BeamSearch, Candidates
from tests.support.beams import Table, every_ending, search, steps

EOS = 0
RULES = (False, True, "never")


def given_(*pairs: tuple[int, float]) -> Candidates:
    """Candidates from (token, log-probability)."""
    tokens, logprobs = zip(*pairs, strict=True)
    return Candidates(np.array(tokens), np.array(logprobs, dtype=np.float64))


# --- against exhaustive search ---


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("vocabulary, longest", [(3, 3), (5, 2), (9, 1), (2, 8)])
def test_a_search_that_is_wide_enough_is_exhaustive(vocabulary, longest, penalty):
    """No step has more than 8 beams, so none is lost, and "never" stops only when nothing can improve."""
    for seed in range(40):
        table = Table(vocabulary, seed)
        found = search(table, BeamSearch(8, longest, {EOS}, penalty, "never"))
        all_ = every_ending(vocabulary, {EOS}, longest)
        scores = {tokens: table.logprob(tokens) / len(tokens) ** penalty for tokens in all_}
        best = sorted(all_, key=lambda tokens: -scores[tokens])[: len(found)]
        assert len(found) == min(8, len(all_)) or vocabulary == 2
        assert [h.score for h in found] == pytest.approx([scores[tokens] for tokens in best], abs=1e-5)
        assert found[0].tokens == best[0]


def test_width_one_without_an_end_is_greedy():
    table = Table(50, seed=3)
    (found,) = search(table, BeamSearch(1, 12))
    tokens: tuple[int, ...] = ()
    for _ in range(12):
        tokens = (*tokens, int(table([tokens])[0].argmax()))
    assert found.tokens == tokens


def test_a_wider_search_finds_what_greedy_misses():
    """The likeliest first token leads nowhere."""
    table = Table(4, seed=0)
    even, first = [0.25] * 4, [1e-9, 0.6, 0.4, 1e-9]  # the last row is that of the first token
    table.logits = torch.tensor([even, even, [0.01, 0.01, 0.97, 0.01], even, first]).log()
    (greedy,) = search(table, BeamSearch(1, 3))
    best, _ = search(table, BeamSearch(2, 3))
    assert greedy.tokens[0] == 1
    assert best.tokens == (2, 2, 2)
    assert best.logprob == pytest.approx(math.log(0.4 * 0.97 * 0.97), abs=1e-6)


# --- what holds in every search ---


@given(
    seed=st.integers(0, 10**6),
    vocabulary=st.integers(2, 40),
    width=st.integers(1, 8),
    longest=st.integers(1, 12),
    endings=st.sets(st.integers(0, 3), max_size=3),
    penalty=st.sampled_from([-0.5, 0.0, 0.6, 1.0, 2.0]),
    rule=st.sampled_from(RULES),
)
def test_lanes_and_sums_hold_together(seed, vocabulary, width, longest, endings, penalty, rule):
    table = Table(vocabulary, seed)
    beams = BeamSearch(width, longest, endings, penalty, rule)
    before = {0: ()}
    for step, lanes in steps(table, beams):
        assert step.over == beams.over == (not lanes)
        assert len(set(lanes.values())) == len(lanes) <= width, "two beams are the same"
        for lane, parent in enumerate(step.parents):
            assert (step.tokens[lane] == IDLE) == (parent == IDLE)
            if parent != IDLE:
                assert step.parents[parent] in (parent, IDLE), "whom others continue has gone elsewhere"
                assert step.parents[parent] == parent or len(lanes) < len(before)
                assert step.tokens[lane] not in endings
        assert sorted(lanes) == list(range(len(lanes)))
        assert step.died == [lane for lane in before if lane not in step.parents]
        for hypothesis in step.ended:
            assert hypothesis.tokens[:-1] == before[hypothesis.lane]
            assert hypothesis in beams.hypotheses()
        # of one beam's children the likeliest stays in its lane
        for lane, parent in enumerate(step.parents):
            if parent not in (IDLE, lane) and step.parents[parent] == parent:
                assert table.logprob(lanes[lane]) <= table.logprob(lanes[parent]) + 1e-5
        before = lanes
    kept = beams.hypotheses()
    assert 1 <= len(kept) <= width
    assert [h.score for h in kept] == sorted((h.score for h in kept), reverse=True)
    for h in kept:
        assert h.logprob == pytest.approx(table.logprob(h.tokens), abs=1e-5)
        assert h.score == h.logprob / len(h.tokens) ** penalty
        assert h.tokens[-1] in endings or len(h.tokens) == longest
        assert not endings & set(h.tokens[:-1])


# --- by hand ---


def test_the_first_step_branches_from_the_prompt_alone():
    beams = BeamSearch(3, 9, {EOS})
    assert beams.lanes == [0] and beams.needed == 6
    step = beams.advance({0: given_((7, -0.5), (EOS, -1.0), (5, -2.0), (6, -2.5), (8, -3.0))})
    assert step.parents == [0, 0, 0]
    assert step.tokens == [7, 5, 6]
    assert [h.tokens for h in step.ended] == [(EOS,)]
    assert step.died == [] and not step.over


def test_a_beam_that_dies_gives_its_lane_to_anothers_child():
    beams = BeamSearch(3, 9, {EOS})
    beams.advance({0: given_((5, -1.0), (6, -1.1), (7, -5.0))})
    poor = given_((9, -8.0), (8, -9.0))
    step = beams.advance({0: given_((1, -2.0), (2, -2.5)), 1: given_((3, -0.1), (4, -7.5)), 2: poor})
    # sums: lane 1 −1.2; lane 0 −3.0 and −3.5; lane 1 −8.6; lane 2 −13: lane 2 dies, lane 0 has two children
    assert step.parents == [0, 1, 0]
    assert step.tokens == [1, 3, 2]
    assert step.died == [2]


def test_an_end_below_the_first_w_is_no_hypothesis():
    """It is only looked at so that W others remain."""
    beams = BeamSearch(2, 9, {EOS})
    step = beams.advance({0: given_((5, -1.0), (6, -1.5), (EOS, -1.6), (7, -2.0))})
    assert step.ended == [] and step.tokens == [5, 6]


def test_all_of_the_first_w_may_end_and_w_others_go_on():
    beams = BeamSearch(2, 9, {EOS, 1})
    assert beams.needed == 6
    beams.advance({0: given_((5, -1.0), (6, -1.0), (7, -3.0))})
    both = given_((EOS, -0.5), (1, -0.6), (5, -4.0), (6, -5.0))
    step = beams.advance({0: both, 1: both})
    assert [(h.tokens, h.lane) for h in step.ended] == [((5, EOS), 0), ((6, EOS), 1)]
    assert step.over, "two hypotheses are kept, and −5 ÷ 2 can't beat −1.5 ÷ 2"


def test_equal_sums_go_by_the_parents_rank_then_by_the_token():
    beams = BeamSearch(2, 9)
    beams.advance({0: given_((5, -1.0), (6, -1.0))})
    even = given_((3, -1.0), (4, -1.0))
    step = beams.advance({0: even, 1: even})
    assert (step.parents, step.tokens) == ([0, 0], [3, 4])
    assert step.died == [1]


def test_the_limit_ends_the_first_w():
    beams = BeamSearch(2, 1, {EOS})
    step = beams.advance({0: given_((5, -1.0), (EOS, -2.0), (6, -3.0), (7, -4.0))})
    assert step.over and step.parents == [IDLE, IDLE] and step.died == [0]
    assert [(h.tokens, h.stopped) for h in beams.hypotheses()] == [((5,), False), ((EOS,), True)]


def test_a_better_hypothesis_displaces_the_worst():
    beams = BeamSearch(1, 3, {EOS}, 2.0, "never")
    beams.advance({0: given_((EOS, -1.0), (5, -1.1))})
    assert [h.tokens for h in beams.hypotheses()] == [(EOS,)]
    step = beams.advance({0: given_((EOS, -0.1), (6, -3.0))})  # −1.2 ÷ 4 beats −1
    assert [h.tokens for h in step.ended] == [(5, EOS)]
    assert beams.hypotheses() == step.ended


def test_no_hypothesis_is_told_that_is_not_kept():
    beams = BeamSearch(1, 3, {EOS}, 0.0, "never")
    beams.advance({0: given_((EOS, -1.0), (5, -0.1))})
    assert beams.hypotheses() == []
    beams.advance({0: given_((EOS, -0.1), (6, -0.2))})
    assert beams.over and beams.hypotheses()[0].tokens == (5, EOS)


# a hypothesis at −1 after one token; the one beam has −1.5, and would have −1.5 after two tokens, an end included
ENDS_FIRST = given_((EOS, -1.0), (5, -1.5))
LATER = given_((EOS, -0.0), (6, -40.0))


@pytest.mark.parametrize(
    "rule, penalty, over",
    [
        (True, 1.0, True),  # one hypothesis is all that is wanted
        (False, 1.0, True),  # −1.5 ÷ 1 is worse than −1
        ("never", 1.0, False),  # −1.5 ÷ 9 would not be
        ("never", 0.0, True),  # length is worth nothing, and sums only fall
        (False, 0.0, True),
        ("never", -1.0, True),  # length costs
    ],
)
def test_when_it_stops(rule, penalty, over):
    beams = BeamSearch(1, 9, {EOS}, penalty, rule)
    assert beams.advance({0: ENDS_FIRST}).over == over
    if not over:
        assert beams.advance({0: LATER}).ended[0].tokens == (5, EOS)  # −1.5 ÷ 2


def test_early_stopping_ends_where_the_heuristic_would_go_on():
    """A beam that is likelier than the hypothesis may improve on it; True doesn't ask."""
    first = given_((5, -0.2), (EOS, -1.0), (6, -1.1), (7, -2.0))
    second = given_((EOS, -3.0), (8, -0.1), (9, -4.0))
    ends = []
    for rule in RULES:
        beams = BeamSearch(2, 9, {EOS}, 1.0, rule)
        beams.advance({0: first})
        beams.advance({0: second, 1: given_((EOS, -0.5), (8, -3.0))})
        ends.append(beams.over)
    assert ends == [False, True, False]


def test_closed_early_it_ranks_what_lives():
    beams = BeamSearch(2, 9, {EOS})
    beams.advance({0: given_((EOS, -0.5), (5, -1.0), (6, -3.0))})
    assert [h.tokens for h in beams.close()] == [(EOS,), (5,)]
    assert beams.over and beams.lanes == []
    assert BeamSearch(2, 9).close() == []


def test_a_model_that_allows_one_token_has_one_beam():
    beams = BeamSearch(4, 2, {EOS})
    step = beams.advance({0: given_((5, 0.0), (6, -math.inf))})
    assert step.parents == [0, IDLE, IDLE, IDLE] and beams.lanes == [0]


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ({"width": 0}, "0 beams; 1 to 8"),
        ({"width": 9}, "9 beams; 1 to 8"),
        ({"max_new_tokens": 0}, "0 tokens"),
        ({"length_penalty": math.nan}, "penalty of nan"),
        ({"length_penalty": 11.0}, "-10 to 10"),
        ({"early_stopping": "always"}, "'always'"),
    ],
)
def test_bad_arguments_are_refused(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        BeamSearch(**{"width": 2, "max_new_tokens": 4, **arguments})


def test_candidates_of_other_lanes_are_refused():
    beams = BeamSearch(2, 4)
    with pytest.raises(ValueError, match=r"lanes \[1\], beams live in \[0\]"):
        beams.advance({1: given_((5, -1.0))})
