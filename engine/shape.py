"""The sizes of a Llama-family decoder and how many numbers they make, also from a config.json; in plain Python.

The loader reads sizes here too (`engine.model.architecture`); the rules of what they make are those of
`engine.model.tensor_plan`, which needs torch: a test holds the two together. What only the forward pass cares about
(activations, rotary scaling, the form that weights are stored in) is not refused here but noted: memory is the same.
Models whose cache is another formula are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = {  # (biases on q, k and v; norm on each head's q and k), of what the engine loads
    "llama": (False, False),
    "mistral": (False, False),
    "qwen2": (True, False),
    "qwen3": (False, True),
}
LARGEST = 1 << 31  # of any size in a description
LONGEST_FILE = 1 << 20  # bytes; real ones have a few thousand
_QUOTED = 60  # characters of a file that a message repeats

# keys that mean another formula: why there is no answer
_OTHER_CACHES = {
    "kv_lora_rank": "its cache holds compressed keys and values (multi-head latent attention)",
    "num_local_experts": "it is a mixture of experts",
    "num_experts": "it is a mixture of experts",
    "n_routed_experts": "it is a mixture of experts",
    "ssm_cfg": "it is a state-space model",
}


class BadDescription(ValueError):
    """The message is one line for people."""


@dataclass(frozen=True)
class Shape:
    """`kind`: the model type. Sizes are numbers of things; `max_positions` is tokens."""

    kind: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_positions: int
    tied: bool  # the output head is the embedding
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    @property
    def layer_matrices(self) -> dict[str, tuple[int, int]]:
        """(outputs, inputs) of a layer's products, those that read the same input joined."""
        return {
            "qkv": ((self.heads + 2 * self.kv_heads) * self.head_dim, self.hidden),
            "output": (self.hidden, self.heads * self.head_dim),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }

    @property
    def embedding(self) -> int:
        """Numbers in the embedding, and in the head."""
        return self.vocabulary * self.hidden

    @property
    def norms(self) -> int:
        """Numbers in norms over the hidden width."""
        return self.hidden * (2 * self.layers + 1)

    @property
    def head_norms(self) -> int:
        """Numbers in norms over a head, which all heads share."""
        return 2 * self.head_dim * self.layers if self.qk_norm else 0

    @property
    def biases(self) -> int:
        rows = {name: outputs for name, (outputs, _) in self.layer_matrices.items()}
        layer = self.qkv_bias * rows["qkv"] + self.output_bias * rows["output"]
        return self.layers * (layer + self.mlp_bias * (rows["gate_up"] + rows["down"]))

    @property
    def products(self) -> int:
        """Numbers in the layers' matrices."""
        return self.layers * sum(outputs * inputs for outputs, inputs in self.layer_matrices.values())

    @property
    def parameters(self) -> int:
        """Numbers in the checkpoint; a tied head counts once."""
        return (
            self.embedding * (1 if self.tied else 2) + self.products + self.norms + self.head_norms + self.biases
        )  # fmt: skip


@dataclass(frozen=True)
class Described:
    """`notes`: what is to be known of the figures, or keeps this engine from loading the model."""

    name: str
    shape: Shape
    notes: tuple[str, ...] = ()


def read_config(path: Path) -> Described:
    """Of a config.json, or of the directory that holds one. Raises BadDescription."""
    try:
        file = path / "config.json" if path.is_dir() else path
        if not file.is_file():  # a pipe or a device could be read for ever
            raise BadDescription(f"{_quote(str(path))} is no file and holds no config.json")
        with file.open("rb") as opened:
            data = opened.read(LONGEST_FILE + 1)
        if len(data) > LONGEST_FILE:
            raise BadDescription(f"{_quote(file.name)} is over {LONGEST_FILE >> 20} MiB, which no config.json is")
        config = json.loads(data)
    except OSError as error:
        raise BadDescription(f"{_quote(path.name)} can't be read: {error.strerror or error}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, BadDescription):
            raise
        why = "nested too deeply" if isinstance(error, RecursionError) else _quote(str(error))
        raise BadDescription(f"{_quote(path.name)} is no JSON: {why}") from None
    described = from_config(config)
    return Described(_quote(file.resolve().parent.name) or "config.json", described.shape, described.notes)


def from_config(config: object) -> Described:
    """Raises BadDescription."""
    if not isinstance(config, Mapping):
        raise BadDescription("this JSON is no model description: it is no object")
    for key, why in _OTHER_CACHES.items():
        if config.get(key):
            raise BadDescription(f"the formula does not hold for this model: {why}")
    try:
        shape = shape_of(config)
        notes = _notes(config, shape.kind)
        kinds = {str(kind) for kind in config.get("layer_types") or ()}
        window = _window(shape.kind, config)
    except KeyError as error:
        raise BadDescription(f"config.json lacks {_quote(str(error))}") from None
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise BadDescription(f"config.json can't be read: {_quote(str(error))}") from None
    _check(shape)
    if kinds - {"full_attention", "sliding_attention"}:
        raise BadDescription("the formula does not hold for this model: not all its layers have a cache of this form")
    if window is not None and 0 < window < shape.max_positions:
        notes.append(f"attends over a sliding window of {window:,} tokens; this engine's contexts end there")
    return Described("config.json", shape, tuple(notes))


def shape_of(config: Mapping[str, Any]) -> Shape:
    """As a config.json has them, unchecked. Raises KeyError, and what numbers raise that are none."""
    kind = str(config.get("model_type", "none"))
    qkv_bias, qk_norm = KINDS.get(kind, (False, False))
    heads = int(config["num_attention_heads"])
    attention_bias = bool(config.get("attention_bias", False)) and kind in ("llama", "qwen3")
    return Shape(
        kind=kind,
        layers=int(config["num_hidden_layers"]),
        hidden=int(config["hidden_size"]),
        intermediate=int(config["intermediate_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
        vocabulary=int(config["vocab_size"]),
        max_positions=int(config["max_position_embeddings"]),
        # Gemma's are tied by its own default, which its files leave out
        tied=bool(config.get("tie_word_embeddings", kind.startswith("gemma"))),
        qkv_bias=qkv_bias or attention_bias,
        output_bias=attention_bias,
        mlp_bias=bool(config.get("mlp_bias", False)) and kind == "llama",
        qk_norm=qk_norm,
    )


def _check(shape: Shape) -> None:
    sizes = {
        "layers": shape.layers, "heads": shape.heads, "key/value heads": shape.kv_heads, "head width": shape.head_dim,
        "hidden": shape.hidden, "intermediate": shape.intermediate, "vocabulary": shape.vocabulary,
        "positions": shape.max_positions,
    }  # fmt: skip
    for name, size in sizes.items():
        if not 0 < size < LARGEST:
            shown = str(size) if abs(size) < 10**15 else "far too many"
            raise BadDescription(f"config.json is inconsistent: {name} {shown}")
    if shape.heads % shape.kv_heads:
        raise BadDescription(
            f"config.json is inconsistent: {shape.heads} heads can't share {shape.kv_heads} key/value heads"
        )


def _notes(config: Mapping[str, Any], kind: str) -> list[str]:
    notes = []
    if kind not in KINDS:
        notes.append(f"{_quote(kind)} is no kind that this engine loads; parameters are those of a Llama of its sizes")
    if quantised := config.get("quantization_config"):
        method = quantised.get("quant_method", "unknown") if isinstance(quantised, Mapping) else "unknown"
        notes.append(f"stored quantised ({_quote(str(method))}); set its bytes per parameter yourself")
    return notes


def _window(kind: str, config: Mapping[str, Any]) -> int | None:
    """Tokens of sliding-window attention, None for full attention."""
    window = config.get("sliding_window")
    if kind.startswith("qwen") and not config.get("use_sliding_window", False):
        return None
    return int(window) if window and kind != "llama" else None


def _quote(text: str) -> str:
    """A stranger's text on one short line of characters that can be shown."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * _QUOTED]).split())
    return line if len(line) <= _QUOTED else f"{line[: _QUOTED - 1]}…"
