"""A matrix in 4 or 8 bits as the GPU's product reads it (engine/kernels/quantised_product.py has the layout), made of
the packed matrices of the CPU, of a GGUF's codes or of floats; and taken apart again. No kernel is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from engine.cpu.packed_matrix import GROUP, OFFSET, TILE, PackedMatrix, quantise, quantise_small


@dataclass(frozen=True)
class QuantisedMatrix:
    weights: torch.Tensor  # (in / 32, out, 16 or 32) uint8
    scales: torch.Tensor  # (in / 32, out) float16
    offsets: torch.Tensor | None  # (in / 32, out) float16; None: 8 bits

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for part in (self.weights, self.scales, self.offsets) if part is not None)

    def to(self, device: torch.device | str) -> QuantisedMatrix:
        offsets = None if self.offsets is None else self.offsets.to(device)
        return QuantisedMatrix(self.weights.to(device), self.scales.to(device), offsets)


def pack_codes(
    codes: NDArray[np.uint8], scale: NDArray[np.float16], minimum: NDArray[np.float16] | None
) -> QuantisedMatrix:
    """codes (out, in), below 16 with `minimum`, below 256 without; scale, minimum (out, in / 32): what
    engine/model/gguf_blocks.py takes a file's blocks apart into."""
    outputs, inputs = codes.shape
    if inputs % GROUP:
        raise ValueError(f"a row of {inputs} numbers can't be cut into groups of {GROUP}")
    grouped = codes.reshape(outputs, -1, GROUP).transpose(1, 0, 2)  # (groups, out, 32)
    if minimum is not None:
        grouped = grouped[:, :, 0::2] | (grouped[:, :, 1::2] << 4)

    def turned(factors: NDArray[np.float16]) -> torch.Tensor:
        return torch.from_numpy(np.array(factors.T, np.float16, order="C"))

    weights = torch.from_numpy(np.array(grouped, np.uint8, order="C"))
    return QuantisedMatrix(weights, turned(scale), None if minimum is None else turned(minimum))


def pack_matrix(matrix: PackedMatrix) -> QuantisedMatrix:
    """The same numbers as the CPU's product reads, in the other order. Only of 4 and 8 bits."""
    if matrix.bits not in (4, 8):
        raise ValueError(f"a matrix of {matrix.bits} bits has no codes")
    tiles, groups, _ = matrix.codes.shape
    lines = matrix.codes.reshape(tiles, groups, -1, 64)
    if matrix.bits == 4:
        lines = np.concatenate((lines & 15, lines >> 4), axis=2)
    codes = lines.reshape(tiles, groups, GROUP // 4, TILE, 4).transpose(0, 3, 1, 2, 4)
    codes = codes.reshape(tiles * TILE, -1)[: matrix.rows]
    factors = matrix.scales.transpose(0, 3, 1, 2).reshape(tiles * TILE, groups, -1)[: matrix.rows]
    return pack_codes(codes, factors[:, :, 0], factors[:, :, 1] if matrix.bits == 4 else None)


def pack_floats(weight: torch.Tensor, bits: Literal[4, 8]) -> QuantisedMatrix:
    """weight (out, in), rounded as the CPU rounds it to so many bits."""
    floats = weight.detach().float().cpu().numpy()
    return pack_matrix(quantise_small(floats) if bits == 4 else quantise(floats))


def dequantised(
    weights: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """(out, in) of `dtype`: for products of many rows, and the reference of those of few."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if offsets is None:
        numbers = (weights.to(wide) - OFFSET) * scales.to(wide)[:, :, None]
    else:
        codes = torch.stack((weights & 15, weights >> 4), dim=3).flatten(2).to(wide)
        numbers = codes * scales.to(wide)[:, :, None] + offsets.to(wide)[:, :, None]
    return numbers.transpose(0, 1).flatten(1).to(dtype)
