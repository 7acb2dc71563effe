"""A checkpoint's weights in 4 or 8 bits on a card: the very numbers that the CPU's packed form has, laid out for the
card's product (engine/kernels/quantised_product.py). Norms stay float32, biases take the activations' type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine.cpu.packed_matrix import PackedMatrix
from engine.kernels.quantised_matrix import QuantisedMatrix, pack_matrix
from engine.model.packed_weights import PackedLayer, PackedWeights

# D hidden, H heads, K key/value heads, d head width, F intermediate, V vocabulary.


@dataclass(frozen=True)
class QuantisedLayer:
    """As `engine.model.weights.LayerWeights`."""

    attention_norm: torch.Tensor  # (D) float32
    qkv: QuantisedMatrix  # ((H + 2K)·d, D)
    qkv_bias: torch.Tensor | None
    qk_norm: torch.Tensor | None  # (H + K, d) float32
    output: QuantisedMatrix  # (D, H·d)
    output_bias: torch.Tensor | None
    mlp_norm: torch.Tensor  # (D) float32
    gate_up: QuantisedMatrix  # (2F, D)
    gate_up_bias: torch.Tensor | None
    down: QuantisedMatrix  # (D, F)
    down_bias: torch.Tensor | None


@dataclass(frozen=True)
class QuantisedWeights:
    """As `engine.model.weights.Weights`."""

    embedding: QuantisedMatrix  # (V, D)
    layers: list[QuantisedLayer]
    norm: torch.Tensor  # (D) float32
    head: QuantisedMatrix  # (V, D); the embedding itself when tied
    inverse_frequencies: torch.Tensor  # (d / 2) float32
    parameters: int
    form: str  # "int8", or the file's type of most weights in the layers: "Q4_1"
    dtype: torch.dtype  # of activations

    @property
    def matrices(self) -> Iterator[QuantisedMatrix]:
        """Embedding and head, then those of the layers."""
        yield self.embedding
        yield self.head
        for layer in self.layers:
            yield from (layer.qkv, layer.output, layer.gate_up, layer.down)

    @property
    def bytes(self) -> int:
        """A tied head once."""
        found = {id(m): m.bytes for m in self.matrices}
        tensors = [self.norm, *(t for layer in self.layers for t in vars(layer).values())]
        return sum(found.values()) + sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor))


def quantised_weights(
    packed: PackedWeights, dtype: torch.dtype, device: torch.device, consume: bool = False
) -> QuantisedWeights:
    """`dtype`: of activations. `consume`: nobody else needs `packed`, and its layers go as they are laid out anew."""

    def matrix(packed: PackedMatrix) -> QuantisedMatrix:
        return pack_matrix(packed).to(device)

    def floats(array, kept: torch.dtype = torch.float32) -> torch.Tensor | None:
        return None if array is None else torch.from_numpy(array).to(device, kept)

    def layer(of: PackedLayer) -> QuantisedLayer:
        made = {}
        for name in QuantisedLayer.__dataclass_fields__:
            part = getattr(of, name)
            if isinstance(part, PackedMatrix):
                made[name] = matrix(part)
            else:
                made[name] = floats(part, dtype if name.endswith("bias") else torch.float32)
        return QuantisedLayer(**made)

    layers = packed.layers if consume else list(packed.layers)
    layers.reverse()
    embedding = matrix(packed.embedding)
    return QuantisedWeights(
        embedding=embedding,
        layers=[layer(layers.pop()) for _ in range(len(layers))],
        norm=floats(packed.norm),
        head=embedding if packed.head is packed.embedding else matrix(packed.head),
        inverse_frequencies=floats(packed.inverse_frequencies),
        parameters=packed.parameters,
        form=packed.form,
        dtype=dtype,
    )
