"""A canary in the KV pool: whose token and which position every slot holds, written when it is stored, looked at when
it is read.

Stands between an engine and its runner, whatever that is. It believes nothing that the pool's bookkeeping says: it
sees the slots that a batch writes to and the tables that it reads through, and the copies between the two pools. A
shared slot has another sequence's name on it; then the chain of tokens up to it must be the reader's own.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.core import Engine
from engine.runner.base import Runner
from engine.runner.batch import Ints, PackedBatch, ScheduledRow
from engine.scheduler import Plan

_SLOT = np.dtype([("owner", np.int64), ("position", np.int64), ("chain", np.uint64)])
_NOTHING = np.array((-1, -1, 0), _SLOT)
_PRIME, _MASK = 1_099_511_628_211, (1 << 64) - 1


class Corrupted(AssertionError):
    """A row was about to read what isn't its own."""


class Shadow:
    """Attributes:
    reads: slots looked at. shared: those of them that another sequence stored.
    """

    def __init__(self, engine: Engine):
        self.reads = self.shared = 0
        self._runner: Runner = engine.runner
        self._rows: list[ScheduledRow] = []
        self._size_both()
        schedule = engine.scheduler.schedule

        def planned(budget: int) -> Plan:
            plan = schedule(budget)
            self._rows = plan.rows
            return plan

        engine.scheduler.schedule = planned  # type: ignore[method-assign]
        engine.runner = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> object:
        return getattr(self._runner, name)

    # --- what passes through ---

    def execute(self, batch: PackedBatch) -> torch.Tensor:
        chains = [_chain([*row.sequence.tokens, *row.drafts]) for row in self._rows]
        bounds = batch.row_starts.tolist()
        for index, row in enumerate(self._rows):
            some = slice(bounds[index], bounds[index + 1])
            slots, positions = batch.slots[some], batch.positions[some]
            slots, positions = slots[slots >= 0], positions[slots >= 0]  # the others are there already, which is read
            self._flat["owner"][slots], self._flat["position"][slots] = row.sequence.seq, positions
            self._flat["chain"][slots] = chains[index][positions]
        for index, row in enumerate(self._rows):
            self._read(row.sequence.seq, batch.tables[index], int(batch.contexts[index]), chains[index])
        return self._runner.execute(batch)

    def swap_out(self, device: Ints, host: Ints) -> None:
        self._host[host] = self._pool[device]
        self._runner.swap_out(device, host)

    def swap_in(self, host: Ints, device: Ints) -> None:
        self._pool[device] = self._host[host]
        self._runner.swap_in(host, device)

    def copy(self, sources: Ints, blocks: Ints) -> None:
        self._pool[blocks] = self._pool[sources]
        self._runner.copy(sources, blocks)

    def resize(self, num_blocks: int) -> None:
        self._runner.resize(num_blocks)
        self._pool = _resized(self._pool, num_blocks)

    def resize_host(self, num_blocks: int) -> None:
        self._runner.resize_host(num_blocks)
        self._host = _resized(self._host, num_blocks)

    def rebuild(self, num_blocks: int, block_size: int, host_blocks: int) -> None:
        self._runner.rebuild(num_blocks, block_size, host_blocks)
        self._size_both()

    # --- within ---

    def _size_both(self) -> None:
        """Nothing is known of any slot."""
        size = self._runner.block_size
        self._pool, self._host = _slots(self._runner.num_blocks, size), _slots(self._runner.host_blocks, size)

    @property
    def _flat(self) -> np.ndarray:
        return self._pool.reshape(-1)

    def _read(self, seq: int, table: Ints, context: int, chain: np.ndarray) -> None:
        """Everything from position 0 on, as attention does."""
        size, at = self._runner.block_size, np.arange(context)
        found = self._flat[table[at // size] * size + at % size]
        foreign = found["owner"] != seq
        wrong = (found["position"] != at) | (found["chain"] != chain[:context])
        if wrong.any():
            where = int(np.argmax(wrong))
            owner, position, _ = found[where].tolist()
            raise Corrupted(f"sequence {seq} reads position {where}; there is {position} of sequence {owner}")
        self.reads += context
        self.shared += int(foreign.sum())


def _slots(num_blocks: int, size: int = 1) -> np.ndarray:
    return np.full((num_blocks, size), _NOTHING)


def _resized(old: np.ndarray, num_blocks: int) -> np.ndarray:
    new = _slots(num_blocks, old.shape[1])
    kept = min(num_blocks, len(old))
    new[:kept] = old[:kept]
    return new


def _chain(tokens: list[int]) -> np.ndarray:
    """One number for each prefix."""
    value, chain = 14_695_981_039_346_656_037, []
    for token in tokens:
        value = (value * _PRIME + token + 1) & _MASK
        chain.append(value)
    return np.array(chain, np.uint64)
