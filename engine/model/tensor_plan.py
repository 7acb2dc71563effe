"""Which of a checkpoint's tensors make up the model, checked before any is read, and reading them ahead in threads.

Knows nothing of the form that the engine keeps them in.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch

from engine.model.architecture import ModelConfig
from engine.model.checkpoint import Checkpoint, open_checkpoint
from engine.model.problem import ModelProblem
from engine.model.store import ModelFiles

Shape = tuple[int, ...]
Plan = dict[str, list[tuple[str, Shape]]]  # each stored tensor of ours: the checkpoint's that it is made of, in order

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Planned:
    """A checkpoint in which every tensor of the plan is there, of the right shape, and no other is."""

    source: Checkpoint
    plan: Plan

    @property
    def config(self) -> ModelConfig:
        return self.source.config

    @property
    def parameters(self) -> int:
        """Numbers in the checkpoint; a tied head counts once."""
        return sum(math.prod(shape) for parts in self.plan.values() for _, shape in parts)

    def inverse_frequencies(self) -> torch.Tensor:
        """(d / 2) float32, rotary angles per token."""
        frequencies = self.config.inverse_frequencies()
        divisors = self.source.rope_divisors
        return frequencies if divisors is None else frequencies / divisors


def open_planned(files: ModelFiles) -> Planned:
    """Raises ModelProblem; reads no weights."""
    source = open_checkpoint(files)
    if source.config.layers > len(source.shapes):  # before a plan of them is made: the number may be anything
        raise ModelProblem(
            f"the description of {files.name} names {source.config.layers:,} layers, and there are "
            f"{len(source.shapes):,} tensors in all; the file is incomplete, fetch the model again"
        )
    plan = make_plan(source.config)
    _check(source, plan, files.name)
    return Planned(source, plan)


def make_plan(c: ModelConfig) -> Plan:
    """Where each weight of the model comes from, with the shapes (outputs, inputs) that the checkpoint must have."""
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


def ahead(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`work` of each item, in order, done in threads and a few ahead: a large checkpoint never stands in memory whole.

    numpy lets go of the interpreter lock on arrays as large as weights. torch belongs on the caller's thread, where
    its own threads are: a team of them for each reader is slower.
    """
    workers = min(8, os.cpu_count() or 1)
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers, "weights") as pool:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
