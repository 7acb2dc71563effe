"""The CPU runner over packed weights of 4 to 16 bits: one compiled program a step (`engine.cpu.forward`), on a team of
threads.

Keys and values are float16; keys lie transposed within a block. Logits are in a buffer that the next step writes to.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from engine.cpu import product
from engine.cpu.attention import scratch_floats
from engine.cpu.compiled import compile_for
from engine.cpu.forward import LAYER, MODEL, OPS, STEP, forward, phases
from engine.cpu.packed_matrix import GROUP, aligned, some_rows
from engine.cpu.team import Team
from engine.memory import NOTHING, Resident
from engine.model.architecture import ModelConfig
from engine.model.packed_weights import PackedWeights
from engine.runner.batch import Ints, PackedBatch
from engine.runner.cpu import free_cpu_bytes
from engine.runner.kv_pool import KVPool
from engine.runner.pooled import PooledRunner, describe

if TYPE_CHECKING:
    from engine.speculation.head_model import HeadWeights, Steps

# Tokens of one sequence whose queries attention takes together. With 3 heads to a key head they are 12 rows: two
# passes over a converted key or value.
RUN = 4
_ROWS_GROW = 64  # rows that the buffers grow by at least: fewer times, and never in a steady batch


class PackedRunner(PooledRunner):
    """See `engine.runner.base.Runner`."""

    name = "cpu"

    def __init__(
        self,
        config: ModelConfig,
        weights: PackedWeights,
        name: str,
        threads: int,
        block_size: int,
        num_blocks: int,
        baseline: Resident = NOTHING,
    ):
        """`threads`: 0 = one for each core. Raises OutOfDeviceMemory."""
        pool = KVPool(config, block_size, torch.float16, torch.device("cpu"))
        bytes_held = weights.bytes
        model = describe(config, weights.parameters, name, weights.form, bytes_held, torch.float16)
        super().__init__(config, model, pool, baseline)
        self._weights = weights
        self.threads = threads or _cores()
        self._starts: list[NDArray[np.float32]] = []  # what products begin with, kept alive for their addresses
        self._model, self._layers = self._describe_model(), self._describe_layers()
        self._buffers = _Buffers(config, weights.head.padded_rows, self.threads, weights.head.bits == 16)
        self._times = np.zeros(len(OPS), np.int64)  # ticks
        self._seconds = 0.0
        self._wanted: Ints = np.zeros(0, np.int64)  # of the last step's tokens, those that logits were asked of
        # here, in one thread, lest each of the team's wants to
        compile_for(forward, 0, 0, 0, self._model, self._layers, np.zeros(1, STEP))
        self._team = Team(self.threads, phases(config.layers))
        self.resize(num_blocks)

    @property
    def device_text(self) -> str:
        return f"CPU, {self.threads} thread{'s' if self.threads > 1 else ''}"

    @property
    def weight_bytes(self) -> int:
        return self._weights.bytes

    @property
    def step_bytes(self) -> int:
        apart = self._weights.embedding is not self._weights.head
        return self._weights.bytes - (self._weights.embedding.bytes if apart else 0)

    def free_bytes(self) -> int | None:
        return free_cpu_bytes()

    def free_host_bytes(self) -> int | None:
        return free_cpu_bytes()

    def first(self, layers: int) -> PackedRunner:
        config = replace(self.config, layers=layers)
        weights = replace(self._weights, layers=self._weights.layers[:layers])
        return PackedRunner(config, weights, self.model.name, self.threads, self.block_size, 0)

    def resize(self, num_blocks: int) -> None:
        try:
            super().resize(num_blocks)
        finally:  # a pool that couldn't grow has moved as well
            self._find_pool()

    def rebuild(self, num_blocks: int, block_size: int, host_blocks: int) -> None:
        try:
            super().rebuild(num_blocks, block_size, host_blocks)
        finally:
            self._find_pool()

    def execute(self, batch: PackedBatch) -> torch.Tensor:
        """→ (N, vocabulary) float32, until the next call. Raises MemoryError."""
        config, buffers = self.config, self._buffers
        rotation = _rotation(batch.positions, self._weights.inverse_frequencies)
        runs = _runs(batch.row_starts, batch.positions)
        scratch = scratch_floats(RUN, config.heads // config.kv_heads, int(batch.contexts.max()))
        step = buffers.lay_out(len(batch.tokens), len(batch.logit_index), scratch)
        tables = np.ascontiguousarray(batch.tables)
        for key, array in (
            ("tokens", batch.tokens),
            ("positions", batch.positions),
            ("slots", batch.slots),
            ("wanted", batch.logit_index),
            ("rotation", rotation),
            ("tables", tables),
            ("runs", runs),
            ("times", self._times),
        ):
            step[key] = array.ctypes.data
        step["table_width"] = tables.shape[1]
        step["run_count"], step["threads"] = len(runs), self.threads
        started = time.perf_counter()
        # a thread that is late may still look at its step's records: it gets the arrays, not just their addresses
        self._team.run(forward, self._team.lines.ctypes.data, self._model, self._layers, step)
        self._seconds += time.perf_counter() - started
        self._wanted = batch.logit_index
        return torch.from_numpy(buffers.logits[: len(batch.logit_index), : config.vocabulary])

    def hidden(self) -> torch.Tensor:
        return torch.from_numpy(self._buffers.stream(self.config.hidden)[self._wanted])

    @property
    def final_norm(self) -> torch.Tensor:
        return torch.from_numpy(self._weights.norm)

    def head_steps(self, weights: HeadWeights) -> Steps:
        from engine.cpu.recurrent_steps import PackedSteps  # only who drafts so waits for it to be compiled

        rows = some_rows(self._weights.head, weights.vocabulary.numpy())
        return PackedSteps(weights, self._weights.embedding, rows, self.threads)

    def op_seconds(self) -> dict[str, float]:
        """Seconds of all steps so far by op, as the calling thread saw them."""
        total = max(1, int(self._times.sum()))
        return {op: float(ticks) / total * self._seconds for op, ticks in zip(OPS, self._times, strict=True)}

    def close(self) -> None:
        self._team.close()

    # --- the records that the program reads ---

    def _describe_model(self) -> NDArray:
        config, weights = self.config, self._weights
        model = np.zeros(1, MODEL)
        model["layers"], model["hidden"], model["heads"] = config.layers, config.hidden, config.heads
        model["kv_heads"], model["head_dim"] = config.kv_heads, config.head_dim
        model["intermediate"], model["block_size"] = config.intermediate, self.block_size
        model["epsilon"], model["norm"] = config.rms_eps, weights.norm.ctypes.data
        model["embedding"] = product.describe(weights.embedding, None)
        model["head"] = self._matrix(weights.head, None)
        return model

    def _describe_layers(self) -> NDArray:
        layers = np.zeros(self.config.layers, LAYER)
        for record, layer in zip(layers, self._weights.layers, strict=True):
            for name in ("attention_norm", "qk_norm", "mlp_norm", "output_bias", "down_bias"):
                array = getattr(layer, name)
                record[name] = 0 if array is None else array.ctypes.data
            record["qkv"] = self._matrix(layer.qkv, layer.qkv_bias)
            record["gate_up"] = self._matrix(layer.gate_up, layer.gate_up_bias)
            record["output"], record["down"] = product.describe(layer.output, None), product.describe(layer.down, None)
        return layers

    def _find_pool(self) -> None:
        self._model["block_size"] = self.block_size
        for layer, (keys, values) in zip(self._layers, self._pool.layers, strict=True):
            assert keys.stride(0) == values.stride(0) and keys[0].is_contiguous() and values[0].is_contiguous()
            layer["keys"], layer["values"] = keys.data_ptr(), values.data_ptr()
            layer["blocks"] = keys.stride(0) // (self.block_size * self.config.head_dim)

    def _matrix(self, matrix: product.PackedMatrix, bias: NDArray[np.float32] | None) -> tuple[int, ...]:
        start = np.zeros(matrix.padded_rows, np.float32)
        if bias is not None:
            start[: len(bias)] = bias
        self._starts.append(start)
        return product.describe(matrix, start)


class _Buffers:
    """What the phases of a step write to, grown when a batch is larger than any before."""

    def __init__(self, config: ModelConfig, vocabulary: int, threads: int, plain: bool):
        """`vocabulary`: padded to whole tiles. `plain`: rows stay float32 before products."""
        self._threads, self._plain = threads, plain
        attention, inner = config.heads * config.head_dim, config.intermediate
        widest = max(config.hidden, attention, inner)
        self._widths = {
            "x": 4 * config.hidden,
            "codes": widest * (4 if plain else 1),
            "words": widest // GROUP * product.WORDS.itemsize,
            "qkv": 4 * (attention + 2 * config.kv_heads * config.head_dim),
            "attention": 4 * attention,
            "gate_up": 8 * inner,
        }  # bytes a row
        self._arrays = dict.fromkeys((*self._widths, "scratch"), aligned((0,), np.uint8))
        self._rows = 0
        self.logits = aligned((0, vocabulary), np.float32)

    def stream(self, hidden: int) -> NDArray[np.float32]:
        """The residual stream (rows, hidden) as the last step left it."""
        return self._arrays["x"].view(np.float32).reshape(-1, hidden)

    def lay_out(self, rows: int, wanted: int, scratch: int) -> NDArray:
        """A record of STEP with the buffers' addresses and the counts; scratch: float32 numbers a thread."""
        if rows > self._rows:
            self._rows = rows + max(_ROWS_GROW, rows // 4)
            for name, width in self._widths.items():
                self._arrays[name] = aligned((self._rows * width,), np.uint8)
        if wanted > len(self.logits):
            self.logits = aligned((wanted + wanted // 4, self.logits.shape[1]), np.float32)
        stride = 4 * scratch
        if stride * self._threads > len(self._arrays["scratch"]):
            self._arrays["scratch"] = aligned((2 * stride * self._threads,), np.uint8)
        step = np.zeros(1, STEP)
        for name, array in self._arrays.items():
            step[name] = array.ctypes.data
        step["logits"] = self.logits.ctypes.data
        step["count"], step["wanted_count"], step["scratch_bytes"] = rows, wanted, stride
        step["plain"] = self._plain
        return step


def _runs(row_starts: Ints, positions: Ints) -> Ints:
    """(runs, 3): first token, tokens, row; rows cut into runs of `RUN`, those with the most keys first, so that the
    last to be claimed are short."""
    lengths = np.diff(row_starts)
    pieces = -(-lengths // RUN)
    row = np.repeat(np.arange(len(lengths)), pieces)
    within = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = row_starts[:-1][row] + within * RUN
    count = np.minimum(RUN, row_starts[1:][row] - first)
    order = np.argsort(-positions[first], kind="stable")
    return np.ascontiguousarray(np.stack((first, count, row), axis=1)[order])


def _rotation(positions: Ints, inverse_frequencies: NDArray[np.float32]) -> NDArray[np.float32]:
    """(T, 2, d / 2): cosines and sines of each token's angles."""
    angles = positions.astype(np.float32)[:, None] * inverse_frequencies
    return np.stack((np.cos(angles), np.sin(angles)), axis=1)


def _cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
