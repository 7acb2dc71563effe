"""What `tests/bench/gpu.py` compares an engine on a card with: that it is right, and that it can tell a fault."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.model.store import ModelFiles, resolve
from engine.model.weights import load
from tests.bench import gpu_engine
from tests.support import tiny_models
from tests.support.tiny_directory import make_directory


@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_the_reference_is_transformers(tmp_path: Path, kind: str):
    oracle = tiny_models.save(tmp_path, kind, tied=False)
    if kind == "llama3":  # the bench's models have no biases beyond q, k and v
        oracle = tiny_models.save(tmp_path, kind, tied=False, mlp_bias=False)
    files = ModelFiles("hf", tmp_path, tmp_path, "tiny")
    config, weights = load(files, torch.float32, torch.device("cpu"))
    tokens = list(range(60))
    logits = gpu_engine.dense(config, weights, torch.tensor(tokens))
    torch.testing.assert_close(logits, tiny_models.logits(oracle, tokens), rtol=1e-5, atol=2e-5)


def test_a_wrong_token_is_seen(tmp_path: Path):
    make_directory(tmp_path)
    config, weights = load(resolve(str(tmp_path)), torch.float32, torch.device("cpu"))
    prompt, output = [1, 2, 3], []
    for _ in range(5):
        output.append(int(gpu_engine.dense(config, weights, torch.tensor(prompt + output))[-1].argmax()))
    assert gpu_engine.check(str(tmp_path), [prompt], [output]).equal
    output[2] = (output[2] + 1) % tiny_models.VOCABULARY
    assert not gpu_engine.check(str(tmp_path), [prompt], [output]).equal
