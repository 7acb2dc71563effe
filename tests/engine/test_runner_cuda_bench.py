"""The CUDA bench itself, where there may be no card: what it says then, and that its reference can tell a fault."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from engine.model.store import ModelFiles, resolve
from engine.model.weights import load
from tests.bench import gpu
from tests.support import tiny_models
from tests.support.tiny_directory import make_directory


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    monkeypatch.setattr(sys, "argv", ["gpu", *arguments])
    status = gpu.main()
    return status, json.loads(capsys.readouterr().out)


def test_without_a_card_it_is_unmeasured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status, said = run(monkeypatch, capsys)
    assert status == 0 and said["cuda"] == "unmeasured"


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_on_the_cpu_a_tiny_model_is_equal(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    make_directory(tmp_path, kind)
    monkeypatch.setattr(gpu, "SETTINGS", gpu.LiveSettings(max_context=256, kv_blocks=64))
    status, said = run(monkeypatch, capsys, "--model", str(tmp_path), "--device", "cpu", "--new-tokens", "20")
    assert status == 0 and said["token_equal"] and said["prompts"] == 5


@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_the_reference_is_transformers(tmp_path: Path, kind: str):
    oracle = tiny_models.save(tmp_path, kind, tied=False)
    if kind == "llama3":  # the bench's models have no biases beyond q, k and v
        oracle = tiny_models.save(tmp_path, kind, tied=False, mlp_bias=False)
    files = ModelFiles("hf", tmp_path, tmp_path, "tiny")
    config, weights = load(files, torch.float32, torch.device("cpu"))
    tokens = list(range(60))
    torch.testing.assert_close(
        gpu.dense(config, weights, torch.tensor(tokens)), tiny_models.logits(oracle, tokens), rtol=1e-5, atol=2e-5
    )


def test_a_wrong_token_is_seen(tmp_path: Path):
    make_directory(tmp_path)
    config, weights = load(resolve(str(tmp_path)), torch.float32, torch.device("cpu"))
    prompt, output = [1, 2, 3], []
    for _ in range(5):
        output.append(int(gpu.dense(config, weights, torch.tensor(prompt + output))[-1].argmax()))
    assert gpu.check(str(tmp_path), [prompt], [output]).equal
    output[2] = (output[2] + 1) % tiny_models.VOCABULARY
    assert not gpu.check(str(tmp_path), [prompt], [output]).equal
