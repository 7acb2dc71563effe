"""The KV pool's memory: a pair of tensors a layer, resized in place of being rebuilt.

Knows blocks as numbers only; who owns one is the block pool's business.
"""

from __future__ import annotations

from itertools import chain

import torch

from engine.model.architecture import ModelConfig
from engine.runner.batch import Ints

STAGED = 64 << 20  # bytes copied between two devices in one transfer: it takes as many on either side meanwhile


class KVPool:
    """`layers`: per layer keys and values, (kv_heads, blocks, block_size, d)."""

    def __init__(self, config: ModelConfig, block_size: int, dtype: torch.dtype, device: torch.device):
        self.block_size, self.dtype, self.device = block_size, dtype, device
        self.num_blocks = 0
        shape = (config.kv_heads, 0, block_size, config.head_dim)
        self.layers = [
            (torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device))
            for _ in range(config.layers)
        ]
        # 2 · L · H_kv · d_h · n · block_size
        self.bytes_per_block = (
            2 * config.layers * config.kv_heads * block_size * config.head_dim * dtype.itemsize
        )

    def resize(self, num_blocks: int) -> None:
        """Layer by layer, so that the old and the new pool never stand side by side whole.

        Shrinking always succeeds. When memory runs out while growing, the layers already grown are cut back to
        views of the old size: the pool is as it was, and the error goes on.
        """
        try:
            for index in range(len(self.layers)):
                if not self._copied(index, num_blocks):  # and the error, which held what it failed with, is gone
                    self._shrink(index, num_blocks)
        except (RuntimeError, MemoryError):
            self.layers = [(k[:, : self.num_blocks], v[:, : self.num_blocks]) for k, v in self.layers]
            raise
        self.num_blocks = num_blocks

    def _copied(self, index: int, num_blocks: int) -> bool:
        try:
            self.layers[index] = _resized(*self.layers[index], num_blocks)
        except (RuntimeError, MemoryError):
            if num_blocks > self.num_blocks:
                raise
            return False
        return True

    def _shrink(self, index: int, num_blocks: int) -> None:
        """One layer, where there is no room for even a smaller copy. What is kept of it goes by way of the host, so
        that a card gets memory back when it has none at all; on the host, or where that fails too, a part of the old
        serves as well."""
        kept = tuple(old[:, :num_blocks] for old in self.layers[index])
        self.layers[index] = kept  # type: ignore[assignment]
        if self.device.type == "cpu":
            return
        try:
            away = [part.to("cpu", copy=True) for part in kept]
        except (RuntimeError, MemoryError):
            return
        del kept
        self.layers[index] = away[0], away[1]  # the card's own are let go of
        back = tuple(part.to(self.device, copy=True) for part in away)
        self.layers[index] = back  # type: ignore[assignment]

    def rebuild(self, num_blocks: int, block_size: int) -> None:
        """Blocks of another size; what they held is of no use any more. Where memory runs out, as `resize`. A pool of
        as many tokens as before takes no memory for it."""
        before = self.block_size
        self._cut(1)
        try:
            if num_blocks * block_size != self.num_blocks:
                self.resize(num_blocks * block_size)
        except (RuntimeError, MemoryError):
            self._cut(before)
            raise
        self._cut(block_size)

    def _cut(self, block_size: int) -> None:
        """See the same memory as blocks of another size."""
        slots = self.num_blocks * self.block_size
        self.num_blocks = slots // block_size
        self.bytes_per_block = self.bytes_per_block // self.block_size * block_size
        self.block_size = block_size
        heads, _, _, width = self.layers[0][0].shape
        shape = heads, self.num_blocks, block_size, width
        self.layers = [(keys.view(shape), values.view(shape)) for keys, values in self.layers]

    @property
    def bytes(self) -> int:
        return self.num_blocks * self.bytes_per_block


def copy_blocks(source: KVPool, blocks: Ints, target: KVPool, places: Ints) -> None:
    """Contents of blocks `blocks` to blocks `places`, no two the same, of another pool of the same shape, or of the
    same pool: on one device one gather and scatter a tensor, between two a single transfer for all layers, or as many
    as `STAGED` allows."""
    at_once = len(blocks) if source.device == target.device else max(1, STAGED // source.bytes_per_block)
    pairs = list(zip(chain.from_iterable(source.layers), chain.from_iterable(target.layers), strict=True))
    for start in range(0, len(blocks), at_once):
        some = slice(start, start + at_once)
        here = torch.from_numpy(blocks[some]).to(source.device)
        there = torch.from_numpy(places[some]).to(target.device)
        taken = (one.index_select(1, here) for one, _ in pairs)
        if source.device != target.device:
            taken = iter(torch.stack(list(taken)).to(target.device))
        for (_, other), part in zip(pairs, taken, strict=True):
            other.index_copy_(1, there, part)


def _resized(keys: torch.Tensor, values: torch.Tensor, num_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies with `num_blocks` blocks, of equal strides. Zeros are written, so that every page is really there and
    counted."""
    kept = min(keys.shape[1], num_blocks)
    new = tuple(old.new_empty((old.shape[0], num_blocks, *old.shape[2:])) for old in (keys, values))
    for copy, old in zip(new, (keys, values), strict=True):
        copy[:, :kept] = old[:, :kept]
        copy[:, kept:] = 0
    return new
