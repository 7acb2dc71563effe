"""The likeliest tokens of a row: their order, ties, log-probabilities, and logits that are no numbers."""

import math

import pytest
import torch

from engine.beam_candidates import candidates
from engine.sampler import BadLogits


def test_logprobs_are_those_of_float64():
    logits = 6 * torch.randn(5, 49152, generator=torch.Generator().manual_seed(1))
    wanted = logits.double().log_softmax(dim=1)
    for row, found in zip(wanted, candidates(logits, 16), strict=True):
        assert found.tokens.tolist() == row.topk(16).indices.tolist()
        assert found.logprobs.tolist() == pytest.approx(row.topk(16).values.tolist(), abs=2e-7)


def test_among_equals_the_lowest_tokens_are_taken_in_order():
    """Also where the cut falls among them."""
    logits = torch.zeros(2, 3000)
    logits[0, [2500, 17, 900]] = 1.0
    logits[1, 1999] = 2.0
    first, second = candidates(logits, 5)
    assert first.tokens.tolist() == [17, 900, 2500, 0, 1]
    assert second.tokens.tolist() == [1999, 0, 1, 2, 3]


def test_a_token_of_probability_zero_is_no_candidate():
    logits = torch.full((1, 6), -math.inf)
    logits[0, [1, 4]] = torch.tensor([0.0, 1.0])
    (found,) = candidates(logits, 4)
    assert found.tokens.tolist() == [4, 1]


def test_a_small_vocabulary_gives_what_it_has():
    (found,) = candidates(torch.zeros(1, 3), 16)
    assert found.tokens.tolist() == [0, 1, 2]
    assert found.logprobs.tolist() == pytest.approx([-math.log(3)] * 3)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_refused(bad):
    logits = torch.zeros(3, 8)
    logits[1, 5] = bad
    with pytest.raises(BadLogits, match="1 of 3 rows"):
        candidates(logits, 4)
