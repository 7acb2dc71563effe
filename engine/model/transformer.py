"""The forward pass of a Llama-family decoder over a packed batch, paged. One file, no phases.

Tokens of all rows lie one after the other; what a row is (prefill, decode, verification) is not known here.
Refuses to know about sequences, devices beyond a tensor's own, and where weights come from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.kernels.kv_cache import write_kv
from engine.kernels.linear import Linear
from engine.kernels.paged_attention import Group, paged_attention
from engine.kernels.rms_norm import rms_norm
from engine.kernels.rope import rope, rope_table
from engine.kernels.swiglu import swiglu
from engine.model.architecture import ModelConfig
from engine.model.stack import Stack
from engine.model.weights import LayerWeights, Weights

# T tokens, N rows that want logits, D hidden, H heads, K key/value heads, d head width, V vocabulary.

KVPools = list[tuple[torch.Tensor, torch.Tensor]]  # per layer: keys, values (K, blocks, block_size, d)


@dataclass(frozen=True)
class Inputs:
    """A packed batch on the device."""

    tokens: torch.Tensor  # (T)
    positions: torch.Tensor  # (T)
    slots: torch.Tensor  # of `stored` tokens
    logit_index: torch.Tensor  # (N)
    groups: list[Group]
    stored: torch.Tensor | None = None  # tokens whose K/V is written; None: all


class Layer:
    def __init__(self, config: ModelConfig, weights: LayerWeights):
        self.config = config
        self.attention_norm, self.mlp_norm = weights.attention_norm, weights.mlp_norm
        self.qk_norm = weights.qk_norm
        self.qkv = Linear(weights.qkv, weights.qkv_bias)
        self.output = Linear(weights.output, weights.output_bias)
        self.gate_up = Linear(weights.gate_up, weights.gate_up_bias)
        self.down = Linear(weights.down, weights.down_bias)

    def __call__(
        self,
        x: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        inputs: Inputs,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """x (T, D) → (T, D); writes the tokens' K and V before it reads any."""
        c = self.config
        h = rms_norm(x, self.attention_norm, c.rms_eps)
        qkv = self.qkv(h).view(len(x), c.heads + 2 * c.kv_heads, c.head_dim)
        qk, v = qkv.split((c.heads + c.kv_heads, c.kv_heads), dim=1)  # (T, H + K, d), (T, K, d)
        if self.qk_norm is not None:
            qk = rms_norm(qk, self.qk_norm, c.rms_eps)
        q, k = rope(qk, *rotation).split((c.heads, c.kv_heads), dim=1)
        write_kv(keys, values, k, v, inputs.slots, inputs.stored)
        x = x + self.output(paged_attention(q, keys, values, inputs.groups))
        h = rms_norm(x, self.mlp_norm, c.rms_eps)
        return x + self.down(swiglu(self.gate_up(h)))

    @property
    def bytes(self) -> int:
        norms = [t.nbytes for t in (self.attention_norm, self.mlp_norm, self.qk_norm) if t is not None]
        return sum(norms) + sum(m.bytes for m in (self.qkv, self.output, self.gate_up, self.down))


class Transformer(Stack):
    """A tied head is the embedding again, in the form that products want."""

    def __init__(self, config: ModelConfig, weights: Weights, consume: bool = False):
        """`consume`: take the layers out of `weights` one by one, so that a layer's plain matrices go as its
        prepacked ones come and the model never stands in memory twice."""
        self.config = config
        self.embedding = weights.embedding
        left = weights.layers if consume else list(weights.layers)
        self.layers: list[Layer] = []
        while left:
            self.layers.append(Layer(config, left.pop(0)))
        self.norm = weights.norm
        self.head = Linear(weights.head)
        self.inverse_frequencies = weights.inverse_frequencies
        self.wanted = self.norm.new_empty((0, config.hidden))  # (N, D) that the last logits were made from

    def forward(self, inputs: Inputs, pools: KVPools) -> torch.Tensor:
        """→ logits (N, V) float32."""
        x = F.embedding(inputs.tokens, self.embedding)  # (T, D)
        rotation = rope_table(inputs.positions, self.inverse_frequencies, x.dtype)
        for layer, (keys, values) in zip(self.layers, pools, strict=True):
            x = layer(x, rotation, inputs, keys, values)
        self.wanted = x[inputs.logit_index]
        return self.head(rms_norm(self.wanted, self.norm, self.config.rms_eps)).float()
