"""Greedy output over packed weights is equal in every token, whatever the batch, the budget and γ.

A row's bits don't depend on what is computed beside it there, so nothing is allowed for: the float32 engine's near-ties
can't occur. Two runs that differ in all three settings, over half of the prompts; `servescope bench exactness --dtype`
runs the whole cover over all. Real model, runner and engine in this process.
"""

from __future__ import annotations

import gc
from functools import cache
from pathlib import Path

import pytest

from app.bench import oracle
from app.bench.combinations import LONGEST, ROOMY
from engine.config import LiveSettings
from engine.model.packed_weights import load_packed
from engine.model.store import resolve
from engine.runner.packed import PackedRunner
from engine.tokenizer import Tokenizer
from tests.support.served import serve, start

BLOCK_SIZE = 16
RUNS = {  # batch, budget, γ
    "file": [(16, 512, 0), (4, 32, 4)],
    "int8": [(16, 512, 0), (4, 32, 4)],
}


@cache
def prompts() -> list[list[int]]:
    """10 of 5 to 600 tokens."""
    tokenizer = Tokenizer.load(Path(resolve("default").path))
    return oracle.prompts(lambda text: tokenizer.encode(text, add_special=False))[::2]


@pytest.fixture(autouse=True)
def collected():
    """An engine holds what holds it: the runner's threads end when it is collected."""
    yield
    gc.collect()


@pytest.mark.slow(seconds=20)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("form", RUNS)
def test_every_token_is_equal_under_any_batch_budget_and_draft_length(form: str):
    runner = PackedRunner(*load_packed(resolve("default"), form), "default", 2, BLOCK_SIZE, 4)
    found = {}
    for batch, budget, gamma in RUNS[form]:
        settings = LiveSettings(
            max_batch=batch,
            max_context=LONGEST,
            kv_blocks=ROOMY // BLOCK_SIZE,
            token_budget=budget,
            draft_length=gamma,
            draft_method="ngram" if gamma else "off",
            prefix_cache=gamma > 0,
            temperature=0.0,
        )
        found[batch, budget, gamma], _ = serve(start(runner, settings), prompts(), oracle.NEW_TOKENS)
    first = found[RUNS[form][0]]
    assert all(len(output) == oracle.NEW_TOKENS for output in first)
    assert len({tuple(output) for output in first}) > 5
    for run, outputs in found.items():
        assert outputs == first, run
