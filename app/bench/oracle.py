"""The reference of the exactness bench: transformers' own model and loader, dense, greedy, in float32.

Runs as a process of its own (`python -m app.bench.oracle MODEL`), because the program's other processes stay free of
transformers. Nothing of the engine is used but its search for the model file, least of all its loader: a GGUF file
is read by transformers' GGUF reader, which undoes the permutation of q and k rows its own way. References go to
standard output as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from app.bench.equality import Reference
from app.workload.prompts import PromptSet
from engine.model.store import resolve

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# At a block's end, just past one, just under one, from 5 to 600 tokens. Prompts of one length form a batch without
# padding, which a reference shouldn't have to be trusted with.
LENGTHS = (5, 16, 65, 255, 600)
KINDS = ("chat", "code", "summary", "edit")  # a text each; its prompts begin alike, so that prefixes are shared
NEW_TOKENS = 64

Tokenize = Callable[[str], list[int]]


def load(path: str) -> PreTrainedModel:
    """The checkpoint in float32, weights dequantised straight to it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if not path.endswith(".gguf"):
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    from transformers.initialization import no_init_weights
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    file = Path(path)
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    # what from_pretrained(gguf_file=…) calls; called here because that asks for accelerate, which it doesn't use then
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise RuntimeError(f"transformers could not place every tensor: missing {missing}, unexpected {unexpected}")
    return model


def tokenizer(path: str) -> Tokenize:
    """Transformers' own tokenizer of the checkpoint, without special tokens."""
    from transformers import AutoTokenizer

    file = Path(path)
    if path.endswith(".gguf"):
        loaded = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    else:
        loaded = AutoTokenizer.from_pretrained(path)
    return lambda text: loaded(text, add_special_tokens=False)["input_ids"]


def texts() -> list[str]:
    """One long text a kind: the built-in prompts of that kind, then all others."""
    built_in = PromptSet.load().prompts
    return ["\n\n".join(p.text for p in sorted(built_in, key=lambda p: p.kind != kind)) for kind in KINDS]


def cuts() -> list[tuple[int, int]]:
    """Each prompt: which text it begins, and its tokens; lengths mixed, so that batches are."""
    return [((i + j) % len(KINDS), length) for i in range(len(KINDS)) for j, length in enumerate(LENGTHS)]


def prompts(tokenize: Tokenize) -> list[list[int]]:
    """The beginning of each text, in each length."""
    ids = [tokenize(text) for text in texts()]
    return [ids[text][:length] for text, length in cuts()]


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
        past = None
        for _ in range(new_tokens):
            out = model(input_ids=ids, past_key_values=past, use_cache=True, logits_to_keep=1)
            best = out.logits[:, -1].topk(2, dim=-1)  # (prompts, 2)
            past, ids = out.past_key_values, best.indices[:, :1]
            tokens.append(ids[:, 0])
            gaps.append(best.values[:, 0] - best.values[:, 1])
    return torch.stack(tokens, dim=1).tolist(), torch.stack(gaps, dim=1).tolist()


def main() -> None:
    """MODEL and the number of threads (0: torch's choice) from the command line."""
    import torch
    import transformers

    model, threads = sys.argv[1], int(sys.argv[2])
    transformers.logging.set_verbosity_error()
    if threads:
        torch.set_num_threads(threads)
    path = str(resolve(model).path)
    references = greedy(load(path), prompts(tokenizer(path)))
    print(json.dumps({"references": msgspec.to_builtins(references)}))


if __name__ == "__main__":
    main()
