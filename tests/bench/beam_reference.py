"""What transformers' beam search finds for the default model, kept in beam_reference.json so that tests needn't wait.

    python -m tests.bench.beam_reference [--threads N]

Runs `generate` in float32 on transformers' own reading of the model (`app.bench.oracle`), for every prompt with every
set of arguments, and writes the best sequences with their scores. Takes minutes. Summed log-probabilities are taken
again from one whole pass over prompt and sequence, in float64, so that they stand apart from the search's arithmetic.
Without transformers it says so and leaves the kept file as it is.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KEPT = Path(__file__).with_suffix(".json")
NEW_TOKENS = 24
# (text, whether it is asked in the model's chat format): answers that end soon, answers that don't, plain continuations
PROMPTS = (
    ("What is the capital of France?", True),
    ("Answer with one word: what colour is a ripe banana?", True),
    ("What is two plus two?", True),
    ("Say hello.", True),
    ("Translate 'good morning' into Spanish.", True),
    ("Name three primary colours, separated by commas, and nothing else.", True),
    ("How do noise-cancelling headphones work?", True),
    ("Write a haiku about the sea.", True),
    ("The lighthouse keeper found a letter in a bottle. It said:", False),
    ("def fibonacci(n):\n    ", False),
    ("Once upon a time", False),
    ("1, 2, 3, 5, 8, 13,", False),
)


class Arguments(msgspec.Struct, frozen=True):
    """What generate is asked for, beside greedy candidates and NEW_TOKENS."""

    width: int
    length_penalty: float
    early_stopping: bool | Literal["never"]

    def __str__(self) -> str:
        return f"{self.width} beams, penalty {self.length_penalty}, early stopping {self.early_stopping}"


ARGUMENTS = (
    Arguments(2, 1.0, False),
    Arguments(4, 1.0, False),
    Arguments(8, 0.6, "never"),
    Arguments(2, 0.0, "never"),
    Arguments(4, 0.6, True),
    Arguments(8, 2.0, True),
)


class Prompt(msgspec.Struct, frozen=True):
    text: str
    chat: bool
    ids: list[int]


class Run(msgspec.Struct, frozen=True):
    """The best sequence after one prompt; its ending token included, where it has one."""

    prompt: int  # index
    arguments: Arguments
    tokens: list[int]
    score: float  # transformers' own, float32: summed log-probability ÷ tokens ^ penalty
    logprob: float  # summed, float64, from one whole pass


class Kept(msgspec.Struct, frozen=True):
    transformers: str
    torch: str
    new_tokens: int
    eos_ids: list[int]
    prompts: list[Prompt]
    runs: list[Run]


@cache
def kept() -> Kept:
    return msgspec.json.decode(KEPT.read_bytes(), type=Kept)


def summed_logprob(model: PreTrainedModel, prompt: list[int], tokens: list[int]) -> float:
    """Of `tokens` after `prompt`, by one whole pass."""
    import torch

    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    logprobs = logits.double().log_softmax(dim=-1)  # (tokens, vocabulary)
    return float(logprobs[torch.arange(len(tokens)), torch.tensor(tokens)].sum())


def best_sequence(
    model: PreTrainedModel, prompt: list[int], arguments: Arguments, new_tokens: int, eos_ids: list[int]
) -> tuple[list[int], float]:
    """Transformers' best sequence after the prompt, cut after its ending token, and its score."""
    import torch

    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_beams=arguments.width,
        length_penalty=arguments.length_penalty,
        early_stopping=arguments.early_stopping,
        max_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=eos_ids or None,
        pad_token_id=eos_ids[0] if eos_ids else 0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    tokens = out.sequences[0, len(prompt) :].tolist()
    ends = [i + 1 for i, token in enumerate(tokens) if token in eos_ids]
    return tokens[: min(ends, default=len(tokens))], float(out.sequences_scores[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=0, help="0: torch's choice")
    asked = parser.parse_args()
    if importlib.util.find_spec("transformers") is None:
        print(f"transformers is not installed, so {KEPT.name} stays as it is: pip install -e '.[test]'")
        return 0
    import torch
    import transformers

    from app.bench import oracle
    from engine.model.store import resolve
    from engine.records import Request
    from engine.tokenizer import Tokenizer

    transformers.logging.set_verbosity_error()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    path = resolve("default").path
    tokenizer = Tokenizer.load(Path(path))
    model = oracle.load(str(path))
    eos_ids = sorted(tokenizer.eos_ids)
    prompts = [
        Prompt(text, chat, tokenizer.encode_request(Request(number=i, prompt=text, raw=not chat)))
        for i, (text, chat) in enumerate(PROMPTS)
    ]
    runs = []
    started = time.perf_counter()
    for i, prompt in enumerate(prompts):
        for arguments in ARGUMENTS:
            tokens, score = best_sequence(model, prompt.ids, arguments, NEW_TOKENS, eos_ids)
            runs.append(Run(i, arguments, tokens, score, summed_logprob(model, prompt.ids, tokens)))
            print(f"{time.perf_counter() - started:5.0f} s  {arguments}: {tokenizer.decode(tokens)!r}", flush=True)
    found = Kept(transformers.__version__, str(torch.__version__), NEW_TOKENS, eos_ids, prompts, runs)
    KEPT.write_bytes(as_lines(found))
    return 0


def as_lines(found: Kept) -> bytes:
    """One line a prompt and a run, so that two versions can be compared."""
    fields = []
    for name, value in msgspec.to_builtins(found).items():
        if name in ("prompts", "runs"):
            rows = b",\n".join(msgspec.json.encode(row) for row in value)
            fields.append(f'"{name}": [\n'.encode() + rows + b"\n]")
        else:
            fields.append(f'"{name}": '.encode() + msgspec.json.encode(value))
    return b"{\n" + b",\n".join(fields) + b"\n}\n"


if __name__ == "__main__":
    sys.exit(main())
