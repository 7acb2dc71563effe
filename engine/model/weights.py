"""A checkpoint's tensors → the weights that the forward pass reads: right shapes, nothing missing, nothing left.

Projections that read the same input are stored as one matrix (q, k, v; gate, up), so that a step makes four
products a layer instead of seven. Each number goes from the file's own form to float32, and from there to the
engine's dtype if that is another: never float32 by way of bfloat16. Never unpickles.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from engine.model.architecture import ModelConfig
from engine.model.cache import Progress, no_progress
from engine.model.checkpoint import Checkpoint, open_checkpoint
from engine.model.problem import ModelProblem
from engine.model.store import ModelFiles

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
    source = open_checkpoint(files)
    if source.config.layers > len(source.shapes):  # before a plan of them is made: the number may be anything
        raise ModelProblem(
            f"the description of {files.name} names {source.config.layers:,} layers, and there are "
            f"{len(source.shapes):,} tensors in all; the file is incomplete, fetch the model again"
        )
    plan = _plan(source.config)
    _check(source, plan, files.name)
    read = _read_all(source, plan, dtype, device, progress)
    return source.config, _assemble(source, read, device)


# --- the plan: each stored tensor of ours, and the checkpoint's tensors it is made of, in order ---

Shape = tuple[int, ...]
Plan = dict[str, list[tuple[str, Shape]]]


def _plan(c: ModelConfig) -> Plan:
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    plan: Plan = {
        "embedding": [("model.embed_tokens.weight", (c.vocabulary, c.hidden))],
        "norm": [("model.norm.weight", (c.hidden,))],
    }
    if not c.tied:
        plan["head"] = [("lm_head.weight", (c.vocabulary, c.hidden))]
    for i in range(c.layers):
        at, mine = f"model.layers.{i}.", f"{i}."
        attention = [(f"{at}self_attn.{n}_proj", rows) for n, rows in (("q", q), ("k", kv), ("v", kv))]
        mlp = [(f"{at}mlp.{n}_proj", c.intermediate) for n in ("gate", "up")]
        plan[mine + "attention_norm"] = [(f"{at}input_layernorm.weight", (c.hidden,))]
        plan[mine + "mlp_norm"] = [(f"{at}post_attention_layernorm.weight", (c.hidden,))]
        plan[mine + "qkv"] = [(f"{n}.weight", (rows, c.hidden)) for n, rows in attention]
        plan[mine + "output"] = [(f"{at}self_attn.o_proj.weight", (c.hidden, q))]
        plan[mine + "gate_up"] = [(f"{n}.weight", (rows, c.hidden)) for n, rows in mlp]
        plan[mine + "down"] = [(f"{at}mlp.down_proj.weight", (c.hidden, c.intermediate))]
        if c.qkv_bias:
            plan[mine + "qkv_bias"] = [(f"{n}.bias", (rows,)) for n, rows in attention]
        if c.output_bias:
            plan[mine + "output_bias"] = [(f"{at}self_attn.o_proj.bias", (c.hidden,))]
        if c.mlp_bias:
            plan[mine + "gate_up_bias"] = [(f"{n}.bias", (rows,)) for n, rows in mlp]
            plan[mine + "down_bias"] = [(f"{at}mlp.down_proj.bias", (c.hidden,))]
        if c.qk_norm:
            plan[mine + "q_norm"] = [(f"{at}self_attn.q_norm.weight", (c.head_dim,))]
            plan[mine + "k_norm"] = [(f"{at}self_attn.k_norm.weight", (c.head_dim,))]
    return plan


def _check(source: Checkpoint, plan: Plan, name: str) -> None:
    expected = {part: shape for parts in plan.values() for part, shape in parts}
    ignored = {n for n in source.shapes if n.endswith("rotary_emb.inv_freq")}  # buffers that old checkpoints keep
    if source.config.tied:
        ignored.add("lm_head.weight")  # a copy of the embedding
    missing = [n for n in expected if n not in source.shapes]
    if missing:
        raise ModelProblem(f"{name} lacks {_list(missing)}; the file is incomplete, fetch the model again")
    extra = [n for n in source.shapes if n not in expected and n not in ignored]
    if extra:
        raise ModelProblem(
            f"{name} holds tensors that a {source.config.architecture} model of its description has no place for: "
            f"{_list(extra)}; leaving them out would change its output"
        )
    for tensor, shape in expected.items():
        if source.shapes[tensor] != shape:
            raise ModelProblem(
                f"tensor {tensor} of {name} has the shape {source.shapes[tensor]}, its description asks for {shape}; "
                "the files don't belong together, fetch the model again"
            )


def _list(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"tensor{'s' if len(names) > 1 else ''} {shown}" + (f" and {len(names) - 3} more" if names[3:] else "")


# --- reading ---


def _read_all(
    source: Checkpoint, plan: Plan, dtype: torch.dtype, device: torch.device, progress: Progress
) -> dict[str, torch.Tensor]:
    total = sum(math.prod(shape) for parts in plan.values() for _, shape in parts)
    incoming = _read_ahead(source, [part for parts in plan.values() for part, _ in parts])
    read: dict[str, torch.Tensor] = {}
    done = 0
    for name, parts in plan.items():
        kept = torch.float32 if name.endswith("norm") else dtype  # norms are computed in float32 anyway
        rows = [shape[0] for _, shape in parts]
        whole = torch.empty((sum(rows), *parts[0][1][1:]), dtype=kept)
        for view in whole.split(rows):
            view.copy_(next(incoming))
        read[name] = whole.to(device)
        done += whole.numel()
        progress("loading weights", done * dtype.itemsize, total * dtype.itemsize)
    return read


def _read_ahead(source: Checkpoint, names: list[str]) -> Iterator[torch.Tensor]:
    """Tensors in order, read in threads a few ahead. numpy lets go of the interpreter lock on arrays this large;
    torch stays on the caller's thread, where its own threads are (a team of them for each reader is slower)."""
    workers = min(8, os.cpu_count() or 1)
    waiting: deque[Future[torch.Tensor]] = deque()
    with ThreadPoolExecutor(workers, "weights") as pool:
        for name in names:
            waiting.append(pool.submit(source.read, name))
            if len(waiting) > 2 * workers:  # a large checkpoint never stands in memory as float32 whole
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _assemble(source: Checkpoint, read: dict[str, torch.Tensor], device: torch.device) -> Weights:
    config = source.config
    names = [name for name in LayerWeights.__dataclass_fields__ if name != "qk_norm"]
    layers = [
        LayerWeights(qk_norm=_qk_norm(config, read, i), **{name: read.get(f"{i}.{name}") for name in names})
        for i in range(config.layers)
    ]
    frequencies = config.inverse_frequencies()
    if source.rope_divisors is not None:
        frequencies = frequencies / source.rope_divisors
    return Weights(
        embedding=read["embedding"],
        layers=layers,
        norm=read["norm"],
        head=read.get("head", read["embedding"]),
        inverse_frequencies=frequencies.to(device),
        parameters=sum(tensor.numel() for tensor in read.values()),
    )


def _qk_norm(config: ModelConfig, read: dict[str, torch.Tensor], layer: int) -> torch.Tensor | None:
    """q and k are normalised in one go: a row for each of their heads."""
    if not config.qk_norm:
        return None
    q, k = read[f"{layer}.q_norm"], read[f"{layer}.k_norm"]
    return torch.cat((q.expand(config.heads, -1), k.expand(config.kv_heads, -1)))
