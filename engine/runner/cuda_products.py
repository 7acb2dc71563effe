"""The matrices of a forward pass on a card: products with them, and an embedding's rows, into buffers that are there.

Dense ones are multiplied by torch's libraries. Of 4 and 8 bits, a few rows go through the kernel that reads the codes;
many are multiplied by the weights made floats again, a slice of outputs at a time, in a buffer that all matrices share:
by then the product is bound by arithmetic. Which of the two it is follows from the number of rows alone, so a graph can
hold either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.kernels.quantised_matrix import GROUP, QuantisedMatrix, dequantised
from engine.runner.cuda_ops import Ops
from engine.runner.quantised_weights import QuantisedWeights

FEW_ROWS = 64  # up to here the kernel reads each weight once
# Numbers of the shared buffer: 64 MiB in 2 bytes. A larger one spares launches of a product that takes milliseconds.
SLICE = 32 << 20


class Product:
    """y = x·Wᵀ + b into a buffer; float32 in IEEE arithmetic (`engine.runner.cuda.exact_float32`)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        self._weight, self._transposed, self._bias = weight, weight.t(), bias
        self.bytes = weight.nbytes + (bias.nbytes if bias is not None else 0)

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        if self._bias is None:
            torch.mm(x, self._transposed, out=out)
        else:
            torch.addmm(self._bias, x, self._transposed, out=out)

    def rows(self, which: torch.Tensor) -> torch.Tensor:
        """(len(which), in) of the matrix."""
        return self._weight[which]

    def shares(self, weight: object) -> bool:
        return self._weight is weight


@dataclass(frozen=True)
class Shared:
    """What the products with quantised matrices of one model work in, one after the other."""

    workspace: Any  # of the kernel
    floats: torch.Tensor  # (n) of the activations' type: a slice of weights made floats


def shared(weights: QuantisedWeights, ops: Ops, device: torch.device) -> Shared:
    """The head isn't counted among what the kernel's sums must have room for: its outputs alone fill any card."""
    shapes = [(m.weights.shape[1], GROUP * len(m.weights)) for m in weights.matrices]
    numbers = max(max(inputs, min(SLICE // inputs, outputs) * inputs) for outputs, inputs in shapes)
    widest = max(outputs for outputs, _ in shapes[2:])
    workspace = ops.product_workspace(FEW_ROWS, widest, device)
    return Shared(workspace, torch.zeros(numbers, dtype=weights.dtype, device=device))


class QuantisedProduct:
    """The same of 4 or 8 bits. Float32 activations are multiplied in float32, either way."""

    def __init__(self, matrix: QuantisedMatrix, bias: torch.Tensor | None, ops: Ops, shared: Shared):
        self._matrix, self._bias, self._ops, self._shared = matrix, bias, ops, shared
        self.bytes = matrix.bytes + (bias.nbytes if bias is not None else 0)

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        m = self._matrix
        if len(x) <= FEW_ROWS:
            self._ops.quantised_product(x, m.weights, m.scales, m.offsets, out, self._shared.workspace)
        else:
            outputs, inputs = out.shape[1], x.shape[1]
            step = len(self._shared.floats) // inputs
            for first in range(0, outputs, step):
                count = min(step, outputs - first)
                weight = self._shared.floats[: count * inputs].view(count, inputs)
                self._ops.dequantise(m.weights, m.scales, m.offsets, weight, first)
                torch.mm(x, weight.t(), out=out[:, first : first + count])
        if self._bias is not None:
            out.add_(self._bias)

    def rows(self, which: torch.Tensor) -> torch.Tensor:
        return rows_of(self._matrix, which)

    def shares(self, weight: object) -> bool:
        return isinstance(weight, QuantisedEmbedding) and weight.matrix is self._matrix


class QuantisedEmbedding:
    """As a tensor (V, D) of floats, as far as a forward pass and its runner ask one."""

    def __init__(self, matrix: QuantisedMatrix):
        self.matrix = matrix
        self.nbytes = matrix.bytes

    def __getitem__(self, which: torch.Tensor) -> torch.Tensor:
        return rows_of(self.matrix, which)


def rows_of(matrix: QuantisedMatrix, which: torch.Tensor) -> torch.Tensor:
    """(len(which), in) float32."""
    offsets = None if matrix.offsets is None else matrix.offsets[:, which]
    return dequantised(matrix.weights[:, which], matrix.scales[:, which], offsets, torch.float32)
