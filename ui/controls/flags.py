"""The settings in force as command-line flags: ours and vLLM's. Pure text, no Qt."""

from __future__ import annotations

import json
import shlex

import msgspec

from engine.config import AUTO, LiveSettings

_VLLM_DTYPES = ("float32", "bfloat16")  # of ours; its 'auto' takes what the checkpoint says


def ours(settings: LiveSettings, block_size: int, model: str = "default", dtype: str = "auto") -> str:
    """One line that starts Servescope with these settings."""
    words = ["servescope"] + (["--model", model] if model != "default" else [])
    words += ["--dtype", dtype] if dtype != "auto" else []
    for key, value in (msgspec.structs.asdict(settings) | {"block_size": block_size}).items():
        words += ["--set", f"{key}={'auto' if key == 'token_budget' and value == AUTO else _plain(value)}"]
    return shlex.join(words)


def vllm(settings: LiveSettings, block_size: int, model: str, dtype: str = "auto") -> str:
    """One line that starts vLLM with what it has of these settings; it has no flag for the watermark, none that
    takes a form of weights other than floats, and no token budget found from times: it takes its own default then."""
    words = ["vllm", "serve", model, "--dtype", dtype if dtype in _VLLM_DTYPES else "auto"]
    words += ["--max-num-seqs", str(settings.max_batch)]
    words += ["--max-model-len", str(settings.max_context)]
    words += ["--num-gpu-blocks-override", str(settings.kv_blocks)]
    words += ["--block-size", str(block_size)]
    if settings.token_budget != AUTO:
        words += ["--max-num-batched-tokens", str(settings.token_budget)]
    words.append("--enable-chunked-prefill" if settings.chunked_prefill else "--no-enable-chunked-prefill")
    words.append("--enable-prefix-caching" if settings.prefix_cache else "--no-enable-prefix-caching")
    if settings.draft_method != "off" and settings.draft_length:
        speculation = {"method": settings.draft_method, "num_speculative_tokens": settings.draft_length}
        if settings.draft_method == "ngram":
            speculation |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
        words += ["--speculative-config", json.dumps(speculation)]
    sampling = {key: getattr(settings, key) for key in ("temperature", "top_k", "top_p", "min_p")}
    words += ["--override-generation-config", json.dumps(sampling)]
    return shlex.join(words)


def both(settings: LiveSettings, block_size: int, model: str, name: str, dtype: str) -> str:
    """What 'Copy settings' puts on the clipboard."""
    mine, theirs = ours(settings, block_size, model, dtype), vllm(settings, block_size, name, dtype)
    return f"# Servescope\n{mine}\n\n# vLLM\n{theirs}\n"


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
