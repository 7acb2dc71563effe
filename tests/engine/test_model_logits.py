"""Every architecture has transformers' logits, however its tokens are batched, chunked and paged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.config import EngineConfig, LiveSettings
from engine.model.store import ModelFiles
from engine.runner.base import Runner
from engine.runner.build import build_runner
from tests.support import tiny_models
from tests.support.paged import Driven, Driver
from tests.support.tiny_models import KINDS, VOCABULARY

TIGHT = {"rtol": 1e-5, "atol": 2e-5}


def runner_of(directory: Path, block_size: int = 16, dtype: str = "float32", blocks: int = 128) -> Runner:
    config = EngineConfig(
        dtype=dtype, device="cpu", block_size=block_size, threads=1, settings=LiveSettings(kv_blocks=blocks)
    )
    return build_runner(config, ModelFiles("hf", directory, directory, "tiny"))


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """(kind, tied) → its directory and the oracle, made once."""
    made = {}

    def get(kind: str, tied: bool = False):
        if (kind, tied) not in made:
            directory = tmp_path_factory.mktemp(f"{kind}-{tied}")
            made[kind, tied] = directory, tiny_models.save(directory, kind, tied)
        return made[kind, tied]

    return get


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_one_pass(checkpoints, kind: str, tied: bool):
    directory, oracle = checkpoints(kind, tied)
    prompt = tokens(150)
    (got,) = Driver(runner_of(directory)).run([(Driven(prompt), 150)])
    torch.testing.assert_close(got, tiny_models.logits(oracle, prompt), **TIGHT)


@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_chunked_then_token_by_token(checkpoints, kind: str, block_size: int):
    directory, oracle = checkpoints(kind)
    prompt = tokens(70, seed=1)
    driver, sequence = Driver(runner_of(directory, block_size)), Driven(prompt)
    got = [driver.run([(sequence, n)])[0] for n in (1, 7, 32, 20, *[1] * 10)]
    torch.testing.assert_close(torch.cat(got), tiny_models.logits(oracle, prompt), **TIGHT)


@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_ragged_batches_of_prefill_decode_and_verification(checkpoints, kind: str, block_size: int):
    """Random mixes of 1, 2–17 and many tokens a row over 14 sequences at once, until all are through."""
    directory, oracle = checkpoints(kind)
    random = np.random.default_rng(2)
    driver = Driver(runner_of(directory, block_size, blocks=4096 // block_size))
    sequences = [Driven(tokens(int(n), seed=i)) for i, n in enumerate(random.integers(1, 200, 14))]
    got: list[list[torch.Tensor]] = [[] for _ in sequences]
    while live := [i for i, s in enumerate(sequences) if s.computed < len(s.tokens)]:
        chosen = random.permutation(live)[: random.integers(1, len(live) + 1)]
        rows = []
        for i in chosen:
            left = len(sequences[i].tokens) - sequences[i].computed
            rows.append((sequences[i], min(left, int(random.choice([1, 1, 5, 17, 40, 150])))))
        for i, part in zip(chosen, driver.run(rows), strict=True):
            got[i].append(part)
    for sequence, parts in zip(sequences, got, strict=True):
        torch.testing.assert_close(torch.cat(parts), tiny_models.logits(oracle, sequence.tokens), **TIGHT)


def test_rejected_drafts_are_overwritten(checkpoints):
    """A verification writes K/V of drafts; when they are rejected the right tokens take their slots."""
    directory, oracle = checkpoints("llama")
    right = tokens(40, seed=3)
    driver, sequence = Driver(runner_of(directory)), Driven(right[:30] + tokens(5, seed=4))
    driver.run([(sequence, 35)])
    sequence.tokens, sequence.computed = right, 30
    (got,) = driver.run([(sequence, 10)])
    torch.testing.assert_close(got, tiny_models.logits(oracle, right)[30:], **TIGHT)


def test_only_the_logits_asked_for(checkpoints):
    from engine.runner.pooled import dummy_batch

    directory, _ = checkpoints("llama")
    runner = runner_of(directory)
    batch = dummy_batch([5, 3, 9], runner.block_size)
    whole = runner.execute(batch)
    assert whole.shape == (3, VOCABULARY) and whole.dtype == torch.float32
    batch.logit_index = np.array([7, 4])
    torch.testing.assert_close(runner.execute(batch), whole[[1, 0]])
    batch.logit_index = np.array([], dtype=np.int64)
    assert runner.execute(batch).shape == (0, VOCABULARY)


def test_bfloat16_is_near(checkpoints):
    """Against transformers in float32: as near as bfloat16's 8 bits over three layers let it be."""
    directory, oracle = checkpoints("qwen3")
    prompt = tokens(90, seed=5)
    driver, sequence = Driver(runner_of(directory, dtype="bfloat16")), Driven(prompt)
    got = torch.cat([driver.run([(sequence, n)])[0] for n in (60, 25, 5)])
    expected = tiny_models.logits(oracle, prompt)
    assert (got - expected).pow(2).mean().sqrt() < 0.03 * expected.std()


def test_an_old_form_of_rope_in_the_config(checkpoints, tmp_path: Path):
    """transformers 4 wrote rope_theta and rope_scaling; the logits are the same."""
    import json
    import shutil

    directory, oracle = checkpoints("llama3")
    shutil.copytree(directory, tmp_path / "old")
    path = tmp_path / "old" / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    path.write_text(json.dumps(config))
    prompt = tokens(100, seed=6)
    (got,) = Driver(runner_of(tmp_path / "old")).run([(Driven(prompt), 100)])
    torch.testing.assert_close(got, tiny_models.logits(oracle, prompt), **TIGHT)


def test_a_sliding_window_bounds_the_context(tmp_path: Path):
    oracle = tiny_models.save(tmp_path, "mistral", False, sliding_window=64)
    runner = runner_of(tmp_path)
    assert runner.model.max_positions == 64
    assert any("64" in notice for notice in runner.notices)
    prompt = tokens(64, seed=7)
    (got,) = Driver(runner).run([(Driven(prompt), 64)])
    torch.testing.assert_close(got, tiny_models.logits(oracle, prompt), **TIGHT)
