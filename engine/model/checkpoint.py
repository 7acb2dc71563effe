"""A checkpoint under one set of names, Hugging Face's, wherever it lies: a directory or a GGUF file.

Knows which tensors there are and of what shape, and reads one at a time. What the engine makes of them is
`weights`' business.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from engine.model import architecture
from engine.model.architecture import ModelConfig
from engine.model.gguf_file import GgufFile
from engine.model.problem import ModelProblem
from engine.model.safetensors_file import SafetensorsFiles
from engine.model.store import ModelFiles

Number = TypeVar("Number", bound=np.generic)


class Checkpoint(Protocol):
    config: ModelConfig
    shapes: dict[str, tuple[int, ...]]
    types: dict[str, str]  # what a number is stored as, in the file's own word: BF16, Q4_1
    rope_divisors: torch.Tensor | None  # (d / 2) of inverse frequencies, where a file brings them as a tensor

    def read(self, name: str) -> torch.Tensor:
        """As it is stored, or as float32 where it is stored quantised. Safe in several threads."""
        ...

    def blocks(self, name: str) -> NDArray[np.uint8]:
        """A matrix of a type that is stored in blocks, as it is: (rows, blocks of a row, bytes of a block).
        Safe in several threads."""
        ...


def open_checkpoint(files: ModelFiles) -> Checkpoint:
    """Raises ModelProblem."""
    return GgufCheckpoint(files.path) if files.kind == "gguf" else HuggingFaceCheckpoint(files.path)


class HuggingFaceCheckpoint:
    """A directory with config.json and safetensors."""

    rope_divisors: torch.Tensor | None = None

    def __init__(self, directory: Path):
        self.config = architecture.from_huggingface(_read_config(directory / "config.json"))
        self._files = SafetensorsFiles(directory)
        self.shapes, self.types = self._files.tensors, self._files.types
        self.read: Callable[[str], torch.Tensor] = self._files.read

    def blocks(self, name: str) -> NDArray[np.uint8]:
        raise ValueError(f"{name} is {self.types[name]}: safetensors hold no blocks")


def _read_config(path: Path) -> dict:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelProblem(f"{path} can't be read ({error}); fetch the model again") from None
    if not isinstance(config, dict):
        raise ModelProblem(f"{path} is no model description; fetch the model again")
    return config


_GGUF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_GGUF_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_DIVISORS = "rope_freqs.weight"


class GgufCheckpoint:
    """A GGUF file under Hugging Face's names, q and k rows put back in Hugging Face's order."""

    def __init__(self, path: Path):
        self._file = GgufFile(path)
        self._names = {huggingface_name(n): n for n in self._file.tensors if n != _ROPE_DIVISORS}
        self.shapes = {ours: self._file.tensors[n].shape for ours, n in self._names.items()}
        self.types = {ours: self._file.tensors[n].type.name for ours, n in self._names.items()}
        embedding = self.shapes.get("model.embed_tokens.weight")
        if embedding is None:
            raise ModelProblem(f"{path} lacks tensor token_embd.weight; fetch the file again")
        self.config = architecture.from_gguf(
            self._file.fields,
            vocabulary=embedding[0],
            tied="lm_head.weight" not in self.shapes,
            qkv_bias="model.layers.0.self_attn.q_proj.bias" in self.shapes,
        )
        self.rope_divisors = self._read_rope_divisors()

    def read(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self._in_order(name, self._file.read(self._names[name])))

    def blocks(self, name: str) -> NDArray[np.uint8]:
        return self._in_order(name, self._file.blocks(self._names[name]))

    def _in_order(self, name: str, rows: NDArray[Number]) -> NDArray[Number]:
        if architecture.ARCHITECTURES[self.config.architecture][2]:
            if ".q_proj." in name:
                return unpermute(rows, self.config.heads)
            if ".k_proj." in name:
                return unpermute(rows, self.config.kv_heads)
        return rows

    def _read_rope_divisors(self) -> torch.Tensor | None:
        if _ROPE_DIVISORS not in self._file.tensors:
            return None
        divisors = torch.from_numpy(self._file.read(_ROPE_DIVISORS))
        if divisors.shape != (self.config.head_dim // 2,) or not (divisors > 0).all():
            raise ModelProblem(f"tensor {_ROPE_DIVISORS} in {self._file.path} is damaged; fetch the file again")
        return divisors


def huggingface_name(name: str) -> str:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`; an unknown name stays as it is."""
    stem, _, ending = name.rpartition(".")
    if stem in _GGUF_NAMES:
        return f"{_GGUF_NAMES[stem]}.{ending}"
    head, _, rest = stem.partition(".")
    number, _, part = rest.partition(".")
    if head == "blk" and part in _GGUF_LAYER_NAMES:
        return f"model.layers.{number}.{_GGUF_LAYER_NAMES[part]}.{ending}"
    return name


def unpermute(rows: NDArray[Number], heads: int) -> NDArray[Number]:
    """GGUF keeps each head's rows of q and k as pairs to rotate, (d/2, 2); Hugging Face as halves, (2, d/2).

    Works on weights (heads·d, D), biases (heads·d) and rows of blocks alike.
    """
    pairs = rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
