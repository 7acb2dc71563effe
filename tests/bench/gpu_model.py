"""A model of Llama 3 8B's shape with random weights, in 16 bits and in 4; tiny in a dry run."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.bench.gpu_timer import Bench


def random_matrix(bench: Bench, inputs: int, outputs: int, bits: int) -> tuple[torch.Tensor, ...]:
    """Random codes, with a scale and, of 4 bits, an offset for each group of 32 inputs: the layout of
    engine/kernels/quantised_product.py. 8 bits have no offsets (None)."""
    groups = inputs // 32
    codes = torch.randint(0, 256, (groups, outputs, 4 * bits), dtype=torch.uint8, device=bench.device)
    scales = bench.random(groups, outputs, dtype=torch.float16, scale=0.01 if bits == 4 else 0.001)
    return codes, scales, -8 * scales if bits == 4 else None


def shape(dry: bool):
    from engine.model.architecture import ModelConfig

    sizes = (2, 64, 96, 4, 2, 16, 100, 128) if dry else (32, 4096, 14336, 32, 8, 128, 128_256, 8192)
    layers, hidden, between, heads, kv_heads, head_dim, vocabulary, positions = sizes
    return ModelConfig(
        architecture="llama", layers=layers, hidden=hidden, intermediate=between, heads=heads, kv_heads=kv_heads,
        head_dim=head_dim, vocabulary=vocabulary, max_positions=positions, rms_eps=1e-5, rope_theta=500_000.0,
        rope_scaling=None, tied=False, qkv_bias=False, output_bias=False, mlp_bias=False, qk_norm=False,
    )  # fmt: skip


def laid_out(c, device: torch.device, layer: Callable, matrix: Callable) -> tuple:
    """Embedding, layers, norm, head and rotary frequencies of a model of shape `c`; `layer`: what holds the weights of
    one, `matrix`: makes one of so many outputs and inputs."""

    def ones() -> torch.Tensor:
        return torch.ones(c.hidden, device=device)

    layers = [
        layer(
            attention_norm=ones(), qkv=matrix((c.heads + 2 * c.kv_heads) * c.head_dim, c.hidden), qkv_bias=None,
            qk_norm=None, output=matrix(c.hidden, c.heads * c.head_dim), output_bias=None, mlp_norm=ones(),
            gate_up=matrix(2 * c.intermediate, c.hidden), gate_up_bias=None, down=matrix(c.hidden, c.intermediate),
            down_bias=None,
        )
        for _ in range(c.layers)
    ]  # fmt: skip
    half = c.head_dim // 2
    frequencies = c.rope_theta ** (-torch.arange(half, device=device) / half)
    return matrix(c.vocabulary, c.hidden), layers, ones(), matrix(c.vocabulary, c.hidden), frequencies


def dense_weights(c, dtype: torch.dtype, device: torch.device):
    """Random ones, small enough that nothing overflows."""
    from engine.model.weights import LayerWeights, Weights

    def matrix(outputs: int, inputs: int) -> torch.Tensor:
        return torch.empty(outputs, inputs, dtype=dtype, device=device).normal_(std=0.02)

    return Weights(*laid_out(c, device, LayerWeights, matrix), parameters=0)


def quantised_weights(bench: Bench, c, dtype: torch.dtype):
    """Of 4 bits, head and embedding too; `dtype`: of activations."""
    from engine.kernels.quantised_matrix import QuantisedMatrix
    from engine.runner.quantised_weights import QuantisedLayer, QuantisedWeights

    def matrix(outputs: int, inputs: int) -> QuantisedMatrix:
        return QuantisedMatrix(*random_matrix(bench, inputs, outputs, 4))

    return QuantisedWeights(*laid_out(c, bench.device, QuantisedLayer, matrix), parameters=0, form="Q4_1", dtype=dtype)
