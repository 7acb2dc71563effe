"""What the CPU runner in floats and the CUDA runner share, which is nearly everything: a transformer and a device."""

from __future__ import annotations

import time
from copy import copy
from dataclasses import replace

import numpy as np
import torch

from engine.kernels.paged_attention import plan
from engine.memory import NOTHING, Resident, plainly, ran_out
from engine.model.architecture import ModelConfig
from engine.model.transformer import Inputs, Transformer
from engine.model.weights import Weights
from engine.runner.batch import Ints, PackedBatch
from engine.runner.kv_pool import KVPool
from engine.runner.pooled import PooledRunner, describe
from engine.speculation.head_model import HeadWeights, Steps, TorchSteps


class TorchRunner(PooledRunner):
    """See `engine.runner.base.Runner`."""

    name = "torch"

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        name: str,
        dtype: torch.dtype,
        device: torch.device,
        block_size: int,
        num_blocks: int,
        baseline: Resident = NOTHING,
        consume: bool = False,
    ):
        """`name`: the model's. `baseline`: what was resident before it came. `consume`: nobody else needs `weights`.
        Raises OutOfDeviceMemory."""
        form, bytes_held = self._form(weights, dtype)
        model = describe(config, weights.parameters, name, form, bytes_held, dtype)
        super().__init__(config, model, KVPool(config, block_size, dtype, device), baseline)
        self.dtype, self.device = dtype, device
        self._transformer = self._made(config, weights, consume)
        self._seconds = 0.0  # in the model, so far
        self.resize(num_blocks)

    def _form(self, weights: Weights, dtype: torch.dtype) -> tuple[str, int]:
        """The weights' form and bytes."""
        return str(dtype).removeprefix("torch."), weights.parameters * dtype.itemsize

    def _made(self, config: ModelConfig, weights: Weights, consume: bool) -> Transformer:
        return Transformer(config, weights, consume)

    @property
    def device_text(self) -> str:
        return str(self.device)

    @property
    def weight_bytes(self) -> int:
        return self._transformer.bytes

    @property
    def step_bytes(self) -> int:
        return self._transformer.bytes_read

    def first(self, layers: int) -> TorchRunner:
        config, form = replace(self.config, layers=layers), self.model.dtype
        few = copy(self)  # what a subclass has besides, a device's own words and figures, is the same
        model = describe(config, self.model.parameters, self.model.name, form, self.model.weight_bytes, self.dtype)
        PooledRunner.__init__(few, config, model, KVPool(config, self.block_size, self.dtype, self.device), NOTHING)
        few._transformer, few._seconds = self._transformer.first(layers), 0.0
        return few

    def op_seconds(self) -> dict[str, float]:
        """The whole model as one op; on a GPU only what it takes to ask for it."""
        return {"model": self._seconds}

    @property
    def final_norm(self) -> torch.Tensor:
        return self._transformer.norm

    def embedding_rows(self, tokens: Ints) -> torch.Tensor:
        rows = torch.from_numpy(tokens).to(self.device)
        return self._transformer.embedding[rows].float()

    def head_rows(self, tokens: Ints) -> torch.Tensor:
        return self._transformer.head.rows(torch.from_numpy(tokens).to(self.device)).float()

    def head_steps(self, weights: HeadWeights) -> Steps:
        return TorchSteps(weights, self, self.device)

    def hidden(self) -> torch.Tensor:
        return self._transformer.wanted.float()

    @torch.inference_mode()
    def execute(self, batch: PackedBatch) -> torch.Tensor:
        """→ (N, vocabulary) float32 on the runner's device. Raises MemoryError or torch.OutOfMemoryError."""
        config = self.config
        groups = plan(
            batch.row_starts,
            batch.contexts,
            batch.tables,
            self.block_size,
            config.heads // config.kv_heads,
            self.dtype,
            self.device,
        )
        slots, stored = batch.slots, None
        if slots.min() < 0:
            stored = np.flatnonzero(slots >= 0)
            slots, stored = slots[stored], torch.from_numpy(stored).to(self.device)
        arrays = (batch.tokens, batch.positions, slots, batch.logit_index)
        inputs = Inputs(*(torch.from_numpy(array).to(self.device) for array in arrays), groups, stored)
        started = time.perf_counter()
        try:
            logits = self._transformer.forward(inputs, self._pool.layers)
        except RuntimeError as error:
            if type(error) is RuntimeError and ran_out(error):
                raise MemoryError(plainly(error)) from error
            raise
        self._seconds += time.perf_counter() - started
        return logits
