"""Rotating queries and keys and storing keys and values, against float64 numpy."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.cpu.rope import rotate_and_store
from tests.engine.cpu.pools import SHAPES, Pools, Shape, address

_TOKENS, _EPS = 5, 1e-6


def _rotated(x: NDArray, rotation: NDArray) -> NDArray[np.float64]:
    """x (T, heads, d), rotation (T, 2, d / 2)."""
    cos, sin = (rotation[:, None, part].astype(np.float64) for part in (0, 1))
    x1, x2 = np.split(x.astype(np.float64), 2, axis=-1)
    return np.concatenate((x1 * cos - x2 * sin, x2 * cos + x1 * sin), axis=-1)


class Batch:
    def __init__(self, shape: Shape, block_size: int, normed: bool = False):
        rng = np.random.default_rng(shape.head_dim + block_size)
        self.shape, d = shape, shape.head_dim
        self.qkv = rng.normal(size=(_TOKENS, shape.rows, d)).astype(np.float32)
        angles = rng.uniform(0, 700, size=(_TOKENS, d // 2))
        self.rotation = np.stack((np.cos(angles), np.sin(angles)), axis=1).astype(np.float32)
        self.norm = rng.normal(1, 0.3, size=(shape.heads + shape.kv_heads, d)).astype(np.float32) if normed else None
        self.pools = Pools.unwritten(shape, 4, block_size)
        self.slots = rng.permutation(4 * block_size)[:_TOKENS].astype(np.int64)

    def run(self, first: int = 0, last: int = _TOKENS) -> None:
        shape, pools = self.shape, self.pools
        norm = 0 if self.norm is None else address(self.norm)
        rotate_and_store(
            first, last, address(self.qkv), address(self.rotation), norm, _EPS, shape.heads, shape.kv_heads,
            shape.head_dim, address(self.slots), pools.block_size, address(pools.keys), address(pools.values),
            pools.num_blocks,
        )  # fmt: skip

    def stored(self) -> tuple[NDArray, NDArray]:
        """Keys and values (T, K, d) at the tokens' slots."""
        block, offset = np.divmod(self.slots, self.pools.block_size)
        return self.pools.keys[:, block, :, offset], self.pools.values[:, block, offset].swapaxes(0, 1)

    def reference(self) -> tuple[NDArray, NDArray, NDArray]:
        """Queries (T, H, d), keys and values (T, K, d)."""
        turned = self.qkv[:, : self.shape.heads + self.shape.kv_heads].astype(np.float64)
        if self.norm is not None:
            turned = turned / np.sqrt((turned**2).mean(axis=-1, keepdims=True) + _EPS) * self.norm
        turned = _rotated(turned, self.rotation)
        queries, keys = np.split(turned, [self.shape.heads], axis=1)
        return queries * self.shape.head_dim**-0.5, keys, self.qkv[:, -self.shape.kv_heads :]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("block_size", (8, 16, 128))
@pytest.mark.parametrize("normed", (False, True))
def test_is_the_formula(shape: Shape, block_size: int, normed: bool) -> None:
    batch = Batch(shape, block_size, normed)
    queries, keys, values = batch.reference()
    batch.run()
    np.testing.assert_allclose(batch.qkv[:, : shape.heads], queries, rtol=1e-5, atol=1e-6)
    stored_keys, stored_values = batch.stored()
    np.testing.assert_allclose(stored_keys, keys, rtol=6e-4, atol=1e-6)  # half a unit of float16's last place
    np.testing.assert_array_equal(stored_values, values.astype(np.float16))


def test_writes_the_tokens_slots_and_no_other() -> None:
    batch = Batch(Shape(9, 3, 64), 16)
    untouched = Pools.unwritten(batch.shape, 4, 16)
    keys, values = (pool.copy() for pool in (batch.pools.keys, batch.pools.values))
    batch.run()
    block, offset = np.divmod(batch.slots, 16)
    batch.pools.keys[:, block, :, offset] = untouched.keys[:, block, :, offset]
    batch.pools.values[:, block, offset] = untouched.values[:, block, offset]
    np.testing.assert_array_equal(batch.pools.keys, keys)
    np.testing.assert_array_equal(batch.pools.values, values)


def test_the_same_bits_however_tokens_are_cut() -> None:
    whole, parts = Batch(Shape(4, 2, 96), 32, normed=True), Batch(Shape(4, 2, 96), 32, normed=True)
    whole.run()
    for first, last in ((0, 1), (1, 4), (4, 5), (5, 5)):
        parts.run(first, last)
    for one, other in ((whole.qkv, parts.qkv), (whole.pools.keys, parts.pools.keys)):
        assert one.tobytes() == other.tobytes()
    assert whole.pools.values.tobytes() == parts.pools.values.tobytes()


def test_what_float16_cannot_hold_is_stored_as_its_largest() -> None:
    batch = Batch(Shape(8, 8, 16), 16)
    batch.qkv[:, -8:] = 1e6
    batch.qkv[:, 8:16] = -1e8
    batch.rotation[:, 0], batch.rotation[:, 1] = 1, 0
    batch.run()
    keys, values = batch.stored()
    assert (keys == np.float16(-65504)).all() and (values == np.float16(65504)).all()
