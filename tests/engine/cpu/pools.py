"""Paged float16 pools of one layer for the tests of this folder, with NaN and infinities where nothing was written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def rows(self) -> int:
        """Heads of a token in qkv."""
        return self.heads + 2 * self.kv_heads


# fmt: off
SHAPES = [Shape(*s) for s in (
    (9, 3, 64), (8, 8, 16), (32, 8, 128), (14, 2, 64), (5, 1, 80), (4, 2, 96), (3, 3, 32), (2, 1, 48), (10, 1, 256),
)]
# fmt: on


@dataclass(frozen=True)
class Pools:
    keys: NDArray[np.float16]  # (K, blocks, d, block size)
    values: NDArray[np.float16]  # (K, blocks, block size, d)

    @classmethod
    def unwritten(cls, shape: Shape, num_blocks: int, block_size: int) -> Pools:
        def garbage(*dims: int) -> NDArray[np.float16]:
            return np.resize(np.array([np.nan, np.inf, -np.inf, 60000], np.float16), dims)

        k, d = shape.kv_heads, shape.head_dim
        return cls(garbage(k, num_blocks, d, block_size), garbage(k, num_blocks, block_size, d))

    @property
    def num_blocks(self) -> int:
        return self.keys.shape[1]

    @property
    def block_size(self) -> int:
        return self.keys.shape[3]

    def write(self, keys: NDArray[np.float16], values: NDArray[np.float16], table: NDArray[np.int64]) -> None:
        """keys, values (context, K, d)."""
        for position, (key, value) in enumerate(zip(keys, values, strict=True)):
            block, offset = table[position // self.block_size], position % self.block_size
            self.keys[:, block, :, offset] = key
            self.values[:, block, offset] = value


def address(array: NDArray) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data
