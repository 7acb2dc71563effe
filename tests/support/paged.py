"""Sequences driven through a runner by hand: scattered block tables, and rows of any mix."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from engine.runner.base import Runner
from engine.runner.batch import PackedBatch


@dataclass
class Driven:
    tokens: list[int]
    table: list[int] = field(default_factory=list)
    computed: int = 0


class Driver:
    """Hands out blocks in a random order, so that no table is contiguous by luck."""

    def __init__(self, runner: Runner, seed: int = 0):
        self.runner = runner
        self._free = np.random.default_rng(seed).permutation(runner.num_blocks).tolist()

    def run(self, rows: list[tuple[Driven, int]]) -> list[torch.Tensor]:
        """Compute each sequence's next `count` tokens in one pass; logits of all of them, (count, V) a row."""
        size = self.runner.block_size
        for sequence, count in rows:
            while len(sequence.table) * size < sequence.computed + count:
                sequence.table.append(self._free.pop())
        counts = np.array([count for _, count in rows])
        starts = np.concatenate(([0], np.cumsum(counts)))
        tables = np.zeros((len(rows), max(len(s.table) for s, _ in rows)), dtype=np.int64)
        for index, (sequence, _) in enumerate(rows):
            tables[index, : len(sequence.table)] = sequence.table
        positions = np.concatenate([np.arange(s.computed, s.computed + n) for s, n in rows])
        row_of = np.repeat(np.arange(len(rows)), counts)
        batch = PackedBatch(
            tokens=np.concatenate([s.tokens[s.computed : s.computed + n] for s, n in rows]).astype(np.int64),
            positions=positions,
            slots=tables[row_of, positions // size] * size + positions % size,
            row_starts=starts,
            contexts=np.array([s.computed + n for s, n in rows]),
            tables=tables,
            logit_index=np.arange(starts[-1]),
        )
        for sequence, count in rows:
            sequence.computed += count
        return list(self.runner.execute(batch).clone().split(counts.tolist()))
