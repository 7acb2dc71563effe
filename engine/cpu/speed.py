"""What this machine can at most: bytes read from memory, and products of bytes, a second, by a team of threads.

The two ceilings of a roofline (Williams et al. 2009) for the products of this folder. Measured, since no data sheet
says what is left of a processor in a laptop or a share of a server. A team never waits for a thread that was put aside,
so a busy neighbour spoils fewer tries.
"""

from __future__ import annotations

import mmap
import time

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from engine.cpu.compiled import compile_for
from engine.cpu.packed_matrix import aligned
from engine.cpu.team import Program, Team, claim, next_chunk, over
from engine.cpu.vector import DOT_512, Emitter, i8, i32, i64, vector

TRIES = 9  # the best counts: all that disturbs makes it slower
_CHUNK = 1 << 18  # bytes a thread reads before it claims more
MEMORY = 1 << 29  # bytes: more than caches hold
_UNROLLED = 8  # loads of 64 bytes on their way
_SUMS = 12 if DOT_512 else 4  # independent sums, which a product's latency needs; with as many operands, in registers
_TURNS, _PIECES = 200_000, 16  # of dot products: about 10 ms in all


@intrinsic
def _read(context, start, size):
    """Load `size` bytes (a multiple of 512); something that depends on all of them."""

    def generate(context, builder, signature, arguments):
        e = Emitter(builder)
        start, size = arguments

        def body(index, seen):
            at = e.at(start, index, 64 * _UNROLLED)
            return [builder.xor(one, e.load(e.at(at, 64 * i), vector(i64, 8), 64)) for i, one in enumerate(seen)]

        seen = e.loop(builder.sdiv(size, e.whole(64 * _UNROLLED)), [e.constant(0, i64, 8)] * _UNROLLED, body)
        for one in seen[1:]:
            seen[0] = builder.xor(seen[0], one)
        return e.sum(seen[0])

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _multiply(context, operands, turns):
    """`turns` times _SUMS dot products of 64 bytes; something that depends on all of them."""

    def generate(context, builder, signature, arguments):
        e = Emitter(builder)
        operands, turns = arguments
        signed = [e.load(e.at(operands, 64 * i), vector(i8, 64), 64) for i in range(_SUMS)]

        def body(index, sums):
            unsigned = e.splat(builder.trunc(index, i8), 64)
            return [e.dot_bytes(total, unsigned, one) for total, one in zip(sums, signed, strict=True)]

        sums = e.loop(turns, [e.constant(0, i32)] * _SUMS, body)
        for one in sums[1:]:
            sums[0] = builder.add(sums[0], one)
        return builder.sext(e.sum(sums[0]), ir.IntType(64))

    return types.int64(types.int64, types.int64), generate


@njit(nogil=True)
def _read_all(rank, step, line, start, size, chunks, seen):
    chunk = claim(line, step, chunks)
    while chunk >= 0:
        seen[rank] += _read(start + chunk * size, size)
        chunk = next_chunk(line, step, chunks)
    over(line, step, chunks)


@njit(nogil=True)
def _multiply_all(rank, step, line, operands, turns, chunks, seen):
    chunk = claim(line, step, chunks)
    while chunk >= 0:
        seen[rank] += _multiply(operands, turns)
        chunk = next_chunk(line, step, chunks)
    over(line, step, chunks)


def read_bandwidth(threads: int, size: int = MEMORY, tries: int = TRIES) -> float:
    """Bytes a second, of `size` bytes that are read again and again: what caches hold of them counts."""
    chunks = max(1, size // _CHUNK)
    # not of numpy: it asks for huge pages, and the system can take 4 ms to find each
    memory = np.frombuffer(mmap.mmap(-1, chunks * _CHUNK), np.uint8)
    memory.fill(1)  # memory that nobody wrote to isn't there
    return memory.nbytes / _fastest(_read_all, threads, memory, _CHUNK, chunks, tries)


def byte_products(threads: int, turns: int = _TURNS, tries: int = TRIES) -> float:
    """Products a second, each added to a sum."""
    operands = aligned((64 * _SUMS,), np.uint8)
    operands[:] = np.arange(len(operands)) % 251
    chunks = _PIECES * threads
    return 64 * _SUMS * turns * chunks / _fastest(_multiply_all, threads, operands, turns, chunks, tries)


def _fastest(program: Program, threads: int, memory: NDArray[np.uint8], size: int, chunks: int, tries: int) -> float:
    """Seconds of a run."""
    team = Team(threads, 1)
    arguments = (team.lines.ctypes.data, memory.ctypes.data, size, chunks, np.zeros(threads, np.int64))
    compile_for(program, 0, 0, *arguments)
    found = []
    for _ in range(tries):
        started = time.perf_counter()
        team.run(program, *arguments)
        found.append(time.perf_counter() - started)
    team.close()
    return min(found)
