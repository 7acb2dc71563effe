"""The CUDA runner on its own kernels, interpreted: the engine's whole course with chunks and overlap, on a model as
small as kernels allow. What it gives is token-equal to the CPU runner's. Drafts, and all other settings that exactness
is shown under, are in tests/kernels/test_interpreted_matrix.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from app.bench.equality import Reference, compare
from engine.config import LiveSettings, limits
from engine.core import Engine
from engine.runner.cuda_ops import kernel_ops
from engine.runner.pooled import PooledRunner
from engine.sampler import Sampler
from engine.speculation.proposer import Lookup
from tests.support.cuda_on_cpu import on_cpu, plain, tiny
from tests.support.paged import Driven, Driver
from tests.support.served import serve
from tests.support.tiny_models import VOCABULARY

NEW_TOKENS = 5
SMALL = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def references(config, weights, prompts: list[list[int]], new_tokens: int = NEW_TOKENS) -> list[Reference]:
    """By the CPU runner, one prompt at a time, a token a pass."""
    found = []
    for prompt in prompts:
        driver, sequence = Driver(plain(config, weights, 16, 8)), Driven(list(prompt))
        gaps = []
        for _ in range(new_tokens):
            logits = driver.run([(sequence, len(sequence.tokens) - sequence.computed)])[0][-1].topk(2)
            gaps.append(float(logits.values[0] - logits.values[1]))
            sequence.tokens.append(int(logits.indices[0]))
        found.append(Reference(prompt, sequence.tokens[len(prompt) :], gaps))
    return found


class Knowing(Lookup):
    """Drafts what will come; of every other draft the last token is wrong."""

    def __init__(self, references: list[Reference]):
        self._whole = [reference.prompt + reference.tokens for reference in references]

    def follow(self, seq: int, tokens: list[int], limit: int) -> list[int]:
        draft = self._whole[seq - 1][len(tokens) :][:limit]
        if draft and len(tokens) % 2:
            draft[-1] = (draft[-1] + 1) % VOCABULARY
        return draft

    def forget(self, seq: int) -> None:
        return None


def engine_on(runner: PooledRunner, settings: LiveSettings, overlap: bool, known: list[Reference]) -> Engine:
    runner.resize(settings.kv_blocks)
    return Engine(
        runner,
        settings,
        Sampler(runner.model.vocabulary),
        bounds=limits(runner.model, runner.block_size, 1 << 16),
        proposers={"ngram": lambda settings: Knowing(known)},
        launcher=runner if overlap else None,
    )


@pytest.mark.slow
def test_token_equal_while_steps_overlap(tmp_path):
    config, weights = tiny(tmp_path, "qwen3", **SMALL)
    phrase = np.random.default_rng(1).integers(0, VOCABULARY, 5).tolist()
    prompts = [(phrase * 3)[:14], phrase, phrase[2:3]]
    settings = LiveSettings(
        max_batch=4, max_context=64, kv_blocks=16, token_budget=12, draft_length=0, draft_method="off", temperature=0.0
    )
    graphed = overlapped = 0

    def between(step, record) -> None:
        nonlocal graphed, overlapped
        graphed, overlapped = graphed + record.graph, overlapped + record.overlapped

    known = references(config, weights, prompts)
    engine = engine_on(on_cpu(config, weights, 16, ops=kernel_ops(), most_tokens=12), settings, True, known)
    outputs, _ = serve(engine, prompts, NEW_TOKENS, between)
    report = compare(outputs, known)
    assert report.equal, str(report)
    assert graphed > 0 and overlapped > 1
