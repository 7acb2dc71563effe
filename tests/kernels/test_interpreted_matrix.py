"""The engine on the CUDA runner on its own kernels, interpreted, over the exactness matrix: token-equal to the CPU
runner, on a model of one layer as small as kernels allow.

The drafts come from who knows the output, and are wrong now and then. With formulas in place of kernels a larger model
and longer prompts take the same course (tests/engine/test_cuda_runner.py).
"""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from app.bench.combinations import FULL, Combination
from app.bench.equality import compare
from engine.records import DRAFT, VERDICTS, unpack
from engine.runner import kernel_runner
from engine.runner.cuda_ops import kernel_ops
from tests.kernels.test_cuda_runner import SMALL, engine_on, references
from tests.support.cuda_on_cpu import on_cpu, tiny
from tests.support.served import serve
from tests.support.tiny_models import VOCABULARY

NEW_TOKENS = 8
LENGTHS = (31, 30, 27, 2)  # of prompts, in tokens: two soon need another block of either size
FEW = slice(0, None, 2)  # of the prompts, where nobody is to be preempted: still more than the smaller budget
ROOMY = 512  # tokens in the pool
TIGHT = 4  # blocks, the fewest that there may be
SMALLEST = SMALL | {"num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A model, and what the CPU runner makes of the prompts: alone, a token a pass."""
    config, weights = tiny(tmp_path_factory.mktemp("model"), "qwen3", **SMALLEST)
    chance = np.random.default_rng(1)
    prompts = [chance.integers(0, VOCABULARY, length).tolist() for length in LENGTHS]
    return config, weights, references(config, weights, prompts, NEW_TOKENS)


@pytest.mark.slow
@pytest.mark.parametrize("combination", FULL, ids=str)
def test_token_equal_over_the_matrix_on_interpreted_kernels(
    course, combination: Combination, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kernel_runner, "CAPTURED_AT", 1)  # few steps are of one shape
    config, weights, known = course
    if not combination.preempt:
        known = known[FEW]
    blocks = TIGHT if combination.preempt else ROOMY // combination.block_size
    settings = replace(combination.settings(), kv_blocks=blocks, max_context=64)
    runner = on_cpu(config, weights, combination.block_size, ops=kernel_ops(), most_tokens=24)
    engine = engine_on(runner, settings, False, known)
    graphed = 0
    verdicts: set[str] = set()

    def between(step, record) -> None:
        nonlocal graphed
        graphed += record.graph
        verdicts.update(VERDICTS[verdict] for verdict in unpack(record.drafts, DRAFT)["verdict"])
        if combination.preempt and combination.batch == 1 and step % 8 in (3, 6):
            engine.change({"max_batch": 2 if step % 8 == 3 else 1})

    outputs, preempted = serve(engine, [reference.prompt for reference in known], NEW_TOKENS, between)
    report = compare(outputs, known)
    assert report.equal, str(report)
    assert (preempted > 0) == combination.preempt
    assert graphed > 0 and verdicts >= ({"accepted", "rejected"} if combination.gamma else set())
