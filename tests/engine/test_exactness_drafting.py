"""Greedy output is the model's own while drafting is dragged about: length, method, policy and what n-grams match.

A tiny random model in float32 with its real runner, and the table model whose K/V finds out at once what is stale. The
default model under the same is `servescope bench exactness --drag SECONDS`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from app.bench.drag import changes
from app.bench.equality import ALLOWED_GAP
from engine.config import LiveSettings
from engine.core import Engine
from engine.model.store import resolve
from engine.model.weights import load
from engine.records import DECODE, ROW, TOKEN, Request, Sampling, unpack
from engine.runner.base import Runner
from engine.runner.cpu import CpuRunner
from engine.sampler import Sampler
from engine.speculation.ngram import NgramProposer
from engine.speculation.suffix import SuffixProposer
from tests.support import tiny_models
from tests.support.fake_runner import FakeRunner, TableModel
from tests.support.tiny_directory import make_directory

REQUESTS, TOKENS = 24, 60
SETTINGS = LiveSettings(max_batch=6, max_context=256, kv_blocks=64, block_size=8, token_budget=48, draft_method="off")
PROPOSERS = {"ngram": NgramProposer.of, "suffix": SuffixProposer.of}


def outputs(runner: Runner, prompts: list[list[int]], dragged: int | None) -> tuple[list[list[int]], int]:
    """Of each prompt, under load; `dragged`: the seed by which settings change between steps. And drafts accepted."""
    bounds = FakeRunner(SETTINGS.kv_blocks, SETTINGS.block_size).bounds(draft_layers=(0, 0))
    runner.resize(SETTINGS.kv_blocks)
    engine = Engine(runner, SETTINGS, Sampler(runner.model.vocabulary), bounds=bounds, proposers=PROPOSERS)
    rng = random.Random(dragged)
    for number, prompt in enumerate(prompts):
        sampling = Sampling(temperature=0.0)
        engine.submit(number, prompt, Request(number=number, max_tokens=TOKENS, ignore_eos=True, sampling=sampling))
    found: list[list[int]] = [[] for _ in prompts]
    accepted = 0
    while engine.has_work:
        if dragged is not None:
            engine.change(changes(rng, ("off", "ngram", "suffix")))
        record = engine.step()
        rows = unpack(record.rows, ROW)
        assert rows["drafted"].max(initial=0) <= record.settings.draft_length
        accepted += int(rows["accepted"][rows["kind"] == DECODE].sum())
        for seq, token in unpack(record.emitted, TOKEN)[["seq", "token"]].tolist():
            found[seq - 1].append(token)
    engine.check()
    return found, accepted


def prompts(vocabulary: int, seed: int) -> list[list[int]]:
    """Some repeat themselves, some each other."""
    rng = random.Random(seed)
    made: list[list[int]] = []
    for i in range(REQUESTS):
        own = [rng.randrange(vocabulary) for _ in range(rng.randint(3, 30))]
        made.append(made[rng.randrange(i)][:20] + own if i % 3 == 2 else own * (1 + i % 2))
    return made


@pytest.mark.parametrize("seed", range(3))
def test_the_table_models_output_is_its_own(seed: int) -> None:
    model = TableModel(12, seed=seed, sharpness=3.0)
    asked = prompts(12, seed)
    runner = FakeRunner(SETTINGS.kv_blocks, SETTINGS.block_size, model)
    found, accepted = outputs(runner, asked, dragged=seed)
    assert found == [model.greedy(prompt, TOKENS) for prompt in asked]
    assert accepted > 100


def test_a_real_models_output_is_token_equal(tmp_path: Path) -> None:
    """Where a token differs, the model hardly cared: its best two logits were less apart than float32 is exact."""
    directory = make_directory(tmp_path)
    files, device = resolve(str(directory)), torch.device("cpu")

    def runner() -> Runner:
        parts = load(files, torch.float32, device)
        return CpuRunner(*parts, files.name, torch.float32, device, SETTINGS.block_size, SETTINGS.kv_blocks)

    asked = prompts(tiny_models.VOCABULARY, 7)
    plain, none = outputs(runner(), asked, dragged=None)
    dragged, accepted = outputs(runner(), asked, dragged=11)
    assert none == 0 and accepted > 30
    differ = [i for i in range(REQUESTS) if plain[i] != dragged[i]]
    assert len(differ) <= REQUESTS / 20
    if differ:
        oracle = tiny_models.save(tmp_path / "again", "llama", tied=True)
    for i in differ:
        at = next(k for k in range(TOKENS) if plain[i][k] != dragged[i][k])
        best = tiny_models.logits(oracle, asked[i] + plain[i][:at])[-1].topk(2).values
        assert best[0] - best[1] < ALLOWED_GAP
