"""The KV pool's memory: a pair of tensors a layer, resized in place of being rebuilt.

Knows blocks as numbers only; who owns one is the block pool's business.
"""

from __future__ import annotations

import torch

from engine.model.architecture import ModelConfig


class KVPool:
    """`layers`: per layer keys and values, (kv_heads, blocks, block_size, d)."""

    def __init__(self, config: ModelConfig, block_size: int, dtype: torch.dtype, device: torch.device):
        self.block_size = block_size
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
            for index, (keys, values) in enumerate(self.layers):
                self.layers[index] = _resized(keys, values, num_blocks)
        except (RuntimeError, MemoryError):
            self.layers = [(k[:, : self.num_blocks], v[:, : self.num_blocks]) for k, v in self.layers]
            raise
        self.num_blocks = num_blocks

    @property
    def bytes(self) -> int:
        return self.num_blocks * self.bytes_per_block


def _resized(keys: torch.Tensor, values: torch.Tensor, num_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies with `num_blocks` blocks, of equal strides. Zeros are written, so that every page is really there and
    counted."""
    kept = min(keys.shape[1], num_blocks)
    try:
        new = tuple(old.new_empty((old.shape[0], num_blocks, *old.shape[2:])) for old in (keys, values))
    except (RuntimeError, MemoryError):
        if kept < num_blocks:
            raise
        return keys[:, :kept], values[:, :kept]  # no room for even smaller copies: a part of the old serves as well
    for copy, old in zip(new, (keys, values), strict=True):
        copy[:, :kept] = old[:, :kept]
        copy[:, kept:] = 0
    return new
