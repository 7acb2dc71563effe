"""The settings in force as command-line flags: ours and vLLM's. Pure text, no Qt."""

from __future__ import annotations

import json
import shlex
from itertools import accumulate
from operator import mul

import msgspec

from engine.config import AUTO, LiveSettings

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_VLLM_DTYPES = ("float32", "bfloat16")  # of ours; its 'auto' takes what the checkpoint says


def ours(settings: LiveSettings, block_size: int, model: str = "default", dtype: str = "auto") -> str:
    """One line that starts Servescope with these settings."""
    words = ["servescope"] + (["--model", model] if model != "default" else [])
    words += ["--dtype", dtype] if dtype != "auto" else []
    for key, value in (msgspec.structs.asdict(settings) | {"block_size": block_size}).items():
        text = "auto" if key == "token_budget" and value == AUTO else _plain(value)
        if text:  # what is empty from the start need not be said
            words += ["--set", f"{key}={text}"]
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
    if speculation := _speculation(settings):
        words += ["--speculative-config", json.dumps(speculation)]
    sampling = {key: getattr(settings, key) for key in _SAMPLING}
    words += ["--override-generation-config", json.dumps(sampling)]
    return shlex.join(words)


def both(settings: LiveSettings, block_size: int, model: str, name: str, dtype: str) -> str:
    """What 'Copy settings' puts on the clipboard."""
    mine, theirs = ours(settings, block_size, model, dtype), vllm(settings, block_size, name, dtype)
    lacks = "".join(f"# {line}\n" for line in not_vllms(settings))
    return f"# Servescope\n{mine}\n\n# vLLM\n{lacks}{theirs}\n"


def not_vllms(settings: LiveSettings) -> list[str]:
    """What of the drafting vLLM has nothing like, a line each."""
    if not _drafts(settings):
        return []
    lines = []
    if settings.draft_method not in _VLLM_METHODS:
        lines.append(f"it has no drafts like '{settings.draft_method}' for this model: it would run without")
    elif settings.draft_policy == "adaptive":
        lines.append("it drafts as many each time; here that is the most")
    return lines


_VLLM_METHODS = {"ngram": "ngram", "suffix": "suffix", "model": "draft_model"}  # by ours


def _drafts(settings: LiveSettings) -> bool:
    return settings.draft_method != "off" and settings.draft_length > 0


def _speculation(settings: LiveSettings) -> dict[str, object]:
    """As vLLM has it; empty for none."""
    if not _drafts(settings) or settings.draft_method not in _VLLM_METHODS:
        return {}
    method, count = settings.draft_method, settings.draft_length
    found: dict[str, object] = {"method": _VLLM_METHODS[method], "num_speculative_tokens": count}
    if method == "ngram":
        found |= {"prompt_lookup_min": settings.ngram_min, "prompt_lookup_max": settings.ngram_max}
    if method == "model":
        found |= {"model": settings.draft_model, "draft_sample_method": settings.draft_sampling}
    if rates := settings.simulated_acceptance:
        # ours are of the drafts examined at a position, theirs of all passes
        each = [rates[min(place, len(rates) - 1)] for place in range(count)]
        found |= {
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": [round(rate, 6) for rate in accumulate(each, mul)],
        }
    return found


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_plain, value))
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
