"""Sequences that share blocks and copy them on write give what each gives alone, on a real model in float32.

Samples of one prompt against the same seeds asked for one by one; beams against a search over dense passes. A canary
looks at every slot that is read.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.beam_candidates import candidates
from engine.beam_search import IDLE, BeamSearch, Hypothesis
from engine.config import LiveSettings, limits
from engine.core import Engine
from engine.records import COPY, TOKEN, Forked, Request, Sampling, Searched, StepRecord, unpack
from engine.sampler import Sampler
from tests.engine.test_exactness_policies import start
from tests.engine.test_packed_runner import runner_of
from tests.support import tiny_models
from tests.support.shadow import Shadow

NEW = 20
ROOM_FOR_ALL = {"max_batch": 24}
LENGTHS = (1, 15, 16, 17, 32, 45)  # a prompt that fills its last block, and that doesn't


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def oracle(directory: Path):
    return tiny_models.save(directory, "llama", tied=False)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    dice = random.Random(8)
    return [[dice.randrange(tiny_models.VOCABULARY) for _ in range(length)] for length in LENGTHS]


def sampled(number: int, seed: int, n: int) -> Request:
    sampling = Sampling(temperature=1.0, top_p=0.95, seed=seed, speculate=False)
    return Request(number=number, max_tokens=NEW, n=n, ignore_eos=True, sampling=sampling)


Between = Callable[[Engine, random.Random], object]


def run(engine: Engine, between: Between | None = None) -> tuple[dict[int, list[int]], list[StepRecord]]:
    """Output tokens by sequence, of those that end by themselves, and the records."""
    outputs: dict[int, list[int]] = {}
    records, dice = [], random.Random(9)
    while engine.has_work:
        records.append(engine.step())
        for seq, token in unpack(records[-1].emitted, TOKEN)[["seq", "token"]].tolist():
            outputs.setdefault(seq, []).append(token)
        engine.check()
        if between is not None:
            between(engine, dice)
    return outputs, records


def preempt(engine: Engine, dice: random.Random) -> None:
    running = engine.scheduler.running
    if running and dice.random() < 0.3:
        engine.scheduler.preempt(dice.choice(running), "max_batch")


@pytest.fixture(scope="module")
def alone(directory, oracle, prompts) -> list[list[list[int]]]:
    """Of each prompt four seeds in a row, each served with nothing beside it."""
    engine, _ = start(directory, max_batch=1, prefix_cache=False, draft_method="off")
    outputs = []
    for index, prompt in enumerate(prompts):
        outputs.append([])
        for seed in range(4):
            engine.submit(1, prompt, sampled(1, 100 * index + seed, 1))
            outputs[-1] += run(engine)[0].values()
    return outputs


@pytest.mark.parametrize("between", [None, preempt], ids=["quiet", "preempted"])
@pytest.mark.parametrize(
    "policy",
    [
        ROOM_FOR_ALL,
        {"prefix_cache": False},
        {"max_batch": 3},
        {"preemption": "swap", "swap_blocks": 20},
        {"allocation": "reserved"},
        {"batching": "static", "block_size": 8},
        {"chunked_prefill": False, "token_budget": 128},
        {"kv_blocks": 14},
    ],
    ids=str,
)
def test_each_sample_is_what_its_seed_gives_alone(directory, alone, prompts, policy, between) -> None:
    engine, shadow = start(directory, **{"draft_length": 0, "max_batch": 10, "kv_blocks": 64, **policy})
    for index, prompt in enumerate(prompts):
        engine.submit(index, prompt, sampled(index, 100 * index, 4))
    outputs, records = run(engine, between)
    assert [[outputs[4 * i + k + 1] for k in range(4)] for i in range(len(prompts))] == alone
    copied = sum(unpack(record.copies, COPY).size for record in records)
    shared = sum(e.shared for record in records for e in record.events if isinstance(e, Forked))
    if policy == ROOM_FOR_ALL and between is None:
        # of each prompt that ends within a block, three of four copy it; none of the two that fill their last
        assert copied == 3 * sum(length % 16 > 0 for length in LENGTHS)
        assert shared == 3 * sum(-(-length // 16) for length in LENGTHS)
        assert shadow.shared > 1000
    if between is None:
        assert (shared > 0) == (policy.get("allocation") != "reserved")


def test_samples_in_packed_weights_share_blocks_too(tmp_path, prompts) -> None:
    """The compiled program leaves out what isn't to be stored, and its pools are copied like others."""
    n = 4

    def engine_of(max_batch: int) -> Engine:
        runner = runner_of(tmp_path, num_blocks=64, threads=1)
        bounds = limits(runner.model, 16, 64)
        now = LiveSettings(max_batch=max_batch, max_context=128, kv_blocks=64, token_budget=48, draft_method="off")
        return Engine(runner, now, Sampler(runner.model.vocabulary), bounds=bounds, proposers={})

    engine = engine_of(24)
    shadow = Shadow(engine)
    for index, prompt in enumerate(prompts):
        engine.submit(index, prompt, sampled(index, 100 * index, n))
    together, records = run(engine)
    assert sum(unpack(record.copies, COPY).size for record in records) == 12 and shadow.shared > 1000
    engine = engine_of(1)
    for index, prompt in enumerate(prompts):
        for k in range(n):  # the whole prompt is cached from the second one on
            engine.submit(n * index + k, prompt, sampled(n * index + k, 100 * index + k, 1))
    assert run(engine)[0] == together


def search(oracle, prompt: list[int], width: int, **how: object) -> list[Hypothesis]:
    """Over dense passes, each beam's whole text computed anew."""
    beams = BeamSearch(width, NEW, (), **how)  # type: ignore[arg-type]
    lanes = {0: list(prompt)}
    while not beams.over:
        with torch.no_grad():
            logits = torch.stack([tiny_models.logits(oracle, lanes[lane])[-1] for lane in beams.lanes])
        step = beams.advance(dict(zip(beams.lanes, candidates(logits, beams.needed), strict=True)))
        pairs = enumerate(zip(step.parents, step.tokens, strict=True))
        lanes = {lane: [*lanes[parent], token] for lane, (parent, token) in pairs if parent != IDLE}
    return beams.hypotheses()


@pytest.mark.parametrize("between", [None, preempt], ids=["quiet", "preempted"])
@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"prefix_cache": False, "kv_blocks": 24},
        {"allocation": "reserved"},
        {"preemption": "swap", "swap_blocks": 30},
    ],
    ids=str,
)
def test_beams_are_those_of_dense_passes(directory, oracle, prompts, policy, between) -> None:
    engine, shadow = start(directory, **{"max_batch": 8, "kv_blocks": 64, **policy})
    widths = (1, 2, 3, 4, 3, 2)
    for number, (prompt, width) in enumerate(zip(prompts, widths, strict=True)):
        engine.submit(number, prompt, Request(number=number, max_tokens=NEW, beams=width, ignore_eos=True))
    _, records = run(engine, between)
    found = {e.number: e.found for record in records for e in record.events if isinstance(e, Searched)}
    for number, (prompt, width) in enumerate(zip(prompts, widths, strict=True)):
        expected = search(oracle, prompt, width)
        sums = [h.log_probability for h in found[number]]
        np.testing.assert_allclose(sums, [h.logprob for h in expected], atol=1e-4)
        assert found[number][0].token_ids == list(expected[0].tokens) or abs(sums[0] - expected[0].logprob) < 1e-4
    assert shadow.reads > 500


def test_beams_and_samples_beside_others_and_resized(directory, oracle, prompts, alone) -> None:
    """Everything at once, the pool dragged about and its blocks changed."""
    engine, _ = start(directory, max_batch=12, kv_blocks=64, draft_length=0)
    for index, prompt in enumerate(prompts):
        engine.submit(index, prompt, sampled(index, 100 * index, 4))
        engine.submit(100 + index, prompt, Request(number=100 + index, max_tokens=NEW, beams=3, ignore_eos=True))

    def drag(engine: Engine, dice: random.Random) -> None:
        if dice.random() < 0.3:
            size = engine.settings.block_size
            engine.change({"kv_blocks": dice.randint(40, 64) * 16 // size})
        elif dice.random() < 0.05:
            engine.change({"block_size": dice.choice([8, 16])})

    outputs, records = run(engine, drag)
    seqs = [7 * i + k + 1 for i in range(len(prompts)) for k in range(4)]
    assert [outputs[seq] for seq in seqs] == [output for of_prompt in alone for output in of_prompt]
    found = {e.number: e.found for record in records for e in record.events if isinstance(e, Searched)}
    for index, prompt in enumerate(prompts):
        best = search(oracle, prompt, 3)[0]
        assert abs(found[100 + index][0].log_probability - best.logprob) < 1e-4
