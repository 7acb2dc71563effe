"""A weight matrix in 4, 8 or 16 bits, laid out for the vector products: what it holds, and how it is made.

A row (one output) is cut into groups of 32 inputs. Within a group every weight is d · code + m, code an unsigned
number of 4 or 8 bits, d and m float16 of the group: GGUF's Q4_0, Q4_1 and Q8_0 are this already, number for number.
In 8 bits m is always −128 · d and isn't stored.

A tile is 16 outputs. For one group of a tile, 8 lines of 64 bytes each hold 4 following inputs of the 16 outputs:
line q, output n, input j at byte 4 n + j is input 4 q + j. In 4 bits two lines share their bytes, line q the low and
line q + 4 the high half. So one vector load brings what one instruction multiplies, and a product reads a matrix
from its first byte to its last.

In 16 bits the weights are bfloat16, the upper halves of float32, without scales: line i of a group holds input i of the
16 outputs. They are multiplied in float32.

Knows nothing of models and files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

GROUP = 32  # inputs that share a scale
TILE = 16  # outputs of a tile
OFFSET = 128  # of an 8-bit code: code 128 is the weight 0
_LINES = GROUP // 4


@dataclass(frozen=True)
class PackedMatrix:
    bits: int  # 4, 8 or 16
    rows: int  # outputs; tiles hold up to 15 more, all 0
    columns: int  # inputs, a multiple of 32
    codes: NDArray[np.uint8]  # (tiles, groups, 64 · bits), on a 64-byte border
    scales: NDArray[np.float16]  # 4 bits: (tiles, groups, 2, 16) d then m; 8: (tiles, groups, 1, 16) d; 16: none

    @property
    def bytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    @property
    def padded_rows(self) -> int:
        return len(self.codes) * TILE


def pack(codes: NDArray[np.uint8], scale: NDArray[np.float16], minimum: NDArray[np.float16] | None) -> PackedMatrix:
    """codes (rows, columns) below 16 with `minimum`, below 256 without; scale, minimum (rows, groups).

    Raises ValueError if a row can't be cut into groups of 32.
    """
    rows, columns = codes.shape
    if columns % GROUP:
        raise ValueError(f"a row of {columns} numbers can't be cut into groups of {GROUP}")
    bits, groups, tiles = (8 if minimum is None else 4), columns // GROUP, -(-rows // TILE)
    if rows % TILE:
        codes = np.concatenate((codes, np.zeros((tiles * TILE - rows, columns), np.uint8)))
    lines = codes.reshape(tiles, TILE, groups, _LINES, 4).transpose(0, 2, 3, 1, 4)
    lines = lines.reshape(tiles, groups, _LINES, 64)
    if bits == 4:
        half = _LINES // 2
        lines = lines[:, :, :half] | (lines[:, :, half:] << 4)
    packed = aligned((tiles, groups, 64 * bits), np.uint8)
    packed[...] = lines.reshape(packed.shape)
    scales = aligned((tiles, groups, 2 if bits == 4 else 1, TILE), np.float16)
    for at, values in enumerate((scale, minimum) if bits == 4 else (scale,)):
        whole = np.zeros((tiles * TILE, groups), np.float16)
        whole[:rows] = values
        scales[:, :, at] = whole.reshape(tiles, TILE, groups).transpose(0, 2, 1)
    return PackedMatrix(bits, rows, columns, packed, scales)


def quantise(weight: NDArray[np.float32]) -> PackedMatrix:
    """(rows, columns) in 8 bits: the scale of a group is its largest absolute weight ÷ 127."""
    rows, columns = weight.shape
    if columns % GROUP:
        raise ValueError(f"a row of {columns} numbers can't be cut into groups of {GROUP}")
    grouped = weight.reshape(rows, -1, GROUP)
    scale = (np.abs(grouped).max(axis=2) / 127).astype(np.float16)
    inverse = np.divide(1, scale, dtype=np.float32, out=np.zeros(scale.shape, np.float32), where=scale > 0)
    signed = np.clip(np.rint(grouped * inverse[:, :, None]), -127, 127)
    return pack((signed + OFFSET).astype(np.uint8).reshape(rows, columns), scale, None)


def quantise_small(weight: NDArray[np.float32]) -> PackedMatrix:
    """(rows, columns) in 4 bits: the codes of a group go from its least weight to its largest, in 15 steps."""
    rows, columns = weight.shape
    if columns % GROUP:
        raise ValueError(f"a row of {columns} numbers can't be cut into groups of {GROUP}")
    grouped = weight.reshape(rows, -1, GROUP)
    minimum = grouped.min(axis=2).astype(np.float16)
    scale = ((grouped.max(axis=2) - minimum) / 15).astype(np.float16)
    inverse = np.divide(1, scale, dtype=np.float32, out=np.zeros(scale.shape, np.float32), where=scale > 0)
    codes = np.clip(np.rint((grouped - minimum[:, :, None].astype(np.float32)) * inverse[:, :, None]), 0, 15)
    return pack(codes.astype(np.uint8).reshape(rows, columns), scale, minimum)


def halve(weight: NDArray[np.float32]) -> PackedMatrix:
    """(rows, columns) in bfloat16, to the nearest, halves to even. NaN stays NaN."""
    rows, columns = weight.shape
    if columns % GROUP:
        raise ValueError(f"a row of {columns} numbers can't be cut into groups of {GROUP}")
    tiles, groups = -(-rows // TILE), columns // GROUP
    bits = np.ascontiguousarray(weight, np.float32).view(np.uint32)
    upper = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    upper[np.isnan(weight)] = 0x7FC0
    if rows % TILE:
        upper = np.concatenate((upper, np.zeros((tiles * TILE - rows, columns), np.uint16)))
    packed = aligned((tiles, groups, GROUP, TILE), np.uint16)
    packed[...] = upper.reshape(tiles, TILE, groups, GROUP).transpose(0, 2, 3, 1)
    codes = packed.view(np.uint8).reshape(tiles, groups, 64 * 16)
    return PackedMatrix(16, rows, columns, codes, np.empty((tiles, groups, 0, TILE), np.float16))


def dequantise(matrix: PackedMatrix) -> NDArray[np.float32]:
    """(rows, columns), the weights that the codes stand for; the reference of every product."""
    tiles, groups, _ = matrix.codes.shape
    if matrix.bits == 16:
        upper = matrix.codes.view(np.uint16).reshape(tiles, groups, GROUP, TILE).transpose(0, 3, 1, 2)
        whole = (upper.astype(np.uint32) << 16).view(np.float32)
        return whole.reshape(tiles * TILE, matrix.columns)[: matrix.rows]
    lines = matrix.codes.reshape(tiles, groups, -1, 64)
    if matrix.bits == 4:
        lines = np.concatenate((lines & 15, lines >> 4), axis=2)
    codes = lines.reshape(tiles, groups, _LINES, TILE, 4).transpose(0, 3, 1, 2, 4)  # tile, output, group, line, input
    codes = codes.reshape(tiles * TILE, groups, GROUP).astype(np.float32)
    scale = matrix.scales.transpose(0, 3, 1, 2).reshape(tiles * TILE, groups, -1).astype(np.float32)
    weight = codes * scale[:, :, :1] + scale[:, :, 1:] if matrix.bits == 4 else (codes - OFFSET) * scale
    return weight.reshape(tiles * TILE, -1)[: matrix.rows]


def some_rows(matrix: PackedMatrix, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """(len(rows), columns), dequantised."""
    tiles, places = np.unique(rows // TILE, return_inverse=True)
    part = PackedMatrix(matrix.bits, len(tiles) * TILE, matrix.columns, matrix.codes[tiles], matrix.scales[tiles])
    return dequantise(part)[places * TILE + rows % TILE]


def aligned(shape: tuple[int, ...], kind: type) -> NDArray:
    """An array that begins on a border of 64 bytes, not initialised."""
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(kind).reshape(shape)
