"""The reference of the exactness bench: transformers' own model and loader, dense, greedy, in float32.

Runs as a process of its own (`python -m app.bench.oracle`), because the program's other processes stay free of
transformers. Nothing of the engine is used, least of all its loader: a GGUF file is read by transformers' GGUF
reader, which undoes the permutation of q and k rows its own way. A request on standard input, references on
standard output, both JSON.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from app.bench.equality import Reference

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Lengths at, just under and just over block boundaries, from 5 to 600 tokens; prompts of one length form a batch
# without padding, which no reference needs to be trusted with.
LENGTHS = (5, 16, 65, 255, 600)
PER_LENGTH = 4
NEW_TOKENS = 64
MISSING = "the exactness bench compares with transformers, which is not installed: pip install 'servescope[test]'"


class Job(msgspec.Struct, frozen=True):
    """What a reference process is asked for."""

    model: str  # a .gguf file or a Hugging Face directory
    texts: list[str]
    new_tokens: int = NEW_TOKENS
    threads: int = 0  # 0 = torch's choice


def load(path: str) -> PreTrainedModel:
    """The checkpoint in float32, weights dequantised straight to it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if not path.endswith(".gguf"):
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    file = Path(path)
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    # what from_pretrained(gguf_file=…) calls; called here because that asks for accelerate, which it doesn't use then
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise RuntimeError(f"transformers could not place every tensor: missing {missing}, unexpected {unexpected}")
    return model


def tokenizer(path: str) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    file = Path(path)
    if path.endswith(".gguf"):
        return AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    return AutoTokenizer.from_pretrained(path)


def prompts(ids: Sequence[int], seed: int = 1) -> list[list[int]]:
    """PER_LENGTH stretches of each length out of one long text, at places drawn once and for all."""
    if len(ids) < max(LENGTHS):
        raise ValueError(f"{len(ids)} tokens of text, {max(LENGTHS)} are needed")
    rng = random.Random(seed)
    cut = []
    for length in LENGTHS:
        for _ in range(PER_LENGTH):
            start = rng.randrange(len(ids) - length + 1)
            cut.append(list(ids[start : start + length]))
    return cut


def greedy(model: PreTrainedModel, prompts: Sequence[Sequence[int]], new_tokens: int = NEW_TOKENS) -> list[Reference]:
    """Greedy output of each prompt, end-of-sequence ignored, prompts of equal length together."""
    groups: dict[int, list[int]] = {}
    for i, prompt in enumerate(prompts):
        groups.setdefault(len(prompt), []).append(i)
    found: dict[int, Reference] = {}
    for members in groups.values():
        tokens, gaps = _generate(model, [list(prompts[i]) for i in members], new_tokens)
        for row, i in enumerate(members):
            found[i] = Reference(list(prompts[i]), tokens[row], gaps[row])
    return [found[i] for i in range(len(prompts))]


def _generate(
    model: PreTrainedModel, batch: list[list[int]], new_tokens: int
) -> tuple[list[list[int]], list[list[float]]]:
    """Tokens and gaps, (prompts, new_tokens) each: one whole pass over the prompts, then cached decoding."""
    import torch

    tokens, gaps = [], []
    with torch.inference_mode():
        ids = torch.tensor(batch)  # (prompts, length)
        cache = None
        for _ in range(new_tokens):
            out = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            best = out.logits[:, -1].topk(2, dim=-1)  # (prompts, 2)
            cache, ids = out.past_key_values, best.indices[:, :1]
            tokens.append(ids[:, 0])
            gaps.append(best.values[:, 0] - best.values[:, 1])
    return torch.stack(tokens, dim=1).tolist(), torch.stack(gaps, dim=1).tolist()


def main() -> None:
    """One Job in, a list of References out; exit code 3 when transformers is missing."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    try:
        import torch
        import transformers
    except ImportError:
        sys.exit(3)
    transformers.logging.set_verbosity_error()
    if job.threads:
        torch.set_num_threads(job.threads)
    ids = tokenizer(job.model)("\n\n".join(job.texts), add_special_tokens=False)["input_ids"]
    references = greedy(load(job.model), prompts(ids), job.new_tokens)
    print(json.dumps(msgspec.to_builtins(references)))


if __name__ == "__main__":
    main()
