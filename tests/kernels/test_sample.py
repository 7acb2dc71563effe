"""Filters on the device against the host's, weight by weight: ties, edges of blocks, what is switched off."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engine.distribution import weights_of
from engine.kernels.sample import row_weights, row_weights_reference, sample_workspace
from engine.sampler import SampleRow
from tests.kernels.guarded import Guarded
from tests.kernels.pairwise import pairwise

CPU = torch.device("cpu")
BLOCK = 16
EVERY = [row_weights, row_weights_reference]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def params_of(rows: list[SampleRow]) -> torch.Tensor:
    values = [(r.temperature, math.log(r.min_p) if r.min_p else -math.inf, r.top_k, r.top_p) for r in rows]
    return torch.tensor(values, dtype=torch.float64)


def weigh(run, logits: torch.Tensor, rows: list[SampleRow], block: int = BLOCK):
    work = sample_workspace(len(rows) + 1, logits.shape[1], CPU, block)
    for left in (work.weights, work.sums, work.peaks):
        left.fill_(math.nan)  # what another batch left must not be seen
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


def logits_of(kind: str, rows: int, vocabulary: int) -> torch.Tensor:
    """equal: few distinct values, so that every threshold cuts through equal ones, also across blocks; impossible:
    fewer are possible than top_k would keep."""
    chance = torch.Generator().manual_seed(vocabulary)
    if kind == "equal":
        return torch.randint(0, 3, (rows, vocabulary), generator=chance).float()
    logits = torch.randn(rows, vocabulary, generator=chance) * 3
    if kind == "impossible":
        logits[:, 5:] = -math.inf
    return logits


KINDS = ("spread", "equal", "impossible")


@pytest.mark.parametrize(
    ("vocabulary", "asked", "block", "dtype", "kind"),
    pairwise((1, 17, 100, 1025), (0, 2, 4, 6), (16, 128, 2048), DTYPES, KINDS),
)
def test_the_kernels_weights_are_the_hosts(vocabulary: int, asked: int, block: int, dtype: torch.dtype, kind: str):
    """Two rows of `settings` at a time."""
    numbers = logits_of(kind, 2, vocabulary).to(dtype)
    check(row_weights, Guarded(2, vocabulary, dtype, numbers).rows, settings(vocabulary)[asked : asked + 2], block)


@pytest.mark.parametrize(("vocabulary", "kind"), pairwise((1, 15, 16, 100), KINDS))
def test_the_references_weights_are_the_hosts(vocabulary: int, kind: str):
    rows = settings(vocabulary)
    check(row_weights_reference, logits_of(kind, len(rows), vocabulary), rows)


def test_equal_throughout():
    for run in EVERY:
        check(run, torch.zeros(4, 50), settings(50)[4:])


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
