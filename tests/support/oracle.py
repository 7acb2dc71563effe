"""The default model in transformers and its reference outputs, and the model's path.

transformers' own GGUF loading in float32, dense and greedy: see `app.bench.oracle`, whose functions run in the
test's process here. The model is loaded once a process, the references are made once a run of the tests.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from filelock import FileLock

from app.bench import oracle
from app.bench.equality import Reference
from engine.model.store import resolve
from engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NEW_TOKENS = oracle.NEW_TOKENS


@cache
def default_model() -> str:
    """Path of the default model's file; fetched the first time."""
    return str(resolve("default").path)


@cache
def model() -> PreTrainedModel:
    """In float32; loading takes seconds."""
    return oracle.load(default_model())


@cache
def prompts() -> list[list[int]]:
    """20 prompts of 5 to 600 tokens. Any ids will do for a prompt: transformers' tokenizer takes 7 s to load."""
    tokenizer = Tokenizer.load(Path(default_model()))
    return oracle.prompts(lambda text: tokenizer.encode(text, add_special=False))


def references(folder: Path) -> list[Reference]:
    """The prompts with the tokens that follow each. The first process that asks makes them, into a folder that it
    shares with the others, who wait."""
    kept = folder / "references.msgpack"
    with FileLock(folder / "references.lock"):
        if not kept.exists():
            kept.write_bytes(msgspec.msgpack.encode(oracle.greedy(model(), prompts(), NEW_TOKENS)))
    return msgspec.msgpack.decode(kept.read_bytes(), type=list[Reference])
