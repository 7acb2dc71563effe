"""What a checkpoint is, read from its own description: Hugging Face `config.json` or GGUF metadata.

`ModelConfig` holds every number the forward pass needs and nothing of how weights are stored. Anything that
would change the model's output and isn't implemented is refused here, by name, never ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from engine.config import number
from engine.model.problem import ModelProblem
from engine.shape import shape_of

# architecture: (biases on q, k and v; RMS norm on each head's q and k; q and k rows permuted in GGUF files)
ARCHITECTURES = {
    "llama": (False, False, True),
    "mistral": (False, False, True),  # GGUF files call it llama
    "qwen2": (True, False, False),
    "qwen3": (False, True, False),
}
LARGEST = 1 << 31  # of any size in a description; real ones stay far below
_SUPPORTED = "supported are Llama (SmolLM2 among them), Mistral, Qwen2 and Qwen3"


@dataclass(frozen=True)
class Llama3Rope:
    """Llama 3.1's stretching of rotary frequencies: long wavelengths are divided by `factor`, short ones kept."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int  # tokens the model was trained on before stretching

    def scale(self, frequencies: torch.Tensor) -> torch.Tensor:
        """Inverse frequencies (d / 2), radians a token, scaled."""
        turns = self.original_positions * frequencies / (2 * math.pi)  # over the original context
        keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        keep = keep.clamp(0, 1)  # 0: a long wavelength, stretched whole; 1: a short one, kept
        return (1 - keep) * frequencies / self.factor + keep * frequencies


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of one Llama-family decoder."""

    architecture: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_positions: int  # tokens
    rms_eps: float
    rope_theta: float
    rope_scaling: Llama3Rope | None
    tied: bool  # the output head is the embedding
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    notices: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        sizes = (self.layers, self.hidden, self.intermediate, self.heads, self.kv_heads, self.head_dim,
                 self.vocabulary, self.max_positions)
        numbers = [self.rms_eps, self.rope_theta]
        if (rope := self.rope_scaling) is not None:
            numbers += [rope.factor, rope.high_freq_factor - rope.low_freq_factor, rope.original_positions]
        possible = min(sizes) > 0 and max(sizes) < LARGEST and all(0 < n < math.inf for n in numbers)
        if not possible or self.heads % self.kv_heads or self.head_dim % 2:
            layers, hidden, between, heads, kv_heads, head_dim, vocabulary, positions = map(number, sizes)
            raise ModelProblem(
                f"the model's description is inconsistent ({layers} layers, {heads} heads, {kv_heads} key/value heads "
                f"of {head_dim}, hidden {hidden}, intermediate {between}, vocabulary {vocabulary}, {positions} "
                f"positions, rope base {self.rope_theta:g}); fetch it again"
            )

    def inverse_frequencies(self) -> torch.Tensor:
        """Rotary angles per token, one for each pair of a head's numbers: (d / 2) float32.

        Computed in float32 like everyone's: at position 8,000 a last bit here is 5e-4 radians there.
        """
        exponents = torch.arange(0, self.head_dim, 2).float() / self.head_dim
        plain = 1.0 / self.rope_theta**exponents
        return self.rope_scaling.scale(plain) if self.rope_scaling else plain


# --- Hugging Face ---


def from_huggingface(config: Mapping[str, Any]) -> ModelConfig:
    """`config.json` as transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters) writes it."""
    kind = str(config.get("model_type", "none"))
    if kind not in ARCHITECTURES:
        raise ModelProblem(f"model type '{kind}' in config.json is not supported; {_SUPPORTED}")
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelProblem(f"activation '{activation}' in config.json is not supported; only silu is")
    try:
        _refuse_quantised(config)
        return _bound_by_window(_parse_huggingface(kind, config), _huggingface_window(kind, config))
    except KeyError as error:
        raise ModelProblem(f"config.json lacks {error}; fetch the model again") from None
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ModelProblem(f"config.json can't be read ({error}); fetch the model again") from None


def _refuse_quantised(config: Mapping[str, Any]) -> None:
    if quantisation := config.get("quantization_config"):
        method = quantisation.get("quant_method", "unknown")
        raise ModelProblem(
            f"this checkpoint is quantised ({method}), which is not supported; take its unquantised safetensors "
            "or a GGUF file"
        )


def _parse_huggingface(kind: str, config: Mapping[str, Any]) -> ModelConfig:
    theta, scaling = _huggingface_rope(config)
    found = asdict(shape_of(config))
    del found["kind"]
    return ModelConfig(
        architecture=kind,
        rms_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        **found,
    )


def _huggingface_rope(config: Mapping[str, Any]) -> tuple[float, Llama3Rope | None]:
    rope: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    share = float(rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0)
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    if share != 1.0:
        raise ModelProblem(f"partial rotary embedding (factor {share:g}) is not supported")
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ModelProblem(f"rope scaling of type '{kind}' is not supported; only 'llama3' and none are")
    return theta, Llama3Rope(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_positions=int(rope["original_max_position_embeddings"]),
    )


def _huggingface_window(kind: str, config: Mapping[str, Any]) -> int | None:
    """Tokens of sliding-window attention, None for full attention."""
    window = config.get("sliding_window")
    if kind.startswith("qwen") and not config.get("use_sliding_window", False):
        return None
    return int(window) if window and kind != "llama" else None


def _bound_by_window(config: ModelConfig, window: int | None) -> ModelConfig:
    """Within its window, sliding attention is full attention: the context ends there instead of being wrong."""
    if window is None or window >= config.max_positions:
        return config
    notice = (
        f"this model attends over a sliding window of {window:,} tokens; contexts end there "
        f"(the checkpoint allows {config.max_positions:,})"
    )
    return replace(config, max_positions=window, notices=(*config.notices, notice))


# --- GGUF ---


def from_gguf(fields: Mapping[str, Any], vocabulary: int, tied: bool, qkv_bias: bool) -> ModelConfig:
    """GGUF metadata; vocabulary, tying and biases are seen in the tensors only."""
    kind = str(fields.get("general.architecture", "none"))
    if kind not in ARCHITECTURES:
        raise ModelProblem(f"GGUF architecture '{kind}' is not supported; {_SUPPORTED}")
    if fields.get(f"{kind}.expert_count"):
        raise ModelProblem("this GGUF file holds a mixture of experts, which is not supported")
    try:
        config = _parse_gguf(kind, fields, vocabulary, tied, qkv_bias)
        window = fields.get(f"{kind}.attention.sliding_window")
        return _bound_by_window(config, int(window) if window else None)
    except KeyError as error:
        raise ModelProblem(f"the GGUF file's metadata lack {error}; fetch the file again") from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ModelProblem(f"the GGUF file's metadata can't be read ({error}); fetch it again") from None


def _parse_gguf(
    kind: str, fields: Mapping[str, Any], vocabulary: int, tied: bool, qkv_bias: bool
) -> ModelConfig:
    scaling = str(fields.get(f"{kind}.rope.scaling.type", "none"))
    if scaling != "none":
        raise ModelProblem(f"rope scaling of type '{scaling}' in the GGUF file is not supported")
    heads, hidden = int(fields[f"{kind}.attention.head_count"]), int(fields[f"{kind}.embedding_length"])
    head_dim = int(fields.get(f"{kind}.attention.key_length") or hidden // heads)
    values = int(fields.get(f"{kind}.attention.value_length") or head_dim)
    rotated = int(fields.get(f"{kind}.rope.dimension_count") or head_dim)
    if values != head_dim or rotated != head_dim:
        raise ModelProblem(
            f"heads with {head_dim} key, {values} value and {rotated} rotated numbers are not supported; "
            "they must be equal"
        )
    return ModelConfig(
        architecture=kind,
        layers=int(fields[f"{kind}.block_count"]),
        hidden=hidden,
        intermediate=int(fields[f"{kind}.feed_forward_length"]),
        heads=heads,
        kv_heads=int(fields.get(f"{kind}.attention.head_count_kv") or heads),
        head_dim=head_dim,
        vocabulary=vocabulary,
        max_positions=int(fields[f"{kind}.context_length"]),
        rms_eps=float(fields[f"{kind}.attention.layer_norm_rms_epsilon"]),
        rope_theta=float(fields.get(f"{kind}.rope.freq_base") or 10_000.0),
        rope_scaling=None,  # GGUF carries Llama 3's as a tensor of divisors, rope_freqs
        tied=tied,
        qkv_bias=qkv_bias,
        output_bias=False,
        mlp_bias=False,
        qk_norm=ARCHITECTURES[kind][1],
    )
