"""Attention of the compiled CPU path on one core, a layer's worth, against 4 · d operations a key and query head.

    python -m tests.bench.cpu_attention [--heads 9 --kv-heads 3 --head-dim 64 --block-size 16] [--seconds 0.5]

Prints a line for each load: best time of a layer, GFLOP/s, and the GB/s at which keys and values were read (each
once, however often the caches gave them again). Needs no model; numpy and numba are all it imports.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from numba import njit

from engine.cpu.attention import attend, scratch_floats
from engine.cpu.packed_matrix import aligned

_DECODE = ((32, 160), (1, 2000))  # sequences, context
_PREFILL, _START = 64, 768  # tokens, position of the first
_TILES = (2, 4, 8)  # tokens at once


@njit(nogil=True)
def layer(tokens, at_once, start, apart, q, out, heads, kv_heads, d, tables, block_size, keys, values, blocks, scratch):
    """`apart` table entries from a token's table to the next one's: 0 where all are of one sequence."""
    for token in range(0, tokens, at_once):
        for kv_head in range(kv_heads):
            position = start if apart else start + token
            attend(
                token, at_once, position, kv_head, q, out, heads, kv_heads, d, tables + token * apart * 8, block_size,
                keys, values, blocks, scratch,
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("heads", 9), ("kv-heads", 3), ("head-dim", 64), ("block-size", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each load")
    asked = parser.parse_args()
    shape = asked.heads, asked.kv_heads, asked.head_dim, asked.block_size
    for rows, context in _DECODE:
        run = prepare(shape, tokens=rows, at_once=1, start=context - 1, sequences=rows)
        report(f"decode {rows} × {context}", best(run, asked.seconds), shape, rows * context, rows * context)
    seen = sum(_START + token + 1 for token in range(_PREFILL))
    for at_once in _TILES:
        run = prepare(shape, tokens=_PREFILL, at_once=at_once, start=_START, sequences=1)
        read = sum(_START + token + at_once for token in range(0, _PREFILL, at_once))
        report(f"prefill {_PREFILL} from {_START}, {at_once} at once", best(run, asked.seconds), shape, seen, read)


def prepare(
    shape: tuple[int, int, int, int], tokens: int, at_once: int, start: int, sequences: int
) -> Callable[[], None]:
    heads, kv_heads, d, block_size = shape
    context = start + (1 if sequences > 1 else tokens)
    each = -(-context // block_size)  # blocks of a sequence
    rng = np.random.default_rng(0)
    pools = [aligned((kv_heads, each * sequences, d, block_size), np.float16) for _ in range(2)]
    qkv, out = aligned((tokens, heads + 2 * kv_heads, d), np.float32), aligned((tokens, heads, d), np.float32)
    for array in (*pools, qkv):
        array[...] = rng.normal(size=array.shape)
    tables = rng.permutation(each * sequences)
    scratch = aligned((int(scratch_floats(at_once, heads // kv_heads, context)),), np.float32)
    q, to, table, keys, values, room = (a.ctypes.data for a in (qkv, out, tables, *pools, scratch))
    held = (qkv, out, tables, pools, scratch)  # as long as the function lives

    def run(_=held) -> None:
        layer(
            tokens, at_once, start, each if sequences > 1 else 0, q, to, *shape[:3], table, block_size, keys, values,
            each * sequences, room,
        )  # fmt: skip

    return run


def best(run: Callable[[], None], seconds: float) -> float:
    run()  # compiles
    least, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        run()
        least = min(least, time.perf_counter() - began)
    return least


def report(load: str, seconds: float, shape: tuple[int, int, int, int], seen: int, read: int) -> None:
    """seen: keys that queries attended to; read: keys as often as a call read them. Both of one head."""
    heads, kv_heads, d, _ = shape
    flops, moved = 4 * d * heads * seen, 2 * 2 * d * kv_heads * read
    print(f"{load}: {seconds * 1e3:.3f} ms, {flops / seconds / 1e9:.0f} GFLOP/s, {moved / seconds / 1e9:.1f} GB/s")


if __name__ == "__main__":
    main()
