"""How large the KV pool of a card may be: found by running the largest step and capturing graphs, not guessed.

    pool = total · fraction − what isn't the allocator's (other processes, the driver, CUDA's context and libraries)
           − weights and buffers − the most that a step takes beside them − graphs

The fraction binds the whole card, others included: it is filled up to there and no further. Memory that runs out during
the pass makes the step smaller, or lets it do with fewer graphs, and the engine is told of it. What stays allocated
whatever the pool's size, weights and buffers, is missing from what is free from then on, so it is in no figure here;
the others are what a step takes for a moment, and what comes back when graphs are forgotten. Knows a card by a few
numbers, so that tests need none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from engine.formulas import MIB
from engine.memory import ran_out
from engine.runner.base import OutOfDeviceMemory
from engine.runner.pooled import dummy_batch

LEAST_TOKENS = 64  # of a step; a card that can't even run that has no room for an engine
# What allocators and libraries round up, and what moves between the pass and the first step: kept free beside all that.
MARGIN = 64 << 20


class Card(Protocol):
    """Bytes."""

    def free(self) -> tuple[int, int]:
        """By the driver's count: free, and in all."""
        ...

    def allocated(self) -> int:
        """In tensors."""
        ...

    def peak(self) -> int:
        """The most of that since `begin`."""
        ...

    def begin(self) -> None:
        """Give back what is in no tensor, and count the peak anew."""
        ...


class Profiled(Protocol):
    """What is asked of a runner."""

    block_size: int

    def resize(self, num_blocks: int) -> None: ...
    def execute(self, batch: object) -> object: ...
    def warm_up(self) -> None: ...
    def forget_graphs(self) -> None: ...
    def fewer_graphs(self) -> bool: ...
    def give_back(self) -> None: ...


@dataclass(frozen=True)
class Profile:
    """Bytes, and the step that they are of. `cut`: what was asked for didn't fit."""

    tokens: int
    step: int  # beside weights, pool and buffers that stay
    graphs: int  # captured; given back when they are forgotten, as they are whenever the pool changes
    cut: bool

    @property
    def reserve(self) -> int:
        return self.step + self.graphs + MARGIN

    def words(self) -> str:
        return f"a step of {self.tokens:,} tokens takes {self.step / MIB:,.0f} MiB, graphs {self.graphs / MIB:,.0f} MiB"


def profile(runner: Profiled, card: Card, tokens: int, rows: int, longest: int) -> Profile:
    """`tokens`, `rows`: of the largest step, one of prompts no longer than `longest` and one of decodes. Leaves the
    least pool. Raises OutOfDeviceMemory where not even a small step runs."""
    asked = tokens
    while True:
        try:
            step = _step(runner, card, tokens, rows, longest)
            break
        except (RuntimeError, MemoryError, OutOfDeviceMemory) as error:
            if not isinstance(error, OutOfDeviceMemory) and not ran_out(error):
                raise
            failed = error
        runner.give_back()
        if tokens <= LEAST_TOKENS and rows <= 1:
            card.begin()
            free, _ = card.free()
            needed = failed.needed if isinstance(failed, OutOfDeviceMemory) else free + MARGIN
            raise OutOfDeviceMemory(needed, free, f"a step of {tokens} tokens beside the weights") from None
        tokens, rows = max(LEAST_TOKENS, tokens // 2), max(1, rows // 2)
    card.begin()
    before, _ = card.free()
    runner.forget_graphs()
    card.begin()
    after, _ = card.free()
    return Profile(tokens, step, max(0, after - before), tokens < asked)


def room(free: int, slack: int, total: int, fraction: float, reserve: int) -> int:
    """What the pool may grow by. `slack`: of the allocator's, in no tensor."""
    return max(0, free + slack - reserve - (total - int(total * fraction)))


def _step(runner: Profiled, card: Card, tokens: int, rows: int, longest: int) -> int:
    """The most that the larger of both steps takes, once all buffers are there and graphs are captured: it may run
    beside them."""
    lengths = [min(longest, tokens)] * max(1, tokens // longest)
    blocks = max(sum(-(-length // runner.block_size) for length in lengths), rows)

    def run() -> None:
        for batch in (lengths, [1] * rows):
            runner.execute(dummy_batch(batch, runner.block_size))

    runner.resize(blocks)
    while True:
        run()  # first, for graphs are void when buffers grow
        try:
            runner.warm_up()
            break
        except (RuntimeError, MemoryError, OutOfDeviceMemory) as error:
            if not isinstance(error, OutOfDeviceMemory) and not ran_out(error):
                raise
            if not runner.fewer_graphs():
                raise
    card.begin()
    rest = card.allocated()
    run()
    return max(0, card.peak() - rest)


class CudaCard:
    """`Card` by torch's allocator."""

    def __init__(self, device: torch.device):
        self._device = device

    def free(self) -> tuple[int, int]:
        torch.cuda.synchronize(self._device)
        return torch.cuda.mem_get_info(self._device)

    def allocated(self) -> int:
        return torch.cuda.memory_allocated(self._device)

    def peak(self) -> int:
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device)

    def begin(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
