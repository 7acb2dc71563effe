"""Perplexity is what transformers' own loss says, however the text is cut into passes; comparisons are torch's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine import likelihood
from engine.config import EngineConfig, LiveSettings
from engine.job import answer
from engine.likelihood import Job, Scores, compare, figures, run, score, shares, windows
from engine.model.problem import ModelProblem
from engine.model.store import resolve
from engine.runner.base import Runner
from engine.runner.build import build_runner
from tests.support import tiny_models
from tests.support.tiny_directory import make_directory

LENGTHS = {"one": 150, "two": 71}  # tokens; neither a multiple of the window
WINDOW = 32


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return make_directory(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def oracle():
    """The model in `directory`: `make_directory` draws the same weights each time."""
    return tiny_models.make(tiny_models.config_of("llama", tied=True))


@pytest.fixture(scope="module")
def tokens() -> dict[str, list[int]]:
    rng = np.random.default_rng(3)
    return {name: rng.integers(0, tiny_models.VOCABULARY, length).tolist() for name, length in LENGTHS.items()}


@pytest.fixture
def job(directory: Path, tokens: dict[str, list[int]], tmp_path: Path) -> Job:
    texts = {}
    for name, ids in tokens.items():
        path = tmp_path / f"{name}.txt"
        path.write_text(" ".join(f"w{i}" for i in ids), "utf-8")
        texts[name] = str(path)
    config = EngineConfig(model=str(directory), device="cpu", threads=1)
    return Job(config, forms=["bfloat16"], optional=False, texts=texts, window=WINDOW, chunk=0, most=0)


def runner_of(directory: Path, dtype: str = "float32", blocks: int = 8) -> Runner:
    config = EngineConfig(dtype=dtype, device="cpu", threads=1, settings=LiveSettings(kv_blocks=blocks))
    return build_runner(config, resolve(str(directory)))


def losses(oracle, tokens: list[int], size: int) -> list[tuple[float, int]]:
    """transformers' own mean loss of each window, and how many tokens it predicted."""
    found = []
    for start in range(0, len(tokens) - 1, size):
        ids = torch.tensor([tokens[start : start + size + 1]])
        with torch.no_grad():
            found.append((oracle(input_ids=ids, labels=ids).loss.item(), ids.shape[1] - 1))
    return found


@pytest.mark.parametrize("chunk", [0, 1, 7, WINDOW])
def test_perplexity_is_that_of_transformers_loss(job: Job, oracle, tokens, chunk: int):
    answer = run(msgspec.structs.replace(job, chunk=chunk))
    reference = answer["forms"][0]
    of_texts = {name: losses(oracle, ids, WINDOW) for name, ids in tokens.items()}
    for name, of in [*of_texts.items(), (None, [pair for pairs in of_texts.values() for pair in pairs])]:
        mean = sum(loss * count for loss, count in of) / sum(count for _, count in of)
        found = reference["texts"][name] if name else reference
        assert found["perplexity"] == pytest.approx(np.exp(mean), rel=1e-5)
        assert found["scored"] == sum(count for _, count in of)
    assert reference["form"] == "float32" and reference["ratio"] == 1 and reference["kl_nats"] == 0
    assert reference["same_top_1"] == 1 and reference["standard_error_percent"] == 0
    assert answer["texts"] == LENGTHS and answer["window"] == WINDOW and answer["chunk"] == (chunk or WINDOW)


def test_another_form_differs_by_its_rounding(job: Job):
    reference, other = run(job)["forms"]
    assert other["form"] == "bfloat16"
    assert 0 < abs(other["difference_percent"]) < 2
    assert 0 < other["kl_nats"] < 0.01 and 0.8 < other["same_top_1"] <= 1
    assert other["ratio"] == pytest.approx(other["perplexity"] / reference["perplexity"])
    assert other["weight_bytes"] < reference["weight_bytes"]


def test_what_goes_before_a_text_is_read_and_not_scored(directory: Path, oracle, tokens):
    ids, prefix = tokens["two"], [5, 9]
    runners = {"float32": runner_of(directory)}
    for chunk in (0, 1, 5):
        found = score(runners, ids, WINDOW, chunk, prefix)["float32"]
        wanted = []
        for inputs, targets in windows(ids, WINDOW - len(prefix)):
            logits = tiny_models.logits(oracle, [*prefix, *inputs])[len(prefix) :]
            wanted.append(F.cross_entropy(logits, torch.tensor(targets), reduction="none"))
        assert found.loss.dtype == np.float64
        np.testing.assert_allclose(found.loss, torch.cat(wanted).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [2, 3, 8, 9, 10, 40])
def test_every_token_but_the_first_is_predicted_once(length: int):
    tokens = list(range(length))
    cut = list(windows(tokens, 8))
    assert [t for _, targets in cut for t in targets] == tokens[1:]
    assert all(targets == [i + 1 for i in inputs] and len(inputs) <= 8 for inputs, targets in cut)


def test_comparison_is_torchs(monkeypatch):
    monkeypatch.setattr(likelihood, "ROWS", 4)
    generator = torch.Generator().manual_seed(0)
    first = 3 * torch.randn(10, 50, generator=generator)
    second = first + 0.3 * torch.randn(10, 50, generator=generator)
    targets = torch.randint(0, 50, (10,), generator=generator)
    for logits, (loss, kl, same) in zip((first, second), compare([first, second], targets), strict=True):
        torch.testing.assert_close(loss, F.cross_entropy(logits.double(), targets, reduction="none"))
        wanted = F.kl_div(
            logits.double().log_softmax(-1), first.double().log_softmax(-1), reduction="none", log_target=True
        ).sum(-1)
        torch.testing.assert_close(kl, wanted, rtol=1e-5, atol=1e-7)
        assert torch.equal(same, logits.argmax(-1) == first.argmax(-1))


def test_figures_of_several_texts_weigh_tokens_alike():
    def of(*loss: float) -> Scores:
        return Scores(np.array(loss), np.zeros(len(loss)), np.ones(len(loss), bool))

    found = figures([of(1.0, 2.0), of(3.1)], [of(1.0, 2.0), of(3.0)])
    assert found["perplexity"] == pytest.approx(np.exp(6.1 / 3))
    assert found["ratio"] == pytest.approx(np.exp(0.1 / 3))
    assert found["difference_percent"] == pytest.approx(100 * (np.exp(0.1 / 3) - 1))
    error = np.std([0, 0, 0.1]) / np.sqrt(3)
    assert found["standard_error_percent"] == pytest.approx(100 * np.exp(0.1 / 3) * error)
    assert found["scored"] == 3


def test_a_part_is_taken_of_each_text():
    assert shares([14_855, 7_605], 0) == shares([14_855, 7_605], 30_000) == [14_855, 7_605]
    assert shares([2_000, 1_000], 300) == [200, 100]
    assert shares([100_000, 10], 20) == [19, 2]


def refuse(monkeypatch, refused: str) -> None:
    def build(config: EngineConfig, files, *rest):
        if config.dtype == refused:
            raise ModelProblem(f"no {refused} here")
        return build_runner(config, files, *rest)

    monkeypatch.setattr(likelihood, "build_runner", build)


def test_a_form_that_the_model_lacks_is_told(job: Job, monkeypatch):
    refuse(monkeypatch, "bfloat16")
    with pytest.raises(ModelProblem, match="no bfloat16 here"):
        run(job)
    answer = run(msgspec.structs.replace(job, optional=True))
    assert [form["form"] for form in answer["forms"]] == ["float32"]
    assert answer["absent"] == {"bfloat16": "no bfloat16 here"}


def test_without_the_reference_there_is_nothing(job: Job, monkeypatch):
    refuse(monkeypatch, "float32")
    with pytest.raises(ModelProblem):
        run(msgspec.structs.replace(job, optional=True))


def test_as_a_process_it_answers_in_json(job: Job, monkeypatch, capsys, tmp_path: Path):
    lost = msgspec.structs.replace(job, config=EngineConfig(model=str(tmp_path / "gone")))
    for asked, key in ((job, "forms"), (lost, "problem")):
        monkeypatch.setattr(sys, "argv", ["likelihood", msgspec.json.encode(asked).decode()])
        answer(run, Job)
        assert key in json.loads(capsys.readouterr().out)
