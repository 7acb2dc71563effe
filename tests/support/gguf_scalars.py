"""The quantised forms of GGUF, decoded number by number as the format defines them: slow, plain, independent."""

from __future__ import annotations

import struct

import numpy as np
from gguf import GGMLQuantizationType

T = GGMLQuantizationType
BLOCK = {T.Q8_0: (32, 34), T.Q4_0: (32, 18), T.Q4_1: (32, 20), T.Q4_K: (256, 144), T.Q6_K: (256, 210)}


def decode(data: np.ndarray, kind: T) -> np.ndarray:
    """Bytes (rows, row bytes) → float64 (rows, numbers)."""
    _, size = BLOCK[kind]
    one = {T.Q8_0: _q8_0, T.Q4_0: _q4_0, T.Q4_1: _q4_1, T.Q4_K: _q4_k, T.Q6_K: _q6_k}[kind]
    return np.array([
        [x for start in range(0, len(row), size) for x in one(bytes(row[start : start + size]))] for row in data
    ])


def _half(data: bytes, at: int) -> float:
    return struct.unpack_from("<e", data, at)[0]


def _q8_0(b: bytes) -> list[float]:
    return [_half(b, 0) * q for q in struct.unpack_from("<32b", b, 2)]


def _nibbles(b: bytes) -> list[int]:
    """16 bytes → 32 numbers: all low halves, then all high halves."""
    return [x & 15 for x in b] + [x >> 4 for x in b]


def _q4_0(b: bytes) -> list[float]:
    return [_half(b, 0) * (q - 8) for q in _nibbles(b[2:])]


def _q4_1(b: bytes) -> list[float]:
    return [_half(b, 0) * q + _half(b, 2) for q in _nibbles(b[4:])]


def _q4_k(b: bytes) -> list[float]:
    """Half d, half dmin, 12 bytes with eight 6-bit scales and eight 6-bit minima, 128 bytes of halves."""
    d, dmin, packed, quants = _half(b, 0), _half(b, 2), b[4:16], b[16:]
    out = []
    for group in range(8):  # of 32 numbers
        if group < 4:
            scale, least = packed[group] & 63, packed[group + 4] & 63
        else:
            scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6) << 4
            least = (packed[group + 4] >> 4) | (packed[group] >> 6) << 4
        pair = quants[group // 2 * 32 : group // 2 * 32 + 32]  # two groups share 32 bytes
        out += [d * scale * ((x >> 4) if group % 2 else (x & 15)) - dmin * least for x in pair]
    return out


def _q6_k(b: bytes) -> list[float]:
    """128 bytes of low 4 bits, 64 bytes of high 2 bits, 16 signed scales, half d."""
    low, high, scales, d = b[:128], b[128:192], struct.unpack_from("<16b", b, 192), _half(b, 208)
    out = [0.0] * 256
    for i in range(256):
        half, within = divmod(i, 128)
        quarter, lane = divmod(within, 32)
        nibble = low[half * 64 + quarter % 2 * 32 + lane]
        nibble = nibble >> 4 if quarter >= 2 else nibble & 15
        top = high[half * 32 + lane] >> 2 * quarter & 3
        out[i] = d * scales[i // 16] * ((nibble | top << 4) - 32)
    return out
