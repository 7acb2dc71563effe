"""Tiny random checkpoints of every supported architecture, saved by transformers, and transformers as the oracle."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

VOCABULARY = 97
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,  # short, so that tests reach the stretched frequencies
}
KINDS = ("llama", "llama3", "mistral", "qwen2", "qwen3")
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def config_of(kind: str, tied: bool, **changes: object) -> PreTrainedConfig:
    common = {**SIZES, "tie_word_embeddings": tied, **changes}
    if kind == "llama":
        return LlamaConfig(rope_parameters={"rope_type": "default", "rope_theta": 5_000.0}, **common)
    if kind == "llama3":
        return LlamaConfig(rope_parameters=LLAMA3_ROPE, **{"attention_bias": True, "mlp_bias": True, **common})
    if kind == "mistral":
        return MistralConfig(**{"sliding_window": None, "head_dim": 16, **common})
    if kind == "qwen2":
        return Qwen2Config(**common)
    return Qwen3Config(**{"head_dim": 16, **common})


def make(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """Random weights large enough that every part matters: norms away from 1, biases away from 0."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * (0.5 if name.endswith("bias") else 0.15))
    return model


def save(directory: Path, kind: str, tied: bool, **changes: object) -> PreTrainedModel:
    model = make(config_of(kind, tied, **changes))
    model.save_pretrained(directory)
    return model


@torch.no_grad()
def logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """One dense pass over one sequence: (len(tokens), V)."""
    return model(torch.tensor([tokens])).logits[0]
