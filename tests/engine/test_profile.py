"""The pool's size by a pass over a card made of numbers: what was measured fits again, and what doesn't is told."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engine.runner import profile as module
from engine.runner.base import OutOfDeviceMemory
from engine.runner.profile import LEAST_TOKENS, MARGIN, profile, room

MIB = 1 << 20


class FakeCard:
    """Also a runner: a step takes `per_token` bytes for a moment and leaves a buffer of `kept` a token for good, graphs
    take theirs until they are forgotten; all ends at `total`. Graphs of half as many tokens take half as much."""

    block_size, block_bytes = 16, 1 * MIB

    def __init__(self, total: int, others: int, weights: int, per_token: int, graphs: int = 0, kept: int = 0):
        self.total, self.others, self.weights = total, others, weights
        self.per_token, self.to_capture, self.kept = per_token, graphs, kept
        self.graphs = self.blocks = self.most = self.buffers = 0
        self.error: Exception = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        self.steps: list[int] = []
        self.lowered = 0

    # the card
    def allocated(self) -> int:
        return self.weights + self.buffers + self.blocks * self.block_bytes

    def free(self) -> tuple[int, int]:
        return self.total - self.others - self.graphs - self.allocated(), self.total

    def peak(self) -> int:
        return self.most

    def begin(self) -> None:
        self.most = self.allocated()

    # the runner
    def resize(self, num_blocks: int) -> None:
        self.graphs = 0  # captured over another pool
        grown = (num_blocks - self.blocks) * self.block_bytes
        if grown > self.free()[0]:
            raise OutOfDeviceMemory(num_blocks * self.block_bytes, self.free()[0])
        self.blocks = num_blocks

    def execute(self, batch) -> None:
        taken = len(batch.tokens) * self.per_token
        buffers = max(self.buffers, len(batch.tokens) * self.kept)
        if buffers > self.buffers:
            self.graphs = 0  # they read and write them
        if taken + buffers - self.buffers > self.free()[0]:
            raise self.error
        self.buffers = buffers
        self.steps.append(len(batch.tokens))
        self.most = max(self.most, self.allocated() + taken)

    def warm_up(self) -> None:
        if self.to_capture - self.graphs > self.free()[0]:
            raise self.error
        self.graphs = self.to_capture

    def forget_graphs(self) -> None:
        self.graphs = 0

    def fewer_graphs(self) -> bool:
        self.give_back()
        self.to_capture = self.to_capture // 2 if self.to_capture > MIB else 0
        self.lowered += 1
        return self.lowered < 40

    def give_back(self) -> None:
        self.graphs = self.buffers = 0

    def room(self, fraction: float, reserve: int) -> int:
        self.resize(0)
        free, total = self.free()
        return room(free, 0, total, fraction, reserve)


def test_step_and_graphs_are_measured() -> None:
    card = FakeCard(24_000 * MIB, 500 * MIB, 3_000 * MIB, MIB // 4, graphs=120 * MIB)
    found = profile(card, card, 2048, 16, 8192)
    assert (found.tokens, found.step, found.graphs, found.cut) == (2048, 512 * MIB, 120 * MIB, False)
    assert found.reserve == 632 * MIB + MARGIN
    assert found.words() == "a step of 2,048 tokens takes 512 MiB, graphs 120 MiB"
    # 90 % of the card, less others, weights, step, graphs, margin
    assert card.room(0.9, found.reserve) == int(0.9 * 24_000 * MIB) - (500 + 3_000 + 632) * MIB - MARGIN


def test_a_step_longer_than_the_model_is_several_rows() -> None:
    card = FakeCard(24_000 * MIB, 0, 100 * MIB, 1000)
    profile(card, card, 300, 8, 128)
    assert card.steps == [256, 8] * 2


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError("no more")])
def test_where_it_does_not_fit_the_step_is_halved_and_that_is_told(error: Exception) -> None:
    card = FakeCard(1_000 * MIB, 0, 600 * MIB, MIB // 4)
    card.error = error
    found = profile(card, card, 4096, 8, 8192)
    assert found.cut and found.tokens == 1024 and found.step == 256 * MIB


def test_a_fault_that_is_not_memory_is_not_taken_for_it() -> None:
    card = FakeCard(1_000 * MIB, 0, 900 * MIB, MIB)
    card.error = RuntimeError("an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal"):
        profile(card, card, 4096, 8, 8192)


def test_where_nothing_fits_it_is_refused_with_figures() -> None:
    card = FakeCard(1_000 * MIB, 200 * MIB, 780 * MIB, MIB)
    with pytest.raises(OutOfDeviceMemory, match=f"a step of {LEAST_TOKENS} tokens .* MiB are free"):
        profile(card, card, 4096, 8, 8192)


def test_the_fraction_binds_the_whole_card_and_room_is_never_negative() -> None:
    assert room(free=50, slack=10, total=100, fraction=0.9, reserve=20) == 30
    assert room(free=5, slack=0, total=100, fraction=0.9, reserve=20) == 0


def test_buffers_that_stay_are_counted_once() -> None:
    """They are missing from what is free; a pool of all the room fills the card to the last margin."""
    card = FakeCard(24_000 * MIB, 0, 3_000 * MIB, MIB // 4, graphs=100 * MIB, kept=MIB // 2)
    found = profile(card, card, 2048, 16, 8192)
    assert (found.step, found.graphs, card.buffers) == (512 * MIB, 100 * MIB, 1024 * MIB)
    card.resize(card.room(1.0, found.reserve) // card.block_bytes)
    card.warm_up()
    assert card.free()[0] - found.step == MARGIN


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError("no more")])
def test_graphs_that_do_not_fit_are_fewer(error: Exception) -> None:
    card = FakeCard(1_000 * MIB, 0, 600 * MIB, MIB // 8, graphs=500 * MIB, kept=1000)
    card.error = error
    found = profile(card, card, 512, 8, 8192)
    assert card.lowered > 0 and found.graphs == card.to_capture > 0
    assert not found.cut and found.tokens == 512 and found.step == 64 * MIB


def test_steps_beside_which_no_graph_fits_are_cut_after_that() -> None:
    card = FakeCard(1_000 * MIB, 0, 600 * MIB, MIB // 4, graphs=300 * MIB)
    found = profile(card, card, 2048, 8, 8192)
    assert found.cut and 600 * MIB + found.step + found.graphs + card.blocks * MIB <= 1_000 * MIB


def test_a_warm_up_without_graphs_that_fails_is_refused_with_figures() -> None:
    card = FakeCard(1_000 * MIB, 0, 600 * MIB, 1000)
    card.warm_up = lambda: (_ for _ in ()).throw(card.error)  # type: ignore[method-assign]
    with pytest.raises(OutOfDeviceMemory, match=f"a step of {LEAST_TOKENS} tokens .* MiB are free"):
        profile(card, card, 512, 8, 8192)
    card = FakeCard(1_000 * MIB, 0, 600 * MIB, 1000)
    card.warm_up = lambda: (_ for _ in ()).throw(RuntimeError("an illegal instruction"))  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="illegal instruction"):
        profile(card, card, 512, 8, 8192)


@pytest.mark.parametrize("seed", range(20))
def test_a_pool_of_all_the_room_leaves_room_for_graphs_and_steps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    total = int(rng.integers(2_000, 40_000)) * MIB
    card = FakeCard(total, int(total * rng.uniform(0, 0.4)), int(total * rng.uniform(0.05, 0.4)),
                    int(rng.integers(1, MIB)), int(rng.integers(0, 300)) * MIB,
                    int(rng.integers(0, MIB // 2)))  # fmt: skip
    rows = int(rng.integers(1, 64))
    found = profile(card, card, int(rng.integers(64, 4096)), rows, 8192)
    fraction = rng.uniform(0.5, 1.0)
    card.resize(card.room(fraction, found.reserve) // card.block_bytes)
    card.warm_up()
    tokens = found.tokens // card.block_size * card.block_size
    if card.blocks * card.block_size >= tokens:
        card.execute(SimpleNamespace(tokens=range(found.tokens)))  # raises where it doesn't fit
    if card.blocks:
        used = card.total - card.free()[0]
        assert used + found.step <= max(fraction * total, 0) + 1


def test_the_card_of_torch_is_asked_for_the_right_device(monkeypatch) -> None:
    asked = []

    def given(value):
        return lambda *device: asked.append(device) or value

    for name, value in (("synchronize", None), ("empty_cache", None), ("reset_peak_memory_stats", None),
                        ("mem_get_info", (3, 9)), ("memory_allocated", 5), ("max_memory_allocated", 7)):  # fmt: skip
        monkeypatch.setattr(module.torch.cuda, name, given(value))
    card = module.CudaCard(torch.device("cuda", 1))
    card.begin()
    assert (card.free(), card.allocated(), card.peak()) == ((3, 9), 5, 7)
    assert set(asked) == {(torch.device("cuda", 1),), ()}
