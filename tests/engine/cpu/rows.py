"""Rows to quantise and matrices to multiply, as the compiled program has them, for the tests of this folder."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.cpu import product
from engine.cpu.packed_matrix import GROUP, PackedMatrix, aligned, halve, pack, quantise
from engine.cpu.product import MATRIX, WORDS
from engine.cpu.quantise import normalise_row, quantise_row, swiglu_row
from tests.engine.cpu.pools import address

Quantised = tuple[NDArray[np.int8], NDArray]  # codes (rows, K), WORDS (rows, K / 32)


@njit(nogil=True)
def _plain(plain, columns, x, codes, words):
    quantise_row(plain, columns, x, codes, words)


@njit(nogil=True)
def _normalised(plain, columns, x, weight, epsilon, codes, words):
    normalise_row(plain, columns, x, weight, epsilon, codes, words)


@njit(nogil=True)
def _gated(plain, columns, gate, up, codes, words):
    swiglu_row(plain, columns, gate, up, codes, words)


def room(rows: int, columns: int, plain: bool = False) -> Quantised:
    codes = aligned((rows, columns), np.float32 if plain else np.int8)
    words = aligned((rows * columns // GROUP * WORDS.itemsize,), np.uint8).view(WORDS).reshape(rows, columns // GROUP)
    words["unused"] = 0
    return codes, words


def quantised(x: NDArray[np.float32], plain: bool = False) -> Quantised:
    """`plain`: the rows as float32, and WORDS that nobody wrote; as in the two below."""
    codes, words = room(*x.shape, plain)
    for row in range(len(x)):
        _plain(int(plain), x.shape[1], address(x[row]), address(codes[row]), address(words[row]))
    return codes, words


def normalised(
    x: NDArray[np.float32], weight: NDArray[np.float32], epsilon: float, plain: bool = False
) -> Quantised:
    codes, words = room(*x.shape, plain)
    for row in range(len(x)):
        at = address(codes[row]), address(words[row])
        _normalised(int(plain), x.shape[1], address(x[row]), address(weight), np.float32(epsilon), *at)
    return codes, words


def gated(gate: NDArray[np.float32], up: NDArray[np.float32], plain: bool = False) -> Quantised:
    codes, words = room(*gate.shape, plain)
    for row in range(len(gate)):
        at = address(codes[row]), address(words[row])
        _gated(int(plain), gate.shape[1], address(gate[row]), address(up[row]), *at)
    return codes, words


def matrix(bits: int, rows: int, columns: int, seed: int = 0) -> PackedMatrix:
    """Random weights; in 4 bits a minimum that isn't the middle."""
    rng = np.random.default_rng(seed)
    if bits == 16:
        return halve(rng.normal(size=(rows, columns)).astype(np.float32))
    if bits == 8:
        return quantise(rng.normal(size=(rows, columns)).astype(np.float32))
    scale = rng.uniform(0.01, 0.2, (rows, columns // GROUP)).astype(np.float16)
    minimum = (-scale * rng.uniform(5, 10, scale.shape)).astype(np.float16)
    return pack(rng.integers(0, 16, (rows, columns), np.uint8), scale, minimum)


def multiply(
    matrix: PackedMatrix,
    quantised: Quantised,
    bias: NDArray[np.float32] | None = None,
    onto: NDArray[np.float32] | None = None,
    tiles: tuple[int, int] | None = None,
) -> NDArray[np.float32]:
    """(rows, N padded). A bias (N padded) for all rows, or numbers (rows, N padded) to add to; a part of the tiles."""
    codes, words = quantised
    rows, stride = len(codes), 4 * matrix.padded_rows
    if onto is None:
        start = np.zeros(matrix.padded_rows, np.float32) if bias is None else bias
        out, start_stride = np.full((rows, matrix.padded_rows), 7, np.float32), 0
    else:
        start = out = onto.copy()
        start_stride = stride
    record = np.array([product.describe(matrix, start)], MATRIX)
    first, last = tiles or (0, len(matrix.codes))
    product.product(
        first, last, rows, record[0], address(codes), address(words), address(start), start_stride, address(out), stride
    )
    return out
