"""A checkpoint's tensors → matrices of 4, 8 or 16 bits, as the compiled products read them; norms and biases float32.

Three forms. "file": a GGUF file's own numbers, taken over as they are. "int8": any checkpoint's numbers rounded to 8
bits with a scale for every 32 of a row; those that a file already holds so (Q8_0) are taken over. "bfloat16": rounded
to that. The model never stands in memory as float32 whole. What is planned, checked and read ahead is `tensor_plan`'s.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from engine.cpu.packed_matrix import GROUP, TILE, PackedMatrix, aligned, halve, pack, quantise
from engine.model import gguf_blocks
from engine.model.architecture import ModelConfig
from engine.model.cache import Progress, no_progress
from engine.model.gguf_blocks import Codes
from engine.model.problem import ModelProblem
from engine.model.store import ModelFiles
from engine.model.tensor_plan import Planned, ahead, open_planned

Form = Literal["file", "int8", "bfloat16"]
Floats = NDArray[np.float32]

HEAD_WIDTH = 16  # numbers of a head that attention takes at once
# Weights rounded at a time, whole tiles of rows, so that what is in the making stays in a core's cache.
CHUNK = 1 << 17
_JOINED = {"qkv": "q, k and v", "gate_up": "gate and up"}

# D hidden, H heads, K key/value heads, d head width, F intermediate, V vocabulary.


@dataclass(frozen=True)
class PackedLayer:
    attention_norm: Floats  # (D)
    qkv: PackedMatrix  # ((H + 2K)·d, D)
    qkv_bias: Floats | None  # ((H + 2K)·d)
    qk_norm: Floats | None  # (H + K, d), q's for each of its heads, then k's
    output: PackedMatrix  # (D, H·d)
    output_bias: Floats | None  # (D)
    mlp_norm: Floats  # (D)
    gate_up: PackedMatrix  # (2F, D)
    gate_up_bias: Floats | None  # (2F)
    down: PackedMatrix  # (D, F)
    down_bias: Floats | None  # (D)

    @property
    def bytes(self) -> int:
        return _bytes(getattr(self, name) for name in self.__dataclass_fields__)


@dataclass(frozen=True)
class PackedWeights:
    embedding: PackedMatrix  # (V, D)
    layers: list[PackedLayer]
    norm: Floats  # (D)
    head: PackedMatrix  # (V, D); the embedding itself when tied
    inverse_frequencies: Floats  # (d / 2), rotary angles per token
    parameters: int  # numbers in the checkpoint; a tied head counts once
    form: str  # "int8", "bfloat16", or the file's type of most weights in the layers: "Q4_1"

    @property
    def bytes(self) -> int:
        """Held in memory, the padding of last tiles counted, and a tied head once."""
        head = None if self.head is self.embedding else self.head
        return _bytes((self.embedding, self.norm, head)) + sum(layer.bytes for layer in self.layers)


def _bytes(parts: Iterable[PackedMatrix | Floats | None]) -> int:
    sizes = (part.bytes if isinstance(part, PackedMatrix) else part.nbytes for part in parts if part is not None)
    return sum(sizes)


def load_packed(files: ModelFiles, form: Form, progress: Progress = no_progress) -> tuple[ModelConfig, PackedWeights]:
    """Raises ModelProblem, also where the form can't be had of this model."""
    planned = open_planned(files)
    if why := why_not_packed(planned, form):
        raise ModelProblem(f"{files.name} can't be had in the form '{form}': {why}; take the form 'auto'")
    return planned.config, read_packed(planned, form, progress)


# --- whether it can be had ---


def why_not_packed(planned: Planned, form: Form) -> str | None:
    """Seen in shapes and types, nothing is read. None: it can be had."""
    if planned.config.head_dim % HEAD_WIDTH:
        return f"its heads are {planned.config.head_dim} numbers wide, no multiple of {HEAD_WIDTH}"
    matrices = {name: parts for name, parts in planned.plan.items() if _is_matrix(name)}
    for parts in matrices.values():
        for tensor, (_, columns) in parts:
            if columns % GROUP:
                return f"the rows of {tensor} are {columns} numbers long, no multiple of {GROUP}"
    return _why_not_as_in_file(planned, matrices) if form == "file" else None


def _why_not_as_in_file(planned: Planned, matrices: dict) -> str | None:
    known = ", ".join(gguf_blocks.BITS)
    bits: dict[str, set[int]] = {}  # of a matrix of that name, over all layers
    for name, parts in matrices.items():
        types = [planned.source.types[tensor] for tensor, _ in parts]
        for (tensor, _), kind in zip(parts, types, strict=True):
            if kind not in gguf_blocks.BITS:
                return f"{tensor} is {kind}, and only {known} have products of bytes as they are"
        layer, _, part = name.rpartition(".")
        widths = {gguf_blocks.BITS[kind] for kind in types}
        if len(widths) > 1:
            return f"{_JOINED[part]} of layer {layer} are of different widths ({', '.join(types)})"
        bits.setdefault(part, set()).update(widths)
        if len(bits[part]) > 1:
            return f"{_JOINED.get(part, part)} have 4 bits in some layers and 8 in others"
    return None


def _is_matrix(name: str) -> bool:
    return not name.endswith(("norm", "bias"))


# --- reading ---


def read_packed(planned: Planned, form: Form, progress: Progress = no_progress) -> PackedWeights:
    """Of a model that `why_not_packed` has nothing against. Raises ModelProblem for a file that is damaged."""

    def one(name: str) -> PackedMatrix | Floats:
        if not _is_matrix(name):
            return np.concatenate([_floats(planned.source.read(tensor)) for tensor, _ in planned.plan[name]])
        if form == "file":
            return _as_in_file(planned, name)
        return _in_int8(planned, name) if form == "int8" else _in_bfloat16(planned, name)

    tensors: dict[str, PackedMatrix | Floats] = {}
    sizes = {name: _size(planned, name, form) for name in planned.plan}
    total, done = sum(sizes.values()), 0
    for name, tensor in zip(planned.plan, ahead(one, planned.plan), strict=True):
        tensors[name] = tensor
        done += sizes[name]
        progress("loading weights", done, total)
    return _assemble(planned, tensors, form)


def packed_bytes(planned: Planned, form: Form) -> int:
    """Of a model that isn't read yet, without the padding of last tiles."""
    return sum(_size(planned, name, form) for name in planned.plan)


def _size(planned: Planned, name: str, form: Form) -> int:
    """Bytes, without the padding of last tiles."""
    numbers = sum(math.prod(shape) for _, shape in planned.plan[name])
    if not _is_matrix(name):
        return 4 * numbers
    if form == "bfloat16":
        return 2 * numbers
    bits = 8 if form == "int8" else gguf_blocks.BITS[planned.source.types[planned.plan[name][0][0]]]
    return numbers // GROUP * (GROUP * bits // 8 + (2 if bits == 8 else 4))


def _as_in_file(planned: Planned, name: str) -> PackedMatrix:
    return _pack(*(_codes(planned, tensor) for tensor, _ in planned.plan[name]))


def _in_int8(planned: Planned, name: str) -> PackedMatrix:
    tensors = [tensor for tensor, _ in planned.plan[name]]
    if all(planned.source.types[tensor] == "Q8_0" for tensor in tensors):
        return _as_in_file(planned, name)
    parts = [_floats(planned.source.read(tensor)) for tensor in tensors]
    return _by_tiles(np.concatenate(parts) if parts[1:] else parts[0], quantise)


def _in_bfloat16(planned: Planned, name: str) -> PackedMatrix:
    parts = [_floats(planned.source.read(tensor)) for tensor, _ in planned.plan[name]]
    return _by_tiles(np.concatenate(parts) if parts[1:] else parts[0], halve)


def _by_tiles(weight: Floats, make: Callable[[Floats], PackedMatrix]) -> PackedMatrix:
    """`make` (quantise, halve), some tiles at a time."""
    rows, columns = weight.shape
    tiles = -(-rows // TILE)
    step = max(1, CHUNK // (columns * TILE))  # tiles
    codes = scales = None
    for first in range(0, tiles, step):
        part = make(weight[first * TILE : (first + step) * TILE])
        if codes is None:
            codes = aligned((tiles, *part.codes.shape[1:]), np.uint8)
            scales = aligned((tiles, *part.scales.shape[1:]), np.float16)
        codes[first : first + step], scales[first : first + step] = part.codes, part.scales
    return PackedMatrix(part.bits, rows, columns, codes, scales)


def _floats(stored: torch.Tensor) -> Floats:
    """As float32 by numpy: torch would bring a team of threads to each reader."""
    if stored.dtype == torch.bfloat16:  # the upper half of a float32
        return (stored.view(torch.uint16).numpy().astype(np.uint32) << 16).view(np.float32)
    return stored.numpy().astype(np.float32, copy=False)


def _codes(planned: Planned, tensor: str) -> Codes:
    return gguf_blocks.take_apart(planned.source.blocks(tensor), planned.source.types[tensor])


def _pack(*parts: Codes) -> PackedMatrix:
    """The parts' rows one after the other, as one matrix."""
    minima = [part.minimum for part in parts if part.minimum is not None]
    return pack(
        np.concatenate([part.codes for part in parts]),
        np.concatenate([part.scale for part in parts]),
        np.concatenate(minima) if minima else None,
    )


def _assemble(planned: Planned, tensors: dict[str, PackedMatrix | Floats], form: Form) -> PackedWeights:
    config = planned.config
    names = [name for name in PackedLayer.__dataclass_fields__ if name != "qk_norm"]
    layers = [
        PackedLayer(qk_norm=_qk_norm(config, tensors, i), **{name: tensors.get(f"{i}.{name}") for name in names})
        for i in range(config.layers)
    ]
    return PackedWeights(
        embedding=tensors["embedding"],
        layers=layers,
        norm=tensors["norm"],
        head=tensors.get("head", tensors["embedding"]),
        inverse_frequencies=planned.inverse_frequencies().numpy(),
        parameters=planned.parameters,
        form=_most(planned) if form == "file" else form,
    )


def _qk_norm(config: ModelConfig, tensors: dict[str, PackedMatrix | Floats], layer: int) -> Floats | None:
    if not config.qk_norm:
        return None
    q, k = tensors[f"{layer}.q_norm"], tensors[f"{layer}.k_norm"]
    return np.concatenate((np.tile(q, (config.heads, 1)), np.tile(k, (config.kv_heads, 1))))


def _most(planned: Planned) -> str:
    """The type of most weights in the layers."""
    numbers: Counter[str] = Counter()
    for name, parts in planned.plan.items():
        if _is_matrix(name) and name not in ("embedding", "head"):
            for tensor, shape in parts:
                numbers[planned.source.types[tensor]] += math.prod(shape)
    return numbers.most_common(1)[0][0]
