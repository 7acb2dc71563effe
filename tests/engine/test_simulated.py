"""The what-if of simulated acceptance, through the engine: shares of tokens at given rates, whatever is drafted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engine.core import Engine
from engine.records import ACCEPTED, DISCARDED, DRAFT, REJECTED, ROW, TOKEN, Request, Sampling, StepRecord, unpack
from engine.sampler import Sampler, SampleRow
from engine.speculation.ngram import NgramProposer
from engine.speculation.proposer import Ask, Drafts
from engine.speculation.simulated import SimulatedRule, lengthened
from tests.support.fake_runner import FakeRunner, TableModel, settings

V = 8
PROMPT = [1, 2, 3, 4]


def build(rates: tuple[float, ...], gamma: int = 4, **changes) -> Engine:
    now = settings(
        max_batch=8, max_context=1024, kv_blocks=1024, token_budget=256, draft_method="ngram", draft_length=gamma,
        simulated_acceptance=rates, **changes,
    )  # fmt: skip
    runner = FakeRunner(now.kv_blocks, 8, TableModel(V, seed=3, sharpness=1.0))
    return Engine(runner, now, Sampler(V), bounds=runner.bounds(), proposers={"ngram": NgramProposer.of}, seed=5)


def run(
    engine: Engine, temperature: float = 0.0, requests: int = 8, tokens: int = 400, first: int = 1
) -> list[StepRecord]:
    for number in range(first, first + requests):
        sampling = Sampling(temperature=temperature)
        engine.submit(number, PROMPT, Request(number=number, max_tokens=tokens, sampling=sampling))
    found = []
    while engine.has_work:
        found.append(engine.step())
    engine.check()
    return found


def by_place(found: list[StepRecord]) -> tuple[np.ndarray, np.ndarray]:
    """Drafted tokens examined and accepted, by their place in a draft that could be whole."""
    examined, accepted = np.zeros(16), np.zeros(16)
    for record in found:
        drafts, rows = unpack(record.drafts, DRAFT), unpack(record.rows, ROW)
        for row in rows[rows["drafted"] > 0]:
            of_row = drafts[(drafts["seq"] == row["seq"]) & np.isin(drafts["verdict"], (ACCEPTED, REJECTED, DISCARDED))]
            assert len(of_row) == row["drafted"]
            for place, verdict in enumerate(of_row["verdict"].tolist()):
                if verdict != DISCARDED:
                    examined[place] += 1
                    accepted[place] += verdict == ACCEPTED
    return examined, accepted


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("rates", [(0.8,), (0.9, 0.5, 0.7), (0.3, 0.95)])
def test_acceptance_by_place_is_as_asked_for(rates: tuple[float, ...], temperature: float) -> None:
    examined, accepted = by_place(run(build(rates), temperature))
    for place in range(4):
        rate = rates[min(place, len(rates) - 1)]
        n = examined[place]
        assert n > 100
        assert abs(accepted[place] - n * rate) <= 4 * math.sqrt(n * rate * (1 - rate)) + 1, place


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_all_accepted_are_one_more_than_drafted_tokens_a_pass(temperature: float) -> None:
    found = run(build((1.0,), gamma=3), temperature, requests=1, tokens=401)
    whole = [unpack(record.emitted, TOKEN) for record in found[1:]]
    assert {len(emitted) for emitted in whole} == {4}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_none_accepted_is_a_token_a_pass(temperature: float) -> None:
    found = run(build((0.0,), gamma=3), temperature, requests=1, tokens=40)
    assert {len(unpack(record.emitted, TOKEN)) for record in found} == {1}


def test_drafts_are_as_long_as_the_slider_says_though_nothing_is_found() -> None:
    found = run(build((0.5,), gamma=5), requests=1, tokens=50)
    drafted = [int(unpack(record.rows, ROW)["drafted"][0]) for record in found]
    assert set(drafted[1:-6]) == {5}  # and no longer than the request's end allows


def test_the_p_that_is_told_is_the_models_own() -> None:
    engine = build((1.0,))
    for record in run(engine, temperature=0.8, requests=1, tokens=60):
        p = unpack(record.drafts, DRAFT)["p"]
        assert np.all((p >= 0) & (p <= 1))
        assert not len(p) or p.min() < 0.9  # they were accepted all the same


def test_the_same_request_is_decided_alike_in_any_batch() -> None:
    def tokens(requests: int) -> list[int]:
        found = run(build((0.7,)), 0.8, requests)
        emitted = np.concatenate([unpack(record.emitted, TOKEN) for record in found])
        return emitted["token"][emitted["seq"] == 1].tolist()

    assert tokens(1) == tokens(6)


def test_switched_off_the_text_is_the_models_again() -> None:
    engine = build((0.8,))
    run(engine, requests=3, tokens=50)
    engine.change({"simulated_acceptance": ()})
    emitted = np.concatenate([unpack(r.emitted, TOKEN) for r in run(engine, requests=2, tokens=60, first=10)])
    truth = TableModel(V, seed=3, sharpness=1.0).greedy(PROMPT, 60)
    for seq in (4, 5):
        assert emitted["token"][emitted["seq"] == seq].tolist() == truth


def test_switched_on_while_it_runs_it_takes_effect_in_the_next_step() -> None:
    engine = build((), gamma=4)
    engine.submit(1, PROMPT, Request(number=1, max_tokens=200))
    for _ in range(5):
        engine.step()
    engine.change({"simulated_acceptance": "1"})
    assert [len(unpack(engine.step().emitted, TOKEN)) for _ in range(5)] == [5] * 5


def test_under_the_adaptive_policy_the_lengths_follow_the_rates() -> None:
    found = run(build((0.0,), gamma=6, draft_policy="adaptive"), requests=2, tokens=400)
    late = [int(unpack(record.rows, ROW)["drafted"].sum()) for record in found[200:]]
    assert np.mean(late) < 2


def test_a_draft_that_was_drawn_is_filled_up_with_certainty() -> None:
    q = torch.full((1, V), 1 / V)
    asks = [Ask(1, [1, 2], 3, SampleRow()), Ask(2, [3], 2, SampleRow()), Ask(3, [4], 2, SampleRow())]
    drafts = lengthened(asks, Drafts([[5], [6, 7], []], {0: q}))
    assert drafts.tokens == [[5, 2, 2], [6, 7], [4, 4]]
    assert drafts.q[0].tolist() == [q[0].tolist(), *[[0, 0, 1, 0, 0, 0, 0, 0]] * 2]


def test_the_last_rate_is_that_of_all_further_places() -> None:
    draws = np.full((2, 5), 0.5)
    passed = SimulatedRule((0.6, 0.4, 0.9)).accepts(draws, draws, draws)
    assert passed.tolist() == [[True, False, True, True, True]] * 2
