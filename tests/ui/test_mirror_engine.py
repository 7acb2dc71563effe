"""The mirror against the real scheduler and pool, over a model that is a table: every step, and the past."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from engine.config import SettingRefused
from engine.core import Engine, RequestRefused
from engine.formulas import waste_parts
from engine.records import Request, Sampling, decode, encode
from engine.sampler import Sampler
from engine.speculation.ngram import NgramProposer
from tests.support.fake_runner import FakeRunner, TableModel, settings
from tests.support.fake_texts import LetterTexts
from tests.ui.test_mirror import assert_is, assert_same
from ui.branches import KEPT
from ui.mirror import Mirror
from ui.state import EngineState

V = 8
STEPS = 1_200


def build(rng: np.random.Generator) -> Engine:
    now = settings(max_batch=12, kv_blocks=64, token_budget=64, max_context=256, draft_length=4, draft_method="ngram")
    ticks = iter(range(1_000, 1 << 60, 7))
    runner = FakeRunner(now.kv_blocks, 8, TableModel(V, seed=3, sharpness=3.0))
    return Engine(
        runner, now, Sampler(V), bounds=runner.bounds(), proposers={"ngram": NgramProposer.of}, texts=LetterTexts(),
        eos_ids=frozenset({7}), clock=lambda: next(ticks),
    )  # fmt: skip


def disturb(engine: Engine, rng: np.random.Generator, number: int) -> int:
    """Something a user might do, now and then something foolish; returns the last request number."""
    chance = rng.random()
    if chance < 0.45:
        number += 1
        shared = [1, 2, 3, 4, 5, 6] * 5 if rng.random() < 0.5 else []
        prompt = shared + rng.integers(0, V - 1, int(rng.integers(1, 60))).tolist()
        beams = int(rng.choice([0, 0, 0, 2, 3, 4]))
        request = Request(
            beams=beams, n=1 if beams else int(rng.choice([1, 1, 2, 3])),
            number=number, max_tokens=int(rng.integers(1, 70)), priority=int(rng.integers(0, 3)),
            ignore_eos=bool(rng.random() < 0.7),
            sampling=Sampling(temperature=None if beams else float(rng.choice([0.0, 1.0])), seed=number),
        )  # fmt: skip
        with suppress(RequestRefused):
            engine.submit(number, prompt, request)
    elif chance < 0.465:
        with suppress(RequestRefused):
            engine.shadow(int(rng.integers(1, number + 2)))
    elif chance < 0.48:
        engine.abort(int(rng.integers(1, number + 2)))
    elif chance < 0.56:
        changes = {
            "kv_blocks": int(rng.integers(34, 120)), "max_batch": int(rng.integers(1, 16)),
            "token_budget": int(rng.integers(16, 128)), "draft_length": int(rng.integers(0, 7)),
            "prefix_cache": bool(rng.random() < 0.8), "draft_method": str(rng.choice(["off", "ngram"])),
            "allocation": str(rng.choice(["paged", "reserved"])), "batching": str(rng.choice(["continuous", "static"])),
            "preemption": str(rng.choice(["recompute", "swap"])), "swap_blocks": int(rng.integers(0, 60)),
            "block_size": int(rng.choice([8, 16])),
        }  # fmt: skip
        key = str(rng.choice(list(changes)))
        with suppress(SettingRefused):
            engine.change({key: changes[key]})
    return number


def assert_lanes(mirror: Mirror, engine: Engine) -> None:
    """The tree of every request with several lanes reads, lane by lane, what its sequences hold."""
    step = mirror.live.step
    for lane in (*engine.scheduler.running, *engine.scheduler.waiting):
        tree = mirror.branches.of(lane.seq)
        if tree is None:
            assert max(lane.request.n, lane.request.beams) < 2 or len(mirror.branches) == KEPT
            continue
        ends = {index: tree.path((index, position)) for index, position in tree.ends(step)}
        told = [tree.cell(spot).token for spot in ends.get(lane.index, [])]
        assert told == lane.tokens[lane.prompt_tokens :], (lane.seq, step)
    for tree in mirror.branches:
        for hypothesis, path in zip(tree.found, tree.paths, strict=True):
            assert [tree.cell(spot).token for spot in path] == hypothesis.token_ids[:-1]


@pytest.mark.parametrize("seed", [1, 2])
def test_equals_a_recount_after_every_step_and_in_the_past(seed: int) -> None:
    rng = np.random.default_rng(seed)
    engine, mirror, number = build(rng), Mirror(), 0
    mirror.apply(engine.keyframe())
    chosen = set(rng.integers(1, STEPS, 50).tolist())
    was: dict[int, EngineState] = {}
    while mirror.live.step < STEPS:
        number = disturb(engine, rng, number)
        if engine.has_work and rng.random() < 0.9:
            record = engine.step()
            mirror.apply(decode(encode(record)))
            told = waste_parts(record.stored, record.used, record.empty, record.gaps, record.settings.block_size)
            assert mirror.live.waste(mirror.live.block_size, mirror.live.gaps) == told
        elif (record := engine.between()) is not None:
            mirror.apply(decode(encode(record)))
        else:
            continue
        assert_is(mirror.live, engine.keyframe())
        assert_lanes(mirror, engine)
        if mirror.live.step in chosen:
            was[mirror.live.step] = mirror.live.copy()  # the last one of a step counts
    assert mirror.apply(engine.keyframe()) and mirror.drift == 0
    assert len(was) > 40
    for step, then in was.items():
        assert_same(mirror.state_at(step), then)
    assert sum(r.preemptions > 0 for r in mirror.history.requests) > 5
    assert mirror.live.num_blocks != 64 or len(mirror.history.marks) > 50
