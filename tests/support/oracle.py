"""The reference outputs of the default model, made once a session, and the model's path.

transformers' own GGUF loading in float32, dense and greedy: see `app.bench.oracle`, whose functions run in the
test's process here.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from app.bench import oracle
from app.bench.equality import Reference
from engine.model.store import resolve
from engine.tokenizer import Tokenizer


@cache
def default_model() -> str:
    """Path of the default model's file; fetched the first time."""
    return str(resolve("default").path)


@cache
def references() -> list[Reference]:
    """20 prompts of 5 to 600 tokens with the 64 tokens that follow each."""
    path = default_model()
    tokenizer = Tokenizer.load(Path(path))  # any ids will do for a prompt; transformers' takes 7 s to load
    return oracle.greedy(oracle.load(path), oracle.prompts(lambda text: tokenizer.encode(text, add_special=False)))
