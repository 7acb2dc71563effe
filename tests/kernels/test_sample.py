"""Filters on the device against the host's, weight by weight: ties, edges of blocks, what is switched off."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engine.distribution import weights_of
from engine.kernels.sample import row_weights, row_weights_reference, sample_workspace
from engine.sampler import SampleRow

CPU = torch.device("cpu")
BLOCK = 16
EVERY = [row_weights, row_weights_reference]


def params_of(rows: list[SampleRow]) -> torch.Tensor:
    values = [(r.temperature, math.log(r.min_p) if r.min_p else -math.inf, r.top_k, r.top_p) for r in rows]
    return torch.tensor(values, dtype=torch.float64)


def weigh(run, logits: torch.Tensor, rows: list[SampleRow], block: int = BLOCK):
    work = sample_workspace(len(rows) + 1, logits.shape[1], CPU, block)
    work.weights.fill_(math.nan)  # what another batch left must not be seen
    run(logits, params_of(rows), work)
    return work


def settings(vocabulary: int) -> list[SampleRow]:
    return [
        SampleRow(temperature=t, top_k=k, top_p=p, min_p=m)
        for t, k, p, m in (
            (1.0, 0, 1.0, 0.0),
            (0.3, 5, 1.0, 0.0),
            (1.7, 0, 0.9, 0.0),
            (1.0, 0, 1.0, 0.3),
            (0.7, 20, 0.8, 0.01),
            (1.0, 1, 0.5, 1.0),
            (1.0, vocabulary + 5, 0.001, 0.0),
            (5.0, vocabulary - 1, 0.999, 0.0),
        )
    ]


def check(run, logits: torch.Tensor, rows: list[SampleRow], block: int = BLOCK) -> None:
    n = len(rows)
    work = weigh(run, logits, rows, block)
    wanted = weights_of(logits, rows, np.arange(n))
    assert torch.equal(work.weights[:n] > 0, wanted > 0), "other tokens are kept"
    torch.testing.assert_close(work.weights[:n], wanted, rtol=1e-13, atol=0)
    torch.testing.assert_close(work.sums[:n].sum(dim=1), wanted.sum(dim=1), rtol=1e-13, atol=0)
    assert torch.equal(work.best[:n].long(), logits.argmax(dim=1))
    assert torch.equal(work.tops[:n], logits.amax(dim=1).float())


@pytest.mark.parametrize("run", EVERY)
@pytest.mark.parametrize("vocabulary", [1, 15, 16, 100])
def test_weights_are_the_hosts(run, vocabulary):
    rows = settings(vocabulary)
    logits = torch.randn(len(rows), vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * 3
    check(run, logits, rows)


@pytest.mark.parametrize("run", EVERY)
def test_of_equal_logits_the_lower_ids_stay(run):
    """Few distinct values, so that every threshold cuts through equal ones, also across blocks."""
    rows = settings(50)
    logits = torch.randint(0, 3, (len(rows), 50), generator=torch.Generator().manual_seed(1)).float()
    check(run, logits, rows)
    check(run, torch.zeros(len(rows), 50), rows)


@pytest.mark.parametrize("run", EVERY)
def test_impossible_tokens_stay_impossible(run):
    rows = settings(40)
    logits = torch.randn(len(rows), 40, generator=torch.Generator().manual_seed(2))
    logits[:, 5:] = -math.inf  # fewer are possible than top_k would keep
    check(run, logits, rows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_logits_in_less_than_float32(dtype):
    rows = settings(37)
    logits = (torch.randn(len(rows), 37, generator=torch.Generator().manual_seed(3)) * 3).to(dtype)
    check(row_weights, logits, rows)


def test_a_vocabulary_of_152064_by_the_reference():
    """Flat and peaked rows, with filters that reach past any head of a sorted row."""
    rows = settings(152_064)
    scale = torch.tensor([3.0, 3, 1, 1, 6, 1, 3, 0.1])[:, None]
    logits = torch.randn(len(rows), 152_064, generator=torch.Generator().manual_seed(4)) * scale
    check(row_weights_reference, logits, rows, 2048)


def test_a_vocabulary_of_several_whole_blocks_by_the_kernel():
    rows = settings(5000)[4:6]
    logits = torch.randn(len(rows), 5000, generator=torch.Generator().manual_seed(5)) * 4
    check(row_weights, logits, rows, 2048)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("run", EVERY)
def test_logits_that_are_no_numbers_are_told_and_searched_for_nothing(run, value):
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(6))
    logits[1, 33] = value
    logits[2] = -math.inf
    work = weigh(run, logits, [SampleRow(temperature=1.0, top_k=5, top_p=0.5)] * 3)
    assert work.tops[:3].isfinite().tolist() == [True, False, False]
    assert math.isnan(work.tops[1]) == math.isnan(value)


def test_wrong_shapes_are_refused():
    work = sample_workspace(2, 40, CPU, BLOCK)
    with pytest.raises(ValueError, match="workspace"):
        row_weights(torch.zeros(3, 40), params_of([SampleRow()] * 3), work)
    with pytest.raises(ValueError, match="params"):
        row_weights(torch.zeros(2, 40), params_of([SampleRow()]), work)
