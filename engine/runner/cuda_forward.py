"""The forward pass of a Llama-family decoder for a card: fused kernels, into buffers that are there already.

The same numbers as `engine.model.transformer`, in the order that kernels like: the sum of the residual stream and the
norm after it are one operation, and so are the rotation and the K/V store. Nothing is allocated on the way and nothing
is read on the host, so that a graph can hold it. Refuses to know of batches: only of views of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from engine.model.architecture import ModelConfig
from engine.model.stack import Stack
from engine.model.transformer import KVPools
from engine.model.weights import LayerWeights, Weights
from engine.runner.cuda_ops import Ops
from engine.runner.cuda_products import Product, QuantisedEmbedding, QuantisedProduct, shared
from engine.runner.quantised_weights import QuantisedLayer, QuantisedWeights
from engine.runner.step_inputs import StepInputs

# T tokens, N rows that want logits, D hidden, H heads, K key/value heads, d head width, F intermediate, V vocabulary.


@dataclass(frozen=True)
class AttentionPlan:
    """What a pass's rows are, as far as kernels are chosen by it."""

    singles: int  # leading rows of one query or none: token i is that of row i
    longest: int = 0  # queries of a row behind those, at most; 0: there are none


class Activations:
    """Buffers of a pass over at most `tokens` tokens with logits for at most `wanted`."""

    def __init__(self, config: ModelConfig, tokens: int, wanted: int, dtype: torch.dtype, device: torch.device):
        c = config

        def buffer(count: int, width: int, of: torch.dtype = dtype) -> torch.Tensor:
            return torch.zeros((count, width), dtype=of, device=device)

        self.tokens, self.wanted_rows = tokens, wanted
        self.ids = torch.zeros(tokens, dtype=torch.int32, device=device)
        self.residual, self.normed, self.delta = (buffer(tokens, c.hidden) for _ in range(3))
        self.qkv = buffer(tokens, (c.heads + 2 * c.kv_heads) * c.head_dim)
        self.q, self.attended = (buffer(tokens, c.heads * c.head_dim) for _ in range(2))
        self.gate_up, self.gated = buffer(tokens, 2 * c.intermediate), buffer(tokens, c.intermediate)
        self.wanted, self.last, self.head_in = (buffer(wanted, c.hidden) for _ in range(3))
        self.logits = buffer(wanted, c.vocabulary, torch.float32)
        self.narrow = self.logits if dtype == torch.float32 else buffer(wanted, c.vocabulary)

    @property
    def bytes(self) -> int:
        held = {t.data_ptr(): t.nbytes for t in vars(self).values() if isinstance(t, torch.Tensor)}
        return sum(held.values())


class _Layer:
    def __init__(self, weights: LayerWeights | QuantisedLayer, product: Callable[..., Product | QuantisedProduct]):
        self.attention_norm, self.mlp_norm = weights.attention_norm, weights.mlp_norm
        # one row serves all heads of a kind
        norms = weights.qk_norm
        self.q_norm, self.k_norm = (None, None) if norms is None else (norms[0], norms[-1])
        self.qkv = product(weights.qkv, weights.qkv_bias)
        self.output = product(weights.output, weights.output_bias)
        self.gate_up = product(weights.gate_up, weights.gate_up_bias)
        self.down = product(weights.down, weights.down_bias)

    @property
    def bytes(self) -> int:
        norms = [t.nbytes for t in (self.attention_norm, self.mlp_norm, self.q_norm, self.k_norm) if t is not None]
        return sum(norms) + sum(m.bytes for m in (self.qkv, self.output, self.gate_up, self.down))


class CudaForward(Stack):
    """`bytes` are those of weights: what quantised products share besides is in `shared_bytes`."""

    embedding: torch.Tensor | QuantisedEmbedding  # type: ignore[assignment]

    def __init__(self, config: ModelConfig, weights: Weights | QuantisedWeights, ops: Ops):
        self.config, self.ops, self.norm = config, ops, weights.norm
        product: Callable[..., Product | QuantisedProduct]
        if isinstance(weights, QuantisedWeights):
            dtype, device = weights.dtype, weights.norm.device
            held = shared(weights, ops, device)
            product, self.shared_bytes = partial(QuantisedProduct, ops=ops, shared=held), held.floats.nbytes
            self.embedding = QuantisedEmbedding(weights.embedding)
        else:
            product, self.shared_bytes = Product, 0
            self.embedding, dtype, device = weights.embedding, weights.embedding.dtype, weights.embedding.device
        self.layers = [_Layer(layer, product) for layer in weights.layers]
        self.head = product(weights.head, None)
        self.inverse_frequencies = weights.inverse_frequencies
        self.wanted = torch.zeros((0, config.hidden), dtype=dtype, device=device)

    def run(
        self, inputs: StepInputs, plan: AttentionPlan, a: Activations, workspace: Any, pools: KVPools
    ) -> None:
        """Logits (N, V) float32 go to `a.logits`, what they were made from to `a.wanted`."""
        c, ops = self.config, self.ops
        tokens, wanted = len(inputs.pick), len(inputs.logit_index)
        residual, normed, delta = a.residual[:tokens], a.normed[:tokens], a.delta[:tokens]
        qkv, gate_up, gated = a.qkv[:tokens], a.gate_up[:tokens], a.gated[:tokens]
        flat = a.attended[:tokens]
        q, attended = (x[:tokens].view(tokens, c.heads, c.head_dim) for x in (a.q, a.attended))
        torch.index_select(inputs.known, 0, inputs.pick, out=a.ids[:tokens])
        if isinstance(self.embedding, QuantisedEmbedding):
            m = self.embedding.matrix
            ops.dequantise(m.weights, m.scales, m.offsets, residual, 0, a.ids[:tokens])
        else:
            torch.index_select(self.embedding, 0, a.ids[:tokens], out=residual)
        before = None  # what the layer before adds to the residual stream
        for layer, (keys, values) in zip(self.layers, pools, strict=True):
            ops.add_rms_norm(before, residual, layer.attention_norm, c.rms_eps, normed)
            layer.qkv(normed, qkv)
            ops.rope_store(
                qkv, inputs.positions, self.inverse_frequencies, inputs.slots, keys, values, c.heads, c.kv_heads, q,
                layer.q_norm, layer.k_norm, c.rms_eps,
            )  # fmt: skip
            self._attend(q, keys, values, inputs, plan, attended, workspace)
            layer.output(flat, delta)
            ops.add_rms_norm(delta, residual, layer.mlp_norm, c.rms_eps, normed)
            layer.gate_up(normed, gate_up)
            ops.silu_mul(gate_up, gated)
            layer.down(gated, delta)
            before = delta
        if not wanted:
            return
        last, final = a.last[:wanted], a.wanted[:wanted]
        torch.index_select(residual, 0, inputs.logit_index, out=final)
        torch.index_select(delta, 0, inputs.logit_index, out=last)
        ops.add_rms_norm(last, final, self.norm, c.rms_eps, a.head_in[:wanted])
        self.head(a.head_in[:wanted], a.narrow[:wanted])
        if a.narrow is not a.logits:
            a.logits[:wanted].copy_(a.narrow[:wanted])

    def _attend(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        inputs: StepInputs,
        plan: AttentionPlan,
        out: torch.Tensor,
        workspace: Any,
    ) -> None:
        single = plan.singles
        if single:
            few = inputs.tables[:single], inputs.contexts[:single]
            self.ops.paged_decode(q[:single], keys, values, *few, out[:single], workspace)
        if plan.longest:
            rest = inputs.tables[single:], inputs.row_starts[single:], inputs.contexts[single:]
            self.ops.paged_prefill(q, keys, values, *rest, out, plan.longest, workspace)
