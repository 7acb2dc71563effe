"""A checkpoint's tensors → the weights that the forward pass reads: right shapes, nothing missing, nothing left.

Projections that read the same input are stored as one matrix (q, k, v; gate, up), so that a step makes four
products a layer instead of seven. Each number goes from the file's own form to float32, and from there to the
engine's dtype if that is another: never float32 by way of bfloat16. Never unpickles.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.model.architecture import ModelConfig
from engine.model.cache import Progress, no_progress
from engine.model.store import ModelFiles
from engine.model.tensor_plan import Planned, ahead, open_planned

# D hidden, H heads, K key/value heads, d head width, F intermediate, V vocabulary.


@dataclass(frozen=True)
class LayerWeights:
    attention_norm: torch.Tensor  # (D)
    qkv: torch.Tensor  # ((H + 2K)·d, D)
    qkv_bias: torch.Tensor | None  # ((H + 2K)·d)
    qk_norm: torch.Tensor | None  # (H + K, d), q's for each of its heads, then k's
    output: torch.Tensor  # (D, H·d)
    output_bias: torch.Tensor | None  # (D)
    mlp_norm: torch.Tensor  # (D)
    gate_up: torch.Tensor  # (2F, D)
    gate_up_bias: torch.Tensor | None  # (2F)
    down: torch.Tensor  # (D, F)
    down_bias: torch.Tensor | None  # (D)


@dataclass(frozen=True)
class Weights:
    embedding: torch.Tensor  # (V, D)
    layers: list[LayerWeights]
    norm: torch.Tensor  # (D)
    head: torch.Tensor  # (V, D); the embedding itself when tied
    inverse_frequencies: torch.Tensor  # (d / 2) float32, rotary angles per token
    parameters: int  # numbers in the checkpoint; a tied head counts once


def load(
    files: ModelFiles, dtype: torch.dtype, device: torch.device, progress: Progress = no_progress
) -> tuple[ModelConfig, Weights]:
    """Raises ModelProblem; nothing is read before every tensor is known to be there and of the right shape."""
    planned = open_planned(files)
    return planned.config, read(planned, dtype, device, progress)


def read(planned: Planned, dtype: torch.dtype, device: torch.device, progress: Progress = no_progress) -> Weights:
    """Raises ModelProblem for a file that is damaged."""
    source, plan, total = planned.source, planned.plan, planned.parameters
    incoming = ahead(source.read, [part for parts in plan.values() for part, _ in parts])
    tensors: dict[str, torch.Tensor] = {}
    done = 0
    for name, parts in plan.items():
        kept = torch.float32 if name.endswith("norm") else dtype  # norms are computed in float32 anyway
        rows = [shape[0] for _, shape in parts]
        whole = torch.empty((sum(rows), *parts[0][1][1:]), dtype=kept)
        for view in whole.split(rows):
            view.copy_(next(incoming))
        tensors[name] = whole.to(device)
        done += whole.numel()
        progress("loading weights", done * dtype.itemsize, total * dtype.itemsize)
    return _assemble(planned, tensors, device)


def _assemble(planned: Planned, read: dict[str, torch.Tensor], device: torch.device) -> Weights:
    config = planned.config
    names = [name for name in LayerWeights.__dataclass_fields__ if name != "qk_norm"]
    layers = [
        LayerWeights(qk_norm=_qk_norm(config, read, i), **{name: read.get(f"{i}.{name}") for name in names})
        for i in range(config.layers)
    ]
    return Weights(
        embedding=read["embedding"],
        layers=layers,
        norm=read["norm"],
        head=read.get("head", read["embedding"]),
        inverse_frequencies=planned.inverse_frequencies().to(device),
        parameters=planned.parameters,
    )


def _qk_norm(config: ModelConfig, read: dict[str, torch.Tensor], layer: int) -> torch.Tensor | None:
    """q and k are normalised in one go: a row for each of their heads."""
    if not config.qk_norm:
        return None
    q, k = read[f"{layer}.q_norm"], read[f"{layer}.k_norm"]
    return torch.cat((q.expand(config.heads, -1), k.expand(config.kv_heads, -1)))
