"""The default model in float32 has the logits of transformers, which reads the GGUF file its own way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from engine.config import EngineConfig, LiveSettings
from engine.model.store import resolve
from engine.runner.base import Runner
from engine.runner.build import build_runner
from tests.support import oracle, tiny_models
from tests.support.paged import Driven, Driver

# early: it makes the references too, since it has transformers' model, and others wait for them
pytestmark = [pytest.mark.slow(seconds=90), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def runner() -> Runner:
    config = EngineConfig(dtype="float32", device="cpu", settings=LiveSettings(kv_blocks=64))
    return build_runner(config, resolve("default"))


@pytest.fixture(scope="module")
def reference(shared_folder: Path) -> Iterator[PreTrainedModel]:
    oracle.references(shared_folder)
    yield oracle.model()
    oracle.model.cache_clear()  # nobody else needs it, and it's half a gigabyte


def test_the_model_is_what_its_name_says(runner: Runner, reference: PreTrainedModel):
    model = runner.model
    assert (model.layers, model.heads, model.kv_heads, model.head_dim, model.vocabulary) == (30, 9, 3, 64, 49_152)
    assert model.parameters == reference.num_parameters() == 134_515_008


@pytest.mark.parametrize("chunks", [(190,), (64, 64, 40, 1, 1, 5, 15)])
def test_logits(runner: Runner, reference: PreTrainedModel, chunks: tuple[int, ...]):
    """Real text; within what transformers differs from itself between a whole pass and cached decoding."""
    prompts = [p[:190] for p in oracle.prompts() if len(p) >= 190][:3]
    driver = Driver(runner)
    sequences = [Driven(prompt) for prompt in prompts]
    parts = [driver.run([(s, n) for s in sequences]) for n in chunks]
    for row, prompt in enumerate(prompts):
        got = torch.cat([part[row] for part in parts])  # (190, V)
        wanted = tiny_models.logits(reference, prompt)
        assert (got - wanted).abs().max() < 2e-4
        assert (got.argmax(-1) == wanted.argmax(-1)).all()
