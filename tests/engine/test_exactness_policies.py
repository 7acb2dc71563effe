"""Greedy float32 output of a tiny model is token-equal to transformers' under every way of holding its K/V.

Preemption by swap and by recompute forced at random, pools resized and rebuilt under load, reserved and static, prefix
hits of every length. A canary looks at every slot that is read (`tests.support.shadow`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from app.bench.equality import Reference, compare
from engine.config import LiveSettings, SettingRefused, limits
from engine.core import Engine
from engine.records import COPY, ROW, Admitted, Request, StepRecord, unpack
from engine.runner.cpu import CpuRunner
from engine.sampler import Sampler
from engine.speculation.ngram import NgramProposer
from tests.engine.test_runner import build as build_runner
from tests.support import tiny_models
from tests.support.served import serve
from tests.support.shadow import Shadow

NEW = 24
LENGTHS = (1, 5, 15, 16, 17, 31, 32, 33, 47, 48, 63, 70)
ROOM = 64  # blocks of 16


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def oracle(directory: Path):
    return tiny_models.save(directory, "llama", tied=False)


@pytest.fixture(scope="module")
def references(oracle) -> list[Reference]:
    """Prompts that share a beginning, by half of them."""
    dice = random.Random(4)
    shared = [dice.randrange(tiny_models.VOCABULARY) for _ in range(max(LENGTHS))]
    prompts = []
    for length in LENGTHS:
        own = [dice.randrange(tiny_models.VOCABULARY) for _ in range(length)]
        prompts += [shared[:length], own]
    return [greedy(oracle, prompt) for prompt in prompts]


@torch.no_grad()
def greedy(model, prompt: list[int], count: int = NEW) -> Reference:
    """The dense reference: a whole pass for each token."""
    tokens, gaps = list(prompt), []
    for _ in range(count):
        best = tiny_models.logits(model, tokens)[-1].topk(2)
        tokens.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
    return Reference(prompt=prompt, tokens=tokens[len(prompt) :], gaps=gaps)


def start(directory: Path, **changes: int | float | bool | str) -> tuple[Engine, Shadow]:
    now = LiveSettings(
        **{"max_batch": 8, "max_context": 128, "kv_blocks": 48, "token_budget": 48, "draft_length": 3, **changes}
    )
    runner = build_runner(directory, blocks=now.kv_blocks, block_size=now.block_size)
    assert isinstance(runner, CpuRunner)
    runner.resize_host(now.swap_blocks)
    bounds = limits(runner.model, now.block_size, ROOM * 16 // now.block_size)
    engine = Engine(runner, now, Sampler(runner.model.vocabulary), bounds=bounds, proposers={"ngram": NgramProposer.of})
    return engine, Shadow(engine)


def judge(
    engine: Engine,
    shadow: Shadow,
    references: list[Reference],
    between: Callable[[int, StepRecord], None] = lambda step, record: None,
) -> int:
    """Serve them all and compare; how many were preempted."""
    outputs, preempted = serve(engine, [r.prompt for r in references], len(references[0].tokens), between)
    report = compare(outputs, references)
    print(report)
    assert report.equal, str(report)
    assert shadow.reads > 500
    return preempted


def at_random(engine: Engine, seed: int, act: Callable[[random.Random], dict[str, int | str]], every: int = 3):
    """Make a change, or have it refused, after one step in `every`; what was made."""
    dice, made = random.Random(seed), []

    def between(step: int, record: StepRecord) -> None:
        if dice.randrange(every):
            return
        changes = act(dice)
        try:
            engine.change(changes)
        except SettingRefused:
            return
        made.append(changes)

    return between, made


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("gamma", [0, 3])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preemption_forced_at_random(directory, references, preemption: str, gamma: int, prefix_cache: bool) -> None:
    engine, shadow = start(
        directory, kv_blocks=16, preemption=preemption, swap_blocks=14, draft_length=gamma, prefix_cache=prefix_cache,
        admission="chunk",
    )  # fmt: skip
    dice, moved, recomputed = random.Random(1), 0, 0

    def between(step: int, record: StepRecord) -> None:
        nonlocal moved, recomputed
        moved += record.swapped.back if record.swapped else 0
        recomputed += record.recomputed
        running = engine.scheduler.running
        if running and dice.random() < 0.3:
            engine.scheduler.preempt(dice.choice(running), "max_batch")

    assert judge(engine, shadow, references, between) > 20
    assert moved > 20 if preemption == "swap" else recomputed > 200


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_pools_resized_under_load(directory, references, preemption: str) -> None:
    engine, shadow = start(directory, preemption=preemption, swap_blocks=20)
    between, made = at_random(
        engine, 2, lambda dice: {dice.choice(["kv_blocks", "kv_blocks", "swap_blocks"]): dice.randint(8, ROOM)}
    )
    assert judge(engine, shadow, references, between) > 0
    assert len({tuple(change) for change in made}) == 2 and len(made) > 5


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_block_size_changed_under_load(directory, references, preemption: str) -> None:
    engine, shadow = start(directory, preemption=preemption, swap_blocks=20)
    between, made = at_random(engine, 3, lambda dice: {"block_size": dice.choice([8, 16, 32])}, every=8)
    assert judge(engine, shadow, references, between) > 5
    assert len(made) > 3


@pytest.mark.parametrize("batching", ["continuous", "static"])
@pytest.mark.parametrize("allocation", ["paged", "reserved"])
def test_allocation_and_batching(directory, references, allocation: str, batching: str) -> None:
    engine, shadow = start(directory, allocation=allocation, batching=batching, kv_blocks=24)
    preempted = judge(engine, shadow, references)
    assert allocation == "paged" or not preempted


def test_everything_switched_at_random(directory, references) -> None:
    engine, shadow = start(directory, kv_blocks=24, swap_blocks=16)
    choices = {
        "allocation": ["paged", "reserved"],
        "batching": ["continuous", "continuous", "static"],
        "admission": ["prompt", "chunk"],
        "preemption": ["recompute", "swap"],
        "prefix_cache": [True, True, False],
        "kv_blocks": [16, 24, 40],
        "swap_blocks": [4, 16, 32],
        "block_size": [8, 16],
        "max_batch": [2, 5, 8],
    }

    def act(dice: random.Random) -> dict[str, int | str]:
        key = dice.choice(list(choices))
        return {key: dice.choice(choices[key])}

    between, made = at_random(engine, 5, act, every=2)
    assert judge(engine, shadow, references * 2, between) > 0
    assert {key for change in made for key in change} == set(choices)


@pytest.mark.parametrize("block_size", [8, 16])
def test_prefix_hits_of_every_length(directory, oracle, block_size: int) -> None:
    """After one whole prompt each shorter and each equally long one: what is cached is all of it up to the last full
    block, less its last token."""
    dice = random.Random(6)
    whole = [dice.randrange(tiny_models.VOCABULARY) for _ in range(4 * block_size)]
    lengths = [*range(block_size - 1, 3 * block_size + 2, 3), 3 * block_size, 4 * block_size - 1, 4 * block_size]
    references = [greedy(oracle, whole[:length], 6) for length in (len(whole), *lengths)]
    engine, shadow = start(directory, block_size=block_size, max_batch=1, kv_blocks=64 * 16 // block_size)
    cached: list[int] = []

    def between(step: int, record: StepRecord) -> None:
        cached.extend(e.cached_tokens for e in record.events if isinstance(e, Admitted))

    judge(engine, shadow, references, between)
    assert cached == [0, *(min(length // block_size * block_size, length - 1) for length in lengths)]
    assert shadow.shared > 0


def test_the_last_token_of_a_full_hit_is_not_stored_again(directory) -> None:
    """It is computed for its logits and reads the shared block, which is never written to."""
    engine, shadow = start(directory, max_batch=2, draft_method="off")
    batches, execute = [], engine.runner.execute
    engine.runner.execute = lambda batch: batches.append(batch) or execute(batch)  # type: ignore[method-assign]
    prompt = list(range(32))
    for number in range(2):
        engine.submit(number, prompt, Request(number=number, max_tokens=8, ignore_eos=True))
        record = engine.step()
    rows = unpack(record.rows, ROW)
    assert rows["scheduled"].tolist() == [1, 1] and rows["context"].tolist() == [33, 32]
    first, second = (s.table for s in engine.scheduler.running)
    assert list(first[:2]) == list(second) and len(first) == 3
    assert batches[-1].slots.tolist() == [first[2] * 16, -1] and shadow.shared >= 32
    engine.step()
    assert unpack(engine.step().copies, COPY).size == 0 and len(second) == 3 and second[2] != first[2]
    while engine.has_work:
        engine.step()
