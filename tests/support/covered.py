"""The engine on the default model in float32 under one combination of settings."""

from __future__ import annotations

from functools import cached_property

import torch

from app.bench.combinations import Combination
from engine.model.store import resolve
from engine.model.weights import load
from engine.records import StepRecord
from engine.runner.cpu import CpuRunner
from tests.support.oracle import NEW_TOKENS, prompts
from tests.support.served import serve, start

Covered = tuple[list[list[int]], int]  # what each prompt gave, and how many were preempted


class DefaultModel:
    """Runners of any block size on the same weights, which are read once."""

    @cached_property
    def _loaded(self):
        files, device = resolve("default"), torch.device("cpu")
        return files.name, *load(files, torch.float32, device)

    def runner(self, block_size: int) -> CpuRunner:
        name, config, weights = self._loaded
        return CpuRunner(config, weights, name, torch.float32, torch.device("cpu"), block_size, 4)

    def cover(self, combination: Combination) -> Covered:
        """Invariants are checked as it goes."""
        engine = start(self.runner(combination.block_size), combination.settings())

        def squeeze(step: int, record: StepRecord) -> None:
            changes = combination.change_at(step)
            if changes:
                engine.change(changes)

        return serve(engine, prompts(), NEW_TOKENS, squeeze)
