"""A form's own greedy output: transformers' in float32, and its noise."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from app.bench import oracle
from engine.config import EngineConfig
from engine.model.problem import ModelProblem
from engine.own_greedy import Job, run
from tests.support import tiny_models
from tests.support.tiny_directory import make_directory

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 16}  # fmt: skip
CUTS = [(0, 5), (1, 16), (0, 40)]
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return make_directory(tmp_path_factory.mktemp("tiny"), **SIZES)


def job(directory: Path, dtype: str) -> Job:
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{i}" for i in rng.integers(0, tiny_models.VOCABULARY, 50)) for _ in range(2)]
    return Job(EngineConfig(model=str(directory), dtype=dtype, device="cpu", threads=1), texts, CUTS, NEW_TOKENS)


def test_in_float32_it_is_transformers(directory: Path):
    answer = run(job(directory, "float32"))
    prompts = [reference["prompt"] for reference in answer["references"]]
    assert [len(prompt) for prompt in prompts] == [length for _, length in CUTS] and prompts[2][:5] == prompts[0]
    model = tiny_models.make(tiny_models.config_of("llama", tied=True, **SIZES))
    for mine, wanted in zip(answer["references"], oracle.greedy(model, prompts, NEW_TOKENS), strict=True):
        assert mine["tokens"] == wanted.tokens
        np.testing.assert_allclose(mine["gaps"], wanted.gaps, atol=1e-4)
    assert 0 <= answer["noise"] < 1e-4 and answer["form"] == "float32"


def test_noise_of_the_forms(directory: Path):
    """In the compiled program a row depends on nothing beside it."""
    assert run(job(directory, "int8"))["noise"] == 0
    assert run(job(directory, "bfloat16"))["noise"] == 0


def test_a_form_that_cannot_be_had(directory: Path):
    with pytest.raises(ModelProblem, match="file"):
        run(msgspec.structs.replace(job(directory, "file")))
