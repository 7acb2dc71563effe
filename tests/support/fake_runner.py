"""A runner without weights whose 'model' is a table: the next token's logits depend on the last two tokens.

Its K/V is strict where a real one would only be slightly wrong. What it stores for a token is the token, its position
and a chain value made from the one before it, so a read through a block table finds out at once when a block holds
another sequence's tokens, stale drafts, or nothing. Loops over tokens are fine here; it is for tests alone.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from engine.config import Limit, LiveSettings, Model, limits
from engine.records import Memory
from engine.runner.base import OutOfDeviceMemory
from engine.runner.batch import Ints, PackedBatch

_EMPTY = -1
_CHAIN_PRIME = 1_000_003
_CHAIN_MASK = (1 << 61) - 1


class TableModel:
    """Logits (vocabulary,) for each pair of last tokens, drawn once from `seed`.

    `sharpness` scales them: at 3 and above most pairs have one clear successor, so greedy text runs into cycles
    that prompt lookup can draft.
    """

    def __init__(self, vocabulary: int = 8, seed: int = 0, sharpness: float = 1.5):
        self.vocabulary = vocabulary
        generator = np.random.default_rng(seed)
        # (before last, last, next); a first token has itself before it
        self.table = (generator.standard_normal((vocabulary,) * 3) * sharpness).astype(np.float32)

    def logits(self, tokens: list[int]) -> np.ndarray:
        """(vocabulary,) of what follows `tokens`."""
        return self.table[tokens[-2] if len(tokens) > 1 else tokens[-1], tokens[-1]]

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The dense reference: the next `count` tokens, one at a time, without any cache."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.logits(tokens).argmax()))
        return tokens[len(prompt) :]

    def probabilities(self, tokens: list[int], temperature: float = 1.0) -> np.ndarray:
        """(vocabulary,) float64 softmax of what follows `tokens`."""
        x = self.logits(tokens).astype(np.float64) / temperature
        weights = np.exp(x - x.max())
        return weights / weights.sum()


class FakeRunner:
    """Implements the runner protocol on a `TableModel`. `room`: blocks that memory has room for."""

    name = "cpu"
    device_text = "no device"

    def __init__(self, num_blocks: int, block_size: int, model: TableModel | None = None, room: int = 1 << 20):
        self.table_model = model or TableModel()
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.host_blocks = 0
        self.room = room
        self.passes = 0
        self.notices: list[str] = []
        self.model = Model(
            name="table",
            architecture="table",
            layers=1,
            heads=1,
            kv_heads=1,
            head_dim=1,
            hidden=1,
            vocabulary=self.table_model.vocabulary,
            max_positions=1 << 16,
            parameters=self.table_model.table.size,
            weight_bytes=self.table_model.table.nbytes,
            dtype="float32",
            kv_bytes_per_token=24,
        )
        self._kv = np.full((num_blocks * block_size, 3), _EMPTY, dtype=np.int64)  # slot → token, position, chain
        self._host = self._kv[:0]

    def bounds(self, **narrower: tuple[float, float]) -> dict[str, Limit]:
        """Limits wide enough for tests; `narrower` replaces some."""
        found = limits(self.model, self.block_size, 1 << 20)
        for key, (low, high) in narrower.items():
            found[key] = Limit(low, high, found[key].unit, "the test says so")
        return found

    def execute(self, batch: PackedBatch) -> torch.Tensor:
        """(N, vocabulary) float32."""
        self.passes += 1
        starts = batch.row_starts.tolist()
        assert len(starts) == len(batch.contexts) + 1 == len(batch.tables) + 1
        assert len(batch.tokens) == len(batch.positions) == len(batch.slots) == starts[-1]
        written = batch.slots[batch.slots >= 0]
        assert len(np.unique(written)) == len(written), "two tokens write to one slot"
        wanted = set(batch.logit_index.tolist())
        out = []
        for row, (start, end) in enumerate(pairwise(starts)):
            assert end > start, "an empty row"
            for i in range(start, end):
                self._write(batch, row, i)
            assert batch.positions[end - 1] + 1 == batch.contexts[row]
            out += [self._read(batch, row, i) for i in range(start, end) if i in wanted]
        assert len(out) == len(batch.logit_index) == len(wanted)
        return torch.from_numpy(np.array(out, dtype=np.float32).reshape(len(out), self.table_model.vocabulary))

    def resize(self, num_blocks: int) -> None:
        if num_blocks > max(self.room, self.num_blocks):
            raise OutOfDeviceMemory(num_blocks * self.block_size * 24, self.room * self.block_size * 24)
        self._kv, self.num_blocks = self._resized(self._kv, num_blocks), num_blocks

    def resize_host(self, num_blocks: int) -> None:
        if num_blocks > max(self.room, self.host_blocks):  # a pool that shrinks never fails
            raise OutOfDeviceMemory(num_blocks * self.block_size * 24, self.room * self.block_size * 24)
        self._host, self.host_blocks = self._resized(self._host, num_blocks), num_blocks

    def rebuild(self, num_blocks: int, block_size: int, host_blocks: int) -> None:
        if max(num_blocks, host_blocks) * block_size > self.room * self.block_size:
            raise OutOfDeviceMemory(num_blocks * block_size * 24, self.room * self.block_size * 24)
        self.room = self.room * self.block_size // block_size
        self.num_blocks, self.block_size, self.host_blocks = num_blocks, block_size, host_blocks
        self._kv = np.full((num_blocks * block_size, 3), _EMPTY, dtype=np.int64)
        self._host = np.full((host_blocks * block_size, 3), _EMPTY, dtype=np.int64)

    def _resized(self, old: np.ndarray, num_blocks: int) -> np.ndarray:
        kv = np.full((num_blocks * self.block_size, 3), _EMPTY, dtype=np.int64)
        kept = min(len(kv), len(old))
        kv[:kept] = old[:kept]
        return kv

    def swap_out(self, device: Ints, host: Ints) -> None:
        self._copy(self._kv, device, self._host, host)

    def swap_in(self, host: Ints, device: Ints) -> None:
        self._copy(self._host, host, self._kv, device)

    def copy(self, sources: Ints, blocks: Ints) -> None:
        self._copy(self._kv.copy(), sources, self._kv, blocks)

    def _copy(self, source: np.ndarray, blocks: Ints, target: np.ndarray, places: Ints) -> None:
        assert len(set(places.tolist())) == len(places) == len(blocks), "two blocks are copied to one place"
        size = (-1, self.block_size, 3)
        target.reshape(size)[places] = source.reshape(size)[blocks]

    def max_host_blocks(self) -> int:
        return self.room

    def max_blocks(self) -> int:
        return self.room

    def memory(self) -> Memory:
        return Memory(weights=self.model.weight_bytes, kv_pool=self._kv.nbytes)

    def warm_up(self) -> None:
        return None

    def _slot(self, batch: PackedBatch, row: int, position: int) -> int:
        return int(batch.tables[row, position // self.block_size]) * self.block_size + position % self.block_size

    def _write(self, batch: PackedBatch, row: int, i: int) -> None:
        position, token, slot = int(batch.positions[i]), int(batch.tokens[i]), int(batch.slots[i])
        before = int(self._kv[self._slot(batch, row, position - 1), 2]) if position else 0
        if slot < 0:
            assert self._kv[self._slot(batch, row, position)].tolist() == [token, position, _chain(before, token)]
            return
        assert slot == self._slot(batch, row, position)
        self._kv[slot] = token, position, _chain(before, token)

    def _read(self, batch: PackedBatch, row: int, i: int) -> np.ndarray:
        """Attend to all of 0..position through the table, and believe nothing that doesn't fit together."""
        position = int(batch.positions[i])
        held = [self._kv[self._slot(batch, row, p)].tolist() for p in range(position + 1)]
        chain = 0
        for p, (token, at, value) in enumerate(held):
            chain = _chain(chain, token)
            assert at == p and value == chain, f"the K/V at position {p} is not this sequence's"
        return self.table_model.logits([token for token, _, _ in held])


def _chain(before: int, token: int) -> int:
    return (before * _CHAIN_PRIME + token + 1) & _CHAIN_MASK


def settings(**changes: int | float | bool | str) -> LiveSettings:
    """Small settings for tests: 32 blocks, contexts up to 64 tokens."""
    small = {"max_batch": 4, "max_context": 64, "kv_blocks": 32, "token_budget": 32, "watermark": 0.0}
    return LiveSettings(**{**small, **changes})
