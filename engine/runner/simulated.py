"""The simulated runner: a cost model in the place of the forward pass.

It holds no K/V and computes nothing; it lets the simulated clock go on by what the pass would take, and gives logits
that nobody may read (`engine.simulation.sampler` chooses in their place). Scheduler, pool, tables and records around it
are the real ones.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.config import Model
from engine.cost_model import Counts, Rates
from engine.formulas import GIB
from engine.profiles import CONTEXT_BYTES, Profile
from engine.records import Memory
from engine.runner.batch import Ints, PackedBatch
from engine.simulation.clock import SimulatedClock

# bytes/s between a card and its host: PCIe 4 ×16 has 31.5 GB/s, of which copies of many blocks reach about this
HOST_LINK = 25e9
HOST_BYTES = 256 * GIB  # of a host beside such a card


class SimulatedRunner:
    """See `engine.runner.base.Runner`. `most`: blocks of the pool that may be asked for, whatever the device holds.
    `period`: s that every step takes, whatever the cost model says; 0 = what it says."""

    name = "simulated"
    gpu = ""

    def __init__(
        self,
        profile: Profile,
        counted: Counts,
        rates: Rates,
        clock: SimulatedClock,
        num_blocks: int,
        block_size: int,
        fits: int,
        most: int,
        period: float = 0.0,
    ):
        self.profile, self.counts, self.rates = profile, counted, rates
        self.num_blocks, self.block_size, self.host_blocks = num_blocks, block_size, 0
        self.notices: list[str] = []
        self.absent: dict[str, str] = {}
        self._period = period
        self._clock, self._fits, self._most = clock, fits * block_size, most * block_size  # tokens
        shape = profile.model.shape
        self.model = Model(
            name=profile.model.name, architecture=shape.kind, layers=shape.layers, heads=shape.heads,
            kv_heads=shape.kv_heads, head_dim=shape.head_dim, hidden=shape.hidden, vocabulary=shape.vocabulary,
            max_positions=shape.max_positions, parameters=shape.parameters, weight_bytes=profile.model.weight_bytes,
            dtype="bfloat16", kv_bytes_per_token=profile.model.kv_bytes_per_token,
        )  # fmt: skip
        self._nothing = torch.zeros(1, 1).expand(1, shape.vocabulary)

    @property
    def device_text(self) -> str:
        beyond = self.num_blocks * self.block_size > self._fits
        return f"{self.profile.device.name}, simulated" + (", pool beyond its memory" if beyond else "")

    def seconds(self, tokens: Ints | list[int], contexts: Ints | list[int], logits: int) -> float:
        """Of a pass over rows with so many tokens, which then hold so many."""
        return self.rates.seconds(self.counts.work(tokens, contexts, logits))

    def execute(self, batch: PackedBatch) -> torch.Tensor:
        logits = len(batch.logit_index)
        self._clock.advance(self._period or self.seconds(np.diff(batch.row_starts), batch.contexts, logits))
        return self._nothing.expand(logits, -1)  # (N, vocabulary) without memory of its own

    def hidden(self) -> torch.Tensor:
        raise NotImplementedError  # there is none

    def draft(self, contexts: list[int], share: float) -> None:
        """One pass of the model's first layers over rows that hold so many tokens."""
        if self._period:
            return
        counted, rows = self.counts, len(contexts)
        head = counted.head * 2
        few = Counts(
            weights=(counted.weights - head) * share + head,
            body=counted.body * share,
            head=counted.head,
            kv=counted.kv * share,
            pair=counted.pair * share,
        )
        self._clock.advance(self.rates.slower(share).seconds(few.work([1] * rows, contexts, rows)))

    def resize(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks

    def resize_host(self, num_blocks: int) -> None:
        self.host_blocks = num_blocks

    def rebuild(self, num_blocks: int, block_size: int, host_blocks: int) -> None:
        self.num_blocks, self.block_size, self.host_blocks = num_blocks, block_size, host_blocks

    def swap_out(self, device: Ints, host: Ints) -> None:
        self._copy(len(device), HOST_LINK)

    def swap_in(self, host: Ints, device: Ints) -> None:
        self._copy(len(device), HOST_LINK)

    def copy(self, sources: Ints, blocks: Ints) -> None:
        self._copy(2 * len(blocks), self.rates.bandwidth)  # read and written

    def _copy(self, blocks: int, bandwidth: float) -> None:
        if self._clock.held and not self._period:  # copies that a change of settings makes are no step's
            self._clock.advance(blocks * self.block_size * self.model.kv_bytes_per_token / bandwidth)

    def max_blocks(self) -> int:
        return self._most // self.block_size

    def max_host_blocks(self) -> int:
        return HOST_BYTES // (self.block_size * self.model.kv_bytes_per_token)

    def memory(self) -> Memory:
        """By formula, of the device; this process holds none of it."""
        each = self.block_size * self.model.kv_bytes_per_token
        weights, pool = self.model.weight_bytes, self.num_blocks * each
        return Memory(
            weights=weights,
            kv_pool=pool,
            host_pool=self.host_blocks * each,
            resident=weights + pool + self.host_blocks * each + CONTEXT_BYTES,
            baseline=CONTEXT_BYTES,
        )

    def warm_up(self) -> None:
        return None
