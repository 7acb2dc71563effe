"""Nothing that the engine or the window's mirror keeps grows without end: thousands of requests of all kinds, settings
dragged about, and every container weighed three times, with nothing under way."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from engine.config import EngineConfig, LiveSettings, SettingRefused, Simulation
from engine.core import Engine
from engine.records import Request, Sampling, decode, encode
from engine.requests import RequestRefused
from engine.sampler import Sampler
from engine.simulation.build import build as build_simulated
from engine.speculation.ngram import NgramProposer
from engine.speculation.suffix import SuffixProposer
from tests.support.containers import grown, sizes
from tests.support.fake_runner import FakeRunner, TableModel, settings
from tests.support.fake_texts import LetterTexts
from tests.ui.test_mirror_engine import disturb
from ui.mirror import Mirror

pytestmark = pytest.mark.slow(seconds=20)
V = 8
PARTS = 5
SHARE = 0.005  # of the window's usual histories: 250 steps, 50 requests, 1 MB of the past


def test_sizes_are_found_wherever_they_are():
    engine = table_engine()
    held = sizes(engine)
    engine._live.update({9_000 + i: [] for i in range(100)})
    assert grown(held, sizes(engine)) == {"Engine._live": (0, 100)}


def table_engine() -> Engine:
    now = settings(max_batch=12, kv_blocks=64, token_budget=64, max_context=256, draft_length=4, draft_method="suffix")
    ticks = iter(range(1_000, 1 << 60, 7))
    runner = FakeRunner(now.kv_blocks, 8, TableModel(V, seed=3, sharpness=3.0))
    proposers = {"ngram": NgramProposer.of, "suffix": lambda settings: SuffixProposer(room=2_000)}
    return Engine(
        runner, now, Sampler(V), bounds=runner.bounds(), proposers=proposers, texts=LetterTexts(),
        eos_ids=frozenset({7}), clock=lambda: next(ticks),
    )  # fmt: skip


class Load:
    """Steps of an engine and the mirror that follows them, until so many were made."""

    def __init__(self, engine: Engine):
        self.engine, self.mirror = engine, Mirror()
        self.mirror.keep(SHARE)
        self.mirror.apply(engine.keyframe())
        self.number = 0

    def ask(self, rng: np.random.Generator) -> None:
        self.number = disturb(self.engine, rng, self.number)
        if rng.random() < 0.02:  # what `disturb` leaves out
            changes = {"draft_method": "suffix", "draft_length": int(rng.integers(1, 7))}
            if rng.random() < 0.5:
                changes = {"simulated_acceptance": [round(float(rng.random()), 4)] if rng.random() < 0.6 else []}
            with suppress(SettingRefused):
                self.engine.change(changes)

    def run(self, steps: int, rng: np.random.Generator) -> None:
        end = self.mirror.live.step + steps
        while self.mirror.live.step < end:
            self.ask(rng)
            if self.engine.has_work and rng.random() < 0.95:
                self.mirror.apply(decode(encode(self.engine.step())))
            elif (record := self.engine.between()) is not None:
                self.mirror.apply(decode(encode(record)))
        self.settle()

    def settle(self) -> None:
        """Nothing under way, and settings as at first."""
        self.engine.abort()
        for key, value in (("block_size", 8), ("kv_blocks", 64), ("swap_blocks", 32), ("simulated_acceptance", [])):
            self.engine.change({key: value})
        if (record := self.engine.between()) is not None:
            self.mirror.apply(decode(encode(record)))

    def weigh(self) -> Counter[str]:
        return sizes(self.engine, self.mirror)


class Simulated(Load):
    """Kinds of requests that a simulated engine takes, some thousand of them."""

    def settle(self) -> None:
        self.engine.abort()
        if (record := self.engine.between()) is not None:
            self.mirror.apply(decode(encode(record)))

    def ask(self, rng: np.random.Generator) -> None:
        if len(self.engine.scheduler.waiting) > 8:
            return
        self.number += 1
        prompt = rng.integers(256, 2_000, int(rng.integers(8, 60))).tolist()
        sampling = Sampling(seed=self.number, temperature=float(rng.choice([0.0, 0.8])))
        request = Request(number=self.number, max_tokens=int(rng.integers(1, 12)), n=int(rng.choice([1, 1, 1, 2])),
                          stop=["et"] if rng.random() < 0.2 else [], sampling=sampling)  # fmt: skip
        with suppress(RequestRefused):
            self.engine.submit(self.number, [7] * 32 * int(rng.integers(0, 2)) + prompt, request)


def always_grown(load: Load, steps: int, seed: int) -> dict[str, list[int]]:
    """What has become more in each of PARTS after the first: what leaks does, by a quarter in the last one still; what
    goes up and down with what was last asked for does not."""
    rng = np.random.default_rng(seed)
    weights = []
    for _ in range(PARTS):
        load.run(steps, rng)
        weights.append(load.weigh())
    assert all(load.mirror.full.values())
    everywhere = set.intersection(*(set(grown(*pair)) for pair in pairwise(weights)))
    return {where: [weight[where] for weight in weights] for where in everywhere}


def test_outputs_that_end_faster_than_they_are_put_in_are_bounded():
    """Sequences that are seldom asked for a draft: each ask puts in less than an output holds."""
    proposer, tokens = SuffixProposer(room=2_000), list(range(600))
    for seq in range(50):
        proposer.follow(seq, tokens[:4], 4)
        proposer.follow(seq, tokens, 4)
        proposer.forget(seq)
        assert sum(map(len, proposer._ended)) <= 1_000 and proposer.past <= 2_000
    assert proposer.follow(99, tokens[:100], 4) == tokens[100:104], "what is kept is found"


class Told(Load):
    """A load that weighs what it is told to."""

    def __init__(self, **of: list[int]):
        super().__init__(table_engine())
        self._weights = iter(Counter(dict(zip(of, each, strict=True))) for each in zip(*of.values(), strict=True))

    def run(self, steps: int, rng: np.random.Generator) -> None:
        self.mirror = SimpleNamespace(full={})

    def weigh(self) -> Counter[str]:
        return next(self._weights)


def test_a_leak_is_told_from_what_goes_up_and_down():
    leak, wave, full = [330, 660, 990, 1_320, 1_650], [400, 470, 580, 640, 450], [10, 500, 500, 505, 500]
    assert always_grown(Told(leak=leak, wave=wave, full=full), 1, seed=0) == {"leak": leak}


@pytest.mark.timeout(600)
def test_engine_and_mirror_are_bounded_whatever_is_asked_of_them():
    load = Load(table_engine())
    assert always_grown(load, 1_500, seed=5) == {}
    assert load.number > 1_500


@pytest.mark.timeout(600)
def test_a_simulated_engine_is_bounded():
    first = LiveSettings(max_batch=16, kv_blocks=96, max_context=1024, draft_method="suffix", draft_policy="adaptive")
    simulation = Simulation(profile="h200:llama-3-8b", paced=False, output_tokens=20)
    built = build_simulated(EngineConfig(simulation=simulation, settings=first), lambda *_: None)
    load = Simulated(built.engine)
    assert always_grown(load, 3_000, seed=6) == {}
    assert load.number > 5_000
