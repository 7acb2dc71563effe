"""A draft model's draw: from the distribution that is kept, and from no other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.sampler import SampleRow
from engine.speculation import drawn

# e^-110 is a number in float64 and none in float32
LOGITS = torch.tensor([[-110.0, 0.0, 0.0, -1.0]])


@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (0.4, 1), (0.5, 2), (1 - 2**-53, 3)])
def test_a_token_without_a_share_in_what_is_kept_is_never_drawn(monkeypatch, number: float, token: int) -> None:
    monkeypatch.setattr(drawn, "uniform", lambda *_: np.array([number]))
    q, tokens = drawn.draw(LOGITS, [SampleRow(temperature=1.0, seed=3)], np.array([5]))
    assert q.dtype == torch.float32 and q[0, 0] == 0
    assert tokens.tolist() == [token]


def test_q_is_a_distribution_and_the_same_numbers_give_the_same_draws() -> None:
    rows = [SampleRow(temperature=0.7, top_k=2, seed=seed) for seed in range(40)]
    logits, positions = LOGITS.expand(40, -1), np.arange(40)
    q, tokens = drawn.draw(logits, rows, positions)
    assert torch.allclose(q.sum(dim=1), torch.ones(40)) and (q[:, [0, 3]] == 0).all()
    assert set(tokens.tolist()) == {1, 2}
    assert (drawn.draw(logits, rows, positions)[1] == tokens).all()
