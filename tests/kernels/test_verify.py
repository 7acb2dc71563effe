"""A step's rows decided on the device against the host's sampler: tokens, verdicts, p, q and draws, of every kind of
row; and that nothing is read back on the way."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode

from engine.runner.device_sampler import DeviceSampler
from engine.sampler import BadLogits, Sampler, SampleRow
from tests.kernels.pairwise import pairwise
from tests.kernels.sampled_rows import DRAFTS, FILTERS, alike, assert_same, batch
from tests.support.wrong_rules import AlwaysAccepts

CPU = torch.device("cpu")


def device_sampler(vocabulary: int, kernels: bool, block: int = 16) -> DeviceSampler:
    return DeviceSampler(vocabulary, CPU, kernels, block)


@pytest.mark.parametrize("seed", range(12))
def test_the_reference_decides_as_the_host(seed):
    vocabulary = (6, 37, 300)[seed % 3]
    logits, rows = batch(seed, vocabulary, 24, seed % 5)
    assert_same(device_sampler(vocabulary, False).sample(logits, rows), Sampler(vocabulary).sample(logits, rows))


@pytest.mark.parametrize("seed", range(3))
def test_the_kernels_decide_mixed_rows_as_the_host(seed):
    vocabulary = (6, 37, 70)[seed % 3]
    logits, rows = batch(100 + seed, vocabulary, 6, seed + 1)
    assert_same(device_sampler(vocabulary, True).sample(logits, rows), Sampler(vocabulary).sample(logits, rows))


def check(vocabulary: int, gamma: int, block: int, drafts: str, temperature: float, filters: str) -> None:
    logits, rows = alike(vocabulary, gamma, drafts, temperature, filters)
    ours = device_sampler(vocabulary, True, block).sample(logits, rows)
    assert_same(ours, Sampler(vocabulary).sample(logits, rows))


@pytest.mark.parametrize(
    ("vocabulary", "gamma", "block", "drafts", "temperature", "filters"),
    pairwise((3, 17, 100, 1025), (0, 1, 3, 4), (16, 128, 2048), tuple(DRAFTS), (0.0, 0.5, 1.5), tuple(FILTERS)),
)
def test_the_kernels_decide_as_the_host(
    vocabulary: int, gamma: int, block: int, drafts: str, temperature: float, filters: str
):
    check(vocabulary, gamma, block, drafts, temperature, filters)


def test_the_reference_decides_as_the_host_among_152064():
    logits, rows = batch(7, 152_064, 6, 3)
    ours = device_sampler(152_064, False, 2048)
    assert_same(ours.sample(logits, rows), Sampler(152_064).sample(logits, rows))


@pytest.mark.parametrize("kernels", [False, True])
def test_what_takes_a_rejected_drafts_place(kernels):
    """Drafts from far beside the target, so that most are rejected, half of them drawn and half certain."""
    logits = torch.randn(80, 9, generator=torch.Generator().manual_seed(1))
    off = torch.randn(40, 9, generator=torch.Generator().manual_seed(2)) * 2
    rows = [
        SampleRow(drafts=[int(q.argmax())], temperature=1.0, seed=i, q_rows=q.softmax(dim=0)[None] if i % 2 else None)
        for i, q in enumerate(off)
    ]
    found = device_sampler(9, kernels, 4).sample(logits, rows)
    assert sum(not outcome.accepted for outcome in found) > 20
    assert_same(found, Sampler(9).sample(logits, rows))


def test_the_sampler_is_used_again_with_batches_of_other_sizes():
    ours, theirs = device_sampler(37, True), Sampler(37)
    for seed, count in ((1, 3), (2, 6), (3, 1)):
        logits, rows = batch(seed, 37, count, 2)
        assert_same(ours.sample(logits, rows), theirs.sample(logits, rows))


def test_a_draft_that_is_the_targets_own_leaves_nothing_to_resample():
    """p = q but for rounding: whatever the tests say, the ending token is drawn from p."""
    logits = torch.randn(200, 9, generator=torch.Generator().manual_seed(0)).repeat_interleave(2, dim=0)
    rows = [
        SampleRow(drafts=[i % 9], temperature=1.0, seed=i, q_rows=logits[2 * i : 2 * i + 1].double().softmax(dim=1))
        for i in range(200)
    ]
    assert_same(device_sampler(9, False).sample(logits, rows), Sampler(9).sample(logits, rows))


def test_what_comes_out_has_the_targets_distribution():
    """Chi-square over 4,000 drafted rows, of the kernels' reference as it decides batches."""
    vocabulary, count = 8, 4000
    logits = torch.randn(2, vocabulary, generator=torch.Generator().manual_seed(3))
    q = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(4)).softmax(dim=1)
    drafted = torch.multinomial(q[0], count, replacement=True, generator=torch.Generator().manual_seed(5)).tolist()
    rows = [SampleRow(drafts=[token], temperature=1.0, seed=i, q_rows=q) for i, token in enumerate(drafted)]
    found = device_sampler(vocabulary, False).sample(logits.repeat(count, 1), rows)
    seen = torch.bincount(torch.tensor([o.tokens[0] for o in found]), minlength=vocabulary)
    wanted = logits[0].double().softmax(dim=0) * count
    assert stats.chisquare(seen.numpy(), wanted.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_refused_in_the_hosts_words(kernels, value):
    logits, rows = batch(5, 37, 4, 2)
    logits[-1, 7] = value
    with pytest.raises(BadLogits) as theirs:
        Sampler(37).sample(logits, rows)
    with pytest.raises(BadLogits) as ours:
        device_sampler(37, kernels).sample(logits, rows)
    assert str(ours.value) == str(theirs.value)


def test_another_rule_is_the_hosts_business():
    logits, rows = batch(9, 37, 6, 3)
    ours = device_sampler(37, False).sample(logits, rows, AlwaysAccepts())
    assert_same(ours, Sampler(37).sample(logits, rows, AlwaysAccepts()))


class HostReads(TorchDispatchMode):
    """Counts what waits for a device: a number read, a mask's size, a copy to the host."""

    WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_unique2", "item")

    def __init__(self):
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").split(".")[0]
        # indexing with a mask asks how many it holds
        masks = name in ("index", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if name in self.WAITS or masks:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def test_no_host_read_between_logits_and_results():
    logits, rows = batch(11, 37, 12, 4)
    sampler = device_sampler(37, False)
    with HostReads() as reads:
        decided = sampler.launch(logits, rows)
    assert reads.seen == []
    with HostReads() as reads:
        assert_same(decided.outcomes(), Sampler(37).sample(logits, rows))
        assert reads.seen  # the host's own sampler reads, so the count can count
    assert [outcome.tokens[-1] for outcome in decided.outcomes()] == decided.tokens.tolist()


def test_kernels_are_launched_without_a_host_read():
    """What the launchers do in torch, with kernels that do nothing in place of the interpreter's, which copies."""
    from unittest.mock import MagicMock, patch

    logits, rows = batch(12, 37, 8, 3)
    sampler = device_sampler(37, True)
    names = [f"sample._sample_{what}" for what in ("peaks", "temper", "filter", "sums")]
    names += [f"verify._verify_{what}" for what in ("accept", "left", "end")]
    fakes = {name: MagicMock() for name in names}
    patches = [patch(f"engine.kernels.{name}", fake) for name, fake in fakes.items()]
    for one in patches:
        one.start()
    try:
        with HostReads() as reads:
            sampler.launch(logits, rows)
    finally:
        for one in patches:
            one.stop()
    assert reads.seen == []
    assert all(fake.__getitem__.called for fake in fakes.values())
