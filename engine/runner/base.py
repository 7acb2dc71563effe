"""What the engine's core asks of a device: run a packed batch, hold the KV pool, and say what both take."""

from __future__ import annotations

from typing import Protocol

import torch

from engine.config import Model
from engine.formulas import MIB
from engine.records import Memory
from engine.runner.batch import Ints, PackedBatch


class OutOfDeviceMemory(Exception):
    """`what`, a pool of that size, doesn't fit; the old one stands. Bytes."""

    def __init__(self, needed: int, free: int, what: str = "the KV pool"):
        super().__init__(
            f"{what} needs {needed / MIB:,.0f} MiB, {free / MIB:,.0f} MiB are free; "
            "lower kv_blocks, or free memory"
        )
        self.needed = needed
        self.free = free


class Runner(Protocol):
    name: str  # "cpu", "cuda"
    device_text: str  # in words
    gpu: str  # CUDA: the card's identifier; else ""
    model: Model
    num_blocks: int
    host_blocks: int  # of the pool on the host that preempted sequences move to
    block_size: int  # tokens
    notices: list[str]  # what the user should know about this model here
    absent: dict[str, str]  # forms of weights that this model can't be had in here, and why

    def execute(self, batch: PackedBatch) -> torch.Tensor:
        """Write every token's K/V and return the logits (N, vocabulary) float32 of `logit_index`, in order, until the
        next call."""
        ...

    def hidden(self) -> torch.Tensor:
        """What the last pass's logits were made from, before the final norm: (N, hidden) float32, its own."""
        ...

    def resize(self, num_blocks: int) -> None:
        """Keep the K/V of blocks below min(old, new). Raises OutOfDeviceMemory and leaves the old pool."""
        ...

    def resize_host(self, num_blocks: int) -> None:
        """As `resize`, of the host pool."""
        ...

    def rebuild(self, num_blocks: int, block_size: int, host_blocks: int) -> None:
        """Blocks of another size in both pools; what they held is lost. Raises OutOfDeviceMemory and leaves the old."""
        ...

    def swap_out(self, device: Ints, host: Ints) -> None:
        """Copy blocks `device` of the pool to blocks `host` of the host pool, all in one."""
        ...

    def swap_in(self, host: Ints, device: Ints) -> None: ...

    def copy(self, sources: Ints, blocks: Ints) -> None:
        """Copy blocks `sources` of the pool to blocks `blocks` of it, as if all were read before any is written."""
        ...

    def max_blocks(self) -> int:
        """The largest pool that fits beside the weights, now."""
        ...

    def max_host_blocks(self) -> int: ...

    def memory(self) -> Memory: ...

    def first(self, layers: int) -> Runner:
        """A runner of the model's first `layers` layers, its final norm and its head, over the same weights in memory
        and an empty pool of its own."""
        ...

    def warm_up(self) -> None:
        """Run the usual shapes once, so that the first request isn't slow. Before any block is in use."""
        ...
