"""GGUF files of tiny models, written with gguf's own writer in the form that converters give real ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from transformers import PreTrainedModel

T = GGMLQuantizationType

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    stem, _, ending = name.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.{ending}"
    _, _, number, part = stem.split(".", 3)
    return f"blk.{number}.{_NAMES[part]}.{ending}"


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """A head's halves interleaved, row by row, as converters store Llama's q and k: written out, no reshape."""
    width = len(rows) // heads
    order = [
        head * width + half * width // 2 + pair
        for head in range(heads)
        for pair in range(width // 2)
        for half in range(2)
    ]
    return rows[order]


def write(
    path: Path,
    model: PreTrainedModel,
    kind: T = T.F32,
    architecture: str = "llama",
    change: Callable[[str, np.ndarray], np.ndarray | None] | None = None,
    rope_freqs: np.ndarray | None = None,
    metadata: dict[str, int | float | str] | None = None,
) -> None:
    """Matrices as `kind`, vectors as float32. `change(gguf name, values)` may alter or (None) drop a tensor."""
    config = model.config
    writer = GGUFWriter(path, architecture)
    fields: dict[str, int | float | str] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "attention.key_length": _head_dim(model),
        **(metadata or {}),
    }
    for key, value in fields.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{architecture}.{key}", value)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values: np.ndarray | None = tensor.numpy()
        if architecture == "llama" and ".q_proj." in name:
            values = permuted(values, config.num_attention_heads)
        if architecture == "llama" and ".k_proj." in name:
            values = permuted(values, config.num_key_value_heads)
        if change:
            values = change(gguf_name(name), values)
        if values is not None:
            stored = kind if values.ndim > 1 else T.F32
            writer.add_tensor(gguf_name(name), encode(values, stored), raw_dtype=stored)
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", rope_freqs.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def encode(values: np.ndarray, kind: T) -> np.ndarray:
    if kind == T.F32:
        return np.ascontiguousarray(values, dtype=np.float32)
    if kind == T.F16:
        return values.astype(np.float16)
    return quantize(np.ascontiguousarray(values, dtype=np.float32), kind)


def rounded(model: PreTrainedModel, decode: Callable[[np.ndarray], np.ndarray]) -> None:
    """Put every matrix of the oracle through `decode`, so that it has the very numbers of the file."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.from_numpy(decode(parameter.numpy().copy())))


def _head_dim(model: PreTrainedModel) -> int:
    config = model.config
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
