"""What every runner does with its KV pool and the one on the host: keep them within memory, resize them, copy between
them, and warm up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from engine.config import Model
from engine.formulas import kv_bytes_per_token
from engine.memory import Resident, resident
from engine.model.architecture import ModelConfig
from engine.records import Memory
from engine.runner.base import OutOfDeviceMemory
from engine.runner.batch import Ints, PackedBatch
from engine.runner.kv_pool import KVPool, copy_blocks

if TYPE_CHECKING:
    from engine.speculation.head_model import HeadWeights, Steps

WARM_PREFILL = 32  # tokens; the chunk that warm-up computes
WARM_DECODES = (1, 2, 4, 8, 16)  # rows


class PooledRunner:
    """See `engine.runner.base.Runner`. A subclass has what raises NotImplementedError here."""

    name = ""
    gpu = ""
    graphs_missing = 0.0  # share of the graphs that warm-up captures which aren't captured
    graph_tokens = 0  # of the largest step that may get a graph

    def __init__(self, config: ModelConfig, model: Model, pool: KVPool, baseline: Resident):
        """`pool`: empty. `baseline`: what was resident before the model came."""
        self.config, self.model, self.block_size = config, model, pool.block_size
        self.notices = list(config.notices)
        self.absent: dict[str, str] = {}
        self._pool, self._baseline = pool, baseline
        self._host = KVPool(config, pool.block_size, pool.dtype, torch.device("cpu"))

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def host_blocks(self) -> int:
        return self._host.num_blocks

    def execute(self, batch: PackedBatch) -> torch.Tensor:
        raise NotImplementedError

    def hidden(self) -> torch.Tensor:
        raise NotImplementedError

    @property
    def final_norm(self) -> torch.Tensor:
        """(hidden): what a trained draft head knows its target by."""
        raise NotImplementedError

    def head_steps(self, weights: HeadWeights) -> Steps:
        """A draft head for this model, to be run where the model runs."""
        raise NotImplementedError

    def free_bytes(self) -> int | None:
        """What the pool may grow by, with a reserve left for a step's own memory; None: not known."""
        raise NotImplementedError

    def free_host_bytes(self) -> int | None:
        """What the host pool may grow by; None: not known."""
        raise NotImplementedError

    def first(self, layers: int) -> PooledRunner:
        raise NotImplementedError

    @property
    def weight_bytes(self) -> int:
        raise NotImplementedError

    @property
    def step_bytes(self) -> int:
        """Of the weights, those that every step reads: not an embedding of which it takes some rows."""
        raise NotImplementedError

    def op_seconds(self) -> dict[str, float]:
        """Seconds of all calls so far within the model, by op where the runner knows them."""
        raise NotImplementedError

    @torch.inference_mode()
    def resize(self, num_blocks: int) -> None:
        """Raises OutOfDeviceMemory."""
        _resize(self._pool, num_blocks, self.free_bytes)

    @torch.inference_mode()
    def resize_host(self, num_blocks: int) -> None:
        """Raises OutOfDeviceMemory."""
        _resize(self._host, num_blocks, self.free_host_bytes)

    @torch.inference_mode()
    def rebuild(self, num_blocks: int, block_size: int, host_blocks: int) -> None:
        """Raises OutOfDeviceMemory."""
        before = self.num_blocks, self.block_size
        _rebuild(self._pool, num_blocks, block_size, self.free_bytes)
        try:
            _rebuild(self._host, host_blocks, block_size, self.free_host_bytes)
        except OutOfDeviceMemory:
            self._pool.rebuild(*before)
            raise
        self.block_size = block_size

    @torch.inference_mode()
    def swap_out(self, device: Ints, host: Ints) -> None:
        copy_blocks(self._pool, device, self._host, host)

    @torch.inference_mode()
    def swap_in(self, host: Ints, device: Ints) -> None:
        copy_blocks(self._host, host, self._pool, device)

    @torch.inference_mode()
    def copy(self, sources: Ints, blocks: Ints) -> None:
        copy_blocks(self._pool, sources, self._pool, blocks)

    def max_blocks(self) -> int:
        return max(1, _room(self._pool, self.free_bytes()))

    def max_host_blocks(self) -> int:
        return _room(self._host, self.free_host_bytes())

    def memory(self) -> Memory:
        now = resident()
        return Memory(
            weights=self.weight_bytes,
            kv_pool=self._pool.bytes,
            host_pool=self._host.bytes,
            resident=now.total,
            resident_files=now.files,
            baseline=self._baseline.total,
            baseline_files=self._baseline.files,
        )

    def forget_graphs(self) -> None:
        """Steps that were captured; their memory goes with them."""

    def fewer_graphs(self) -> bool:
        """Let go of all buffers, and capture graphs of half as many tokens from now on; False: there are none left to
        do without. Before any pass is launched."""
        return False

    def give_back(self) -> None:
        """Let go of graphs and of the buffers that steps left. Before any pass is launched."""

    @torch.inference_mode()
    def warm_up(self) -> None:
        decodes = [rows for rows in WARM_DECODES if rows <= self.num_blocks]
        prefill = min(WARM_PREFILL, self.num_blocks * self.block_size, self.config.max_positions)
        for lengths in (*([1] * rows for rows in decodes), [prefill]):
            self.execute(dummy_batch(lengths, self.block_size))
        touched = max(decodes[-1], -(-prefill // self.block_size))  # blocks
        for keys, values in self._pool.layers:
            keys[:, :touched].zero_()
            values[:, :touched].zero_()


def _resize(pool: KVPool, num_blocks: int, free_bytes: Callable[[], int | None]) -> None:
    _within(pool, num_blocks * pool.bytes_per_block, free_bytes, lambda: pool.resize(num_blocks))


def _rebuild(pool: KVPool, num_blocks: int, block_size: int, free_bytes: Callable[[], int | None]) -> None:
    wanted = num_blocks * (pool.bytes_per_block // pool.block_size * block_size)
    _within(pool, wanted, free_bytes, lambda: pool.rebuild(num_blocks, block_size))


def _within(pool: KVPool, wanted: int, free_bytes: Callable[[], int | None], act: Callable[[], None]) -> None:
    """Let the pool become `wanted` bytes, or raise OutOfDeviceMemory."""
    grown = wanted - pool.bytes
    needed = grown + pool.bytes // len(pool.layers)  # one layer stands in both sizes while it is copied
    free = free_bytes() if grown > 0 else None
    if free is not None and needed > free:
        raise OutOfDeviceMemory(wanted, free + pool.bytes)
    try:
        act()
    except (RuntimeError, MemoryError):
        raise OutOfDeviceMemory(wanted, (free_bytes() or 0) + pool.bytes) from None


def _room(pool: KVPool, free: int | None) -> int:
    """The most blocks that the pool may have."""
    if free is None:
        free = 1 << 30  # unknown: a GiB is there on any machine that runs this
    return pool.num_blocks + free // pool.bytes_per_block


def dummy_batch(lengths: Sequence[int], block_size: int) -> PackedBatch:
    """A batch of token 0 with a row for each length, from position 0, blocks given out in order."""
    tokens = np.array(lengths, dtype=np.int64)  # (R)
    held = -(-tokens // block_size)
    row_starts: Ints = np.concatenate(([0], np.cumsum(tokens)))
    first = np.cumsum(held) - held
    tables = first[:, None] + np.minimum(np.arange(held.max()), held[:, None] - 1)
    positions = np.arange(row_starts[-1]) - np.repeat(row_starts[:-1], tokens)
    return PackedBatch(
        tokens=np.zeros(row_starts[-1], np.int64),
        positions=positions,
        slots=np.repeat(first, tokens) * block_size + positions,
        row_starts=row_starts,
        contexts=tokens,
        tables=tables,
        logit_index=row_starts[1:] - 1,
    )


def describe(config: ModelConfig, parameters: int, name: str, form: str, weight_bytes: int, kv: torch.dtype) -> Model:
    """The record that limits, formulas and the window know the model by. `form`: of the weights; `kv`: of the cache."""
    return Model(
        name=name,
        architecture=config.architecture,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        hidden=config.hidden,
        vocabulary=config.vocabulary,
        max_positions=config.max_positions,
        parameters=parameters,
        weight_bytes=weight_bytes,
        dtype=form,
        kv_bytes_per_token=kv_bytes_per_token(config.layers, config.kv_heads, config.head_dim, kv.itemsize),
    )
