"""What every forward pass of a decoder holds, however it computes: embedding, layers, final norm, head.

Knows their bytes, and how to make a model of the first few layers over the same weights; refuses to know of a pass.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Protocol, Self

import torch

from engine.model.architecture import ModelConfig


class Head(Protocol):
    @property
    def bytes(self) -> int: ...
    def shares(self, weight: torch.Tensor) -> bool: ...


class Stack:
    """`bytes`: weights held. `wanted`: (N, hidden) that the last logits were made from, before the final norm."""

    config: ModelConfig
    embedding: torch.Tensor
    layers: list  # each knows its bytes
    norm: torch.Tensor
    head: Head
    wanted: torch.Tensor

    def first(self, layers: int) -> Self:
        """Of the same weights, without the layers behind the first `layers`."""
        few = copy(self)
        few.config, few.layers = replace(self.config, layers=layers), self.layers[:layers]
        few.wanted = self.wanted[:0]
        return few

    @property
    def bytes(self) -> int:
        shared = self.head.shares(self.embedding)
        return self.bytes_read + (0 if shared else self.embedding.nbytes)

    @property
    def bytes_read(self) -> int:
        """By every step: of an embedding that isn't the head as well it takes some rows."""
        return self.norm.nbytes + self.head.bytes + sum(layer.bytes for layer in self.layers)
