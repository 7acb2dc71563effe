"""Bytes of weights and cache by formula against real CPU runners, in every form of weights: equal to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as T

from engine import held
from engine.config import EngineConfig, LiveSettings
from engine.model.store import ModelFiles
from engine.model.tensor_plan import open_planned
from engine.runner.build import build_runner
from engine.shape import read_config
from tests.support import gguf_files, tiny_models

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 16}  # fmt: skip
FORMS = ("float32", "bfloat16", "int8")
BLOCKS = 12


def runner_of(files: ModelFiles, form: str):
    config = EngineConfig(dtype=form, device="cpu", threads=1, settings=LiveSettings(kv_blocks=BLOCKS))  # type: ignore[arg-type]
    return build_runner(config, files)


@pytest.fixture(scope="module")
def directories(tmp_path_factory) -> dict[tuple[str, bool], Path]:
    """Vocabulary 97: the head's last tile is never full."""
    home = tmp_path_factory.mktemp("models")
    found = {}
    for kind in tiny_models.KINDS:
        for tied in (False, True):
            path = home / f"{kind}-{tied}"
            tiny_models.save(path, kind, tied, **SIZES)
            found[kind, tied] = path
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_weights_are_explained_to_the_byte(directories, kind, tied, form):
    path = directories[kind, tied]
    runner = runner_of(ModelFiles("hf", path, path, "tiny"), form)
    try:
        weights = runner.memory().weights
        found = held.explain(runner.model, weights)
        assert found is not None and found.bytes == weights
        assert found.shape == read_config(path).shape  # found from its totals, it is the checkpoint's own
        assert all(part.bytes > 0 and part.name and part.why for part in found.parts)
    finally:
        getattr(runner, "close", lambda: None)()


@pytest.mark.parametrize("form", FORMS)
def test_the_pool_is_the_formula(directories, form):
    path = directories["llama", True]
    runner = runner_of(ModelFiles("hf", path, path, "tiny"), form)
    try:
        each = {"float32": 4}.get(form, 2)  # float16 beside weights in codes
        assert runner.model.kv_bytes_per_token == 2 * 3 * 2 * 16 * each
        assert runner.memory().kv_pool == BLOCKS * runner.block_size * runner.model.kv_bytes_per_token
    finally:
        getattr(runner, "close", lambda: None)()


@pytest.mark.parametrize("kind", [T.Q4_0, T.Q4_1, T.Q8_0])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_as_in_a_file(tmp_path, kind, tied):
    model = tiny_models.make(tiny_models.config_of("llama", tied, **SIZES))
    gguf_files.write(tmp_path / "model.gguf", model, kind)
    files = ModelFiles("gguf", tmp_path / "model.gguf", tmp_path / "model.gguf", "tiny")
    runner = runner_of(files, "file")
    try:
        weights = runner.memory().weights
        found = held.explain(runner.model, weights)
        assert found is not None and found.bytes == weights and found.shape.tied == tied
        assert found.shape.parameters == open_planned(files).parameters
        assert {part.name for part in found.parts} >= {"codes", "scales", "padding"}
    finally:
        getattr(runner, "close", lambda: None)()


def test_a_figure_that_nothing_explains_is_not_explained_away(directories):
    path = directories["qwen3", True]
    runner = runner_of(ModelFiles("hf", path, path, "tiny"), "bfloat16")
    weights = runner.memory().weights
    assert held.explain(runner.model, weights + 1) is None
    near = held.nearest(runner.model, weights + 1)
    assert near is not None and near.bytes == weights
