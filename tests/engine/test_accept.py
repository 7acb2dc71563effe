"""The acceptance rule alone: its arithmetic, and that accepted and resampled tokens together have p."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.formulas import accept_probability
from engine.speculation.accept import ExactRule, leading

weights = st.lists(st.integers(0, 9), min_size=5, max_size=5).filter(any)


def normalised(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=float) / sum(values)


@given(p=weights, q=weights)
def test_output_distribution_is_the_targets(p, q):
    """Exact, no draws: q·min(1, p/q) + P(rejected)·residual = p at every token."""
    p, q = normalised(p), normalised(q)
    accepted = np.array([qx * accept_probability(px, qx) if qx else 0.0 for px, qx in zip(p, q, strict=True)])
    residual = ExactRule().residual(torch.tensor(p[None]), torch.tensor([0]), torch.tensor(q[None]))[0].numpy()
    if residual.sum() > 0:
        residual = residual / residual.sum()
    np.testing.assert_allclose(accepted + (1 - accepted.sum()) * residual, p, atol=1e-12)


@given(p=weights, token=st.integers(0, 4))
def test_one_hot_drafts_need_no_full_row(p, token):
    p = torch.tensor(normalised(p)[None])
    one_hot = torch.nn.functional.one_hot(torch.tensor([token]), 5).double()
    short = ExactRule().residual(p, torch.tensor([token]), None)
    assert torch.equal(short, ExactRule().residual(p, torch.tensor([token]), one_hot))
    assert short[0, token] == 0


def test_the_worked_example():
    """p 0.3, q 0.5: accepted below a draw of 0.6."""
    draws = np.array([0.0, 0.5999, 0.6001, 0.9999])
    passed = ExactRule().accepts(np.full(4, 0.3), np.full(4, 0.5), draws)
    assert passed.tolist() == [True, True, False, False]


def test_likelier_than_drafted_always_passes_and_impossible_never():
    draws = np.array([0.0, 0.5, 1 - 2.0**-52])
    assert ExactRule().accepts(np.full(3, 0.5), np.full(3, 0.5), draws).all()
    assert not ExactRule().accepts(np.zeros(3), np.ones(3), draws).any()


def test_residual_leaves_p_alone():
    p = torch.tensor([[0.5, 0.5]])
    ExactRule().residual(p, torch.tensor([0]), None)
    assert p.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("passed", "accepted"),
    [([True, True, True], 3), ([True, False, True], 1), ([False, True, True], 0), ([False, False, False], 0)],
)
def test_what_follows_a_rejection_is_not_accepted(passed, accepted):
    assert leading(np.array([passed])).tolist() == [accepted]


def test_no_drafts_at_all():
    assert leading(np.zeros((3, 0), dtype=bool)).tolist() == [0, 0, 0]
