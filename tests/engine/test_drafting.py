"""Between settings and proposers: what a change while running does, which drafts adaptive lengths trim, and by whom."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.core import Engine
from engine.records import ACCEPTED, DISCARDED, DRAFT, REJECTED, ROW, Request, Sampling, unpack
from engine.runner.batch import PackedBatch
from engine.sampler import Sampler
from engine.speculation.ngram import NgramProposer
from engine.speculation.proposer import Ask, Drafts
from engine.speculation.suffix import SuffixProposer
from tests.support.fake_runner import FakeRunner, TableModel, settings

V = 8
PROMPT = [1, 2, 3, 4, 5, 6, 0, 1, 2, 3]


class Guesser:
    """Drafts what the model would say, of the first `right` tokens; drawn with q where `drawn`. `asked`: every ask."""

    watches = False

    def __init__(self, model: TableModel, right: int = 99, drawn: bool = False):
        self.model, self.right, self.drawn = model, right, drawn
        self.asked: list[Ask] = []

    def propose(self, asks: list[Ask]) -> Drafts:
        assert all(ask.limit > 0 for ask in asks)
        self.asked += asks
        tokens = [
            [t if i < self.right else (t + 1) % V for i, t in enumerate(self.model.greedy(ask.tokens, ask.limit))]
            for ask in asks
        ]
        q = {i: torch.nn.functional.one_hot(torch.tensor(t), V).double() for i, t in enumerate(tokens)}
        return Drafts(tokens, q if self.drawn else {})

    def forget(self, seq: int) -> None:
        return None


class Timed(FakeRunner):
    """A pass takes 4 ms and a quarter more for each token."""

    ns = 0

    def execute(self, batch: PackedBatch) -> torch.Tensor:
        self.ns += 4_000_000 + 1_000_000 * len(batch.tokens)
        return super().execute(batch)


def build(guesser: Guesser | None = None, **changes) -> Engine:
    model = guesser.model if guesser else TableModel(V, seed=3, sharpness=3.0)
    now = settings(max_context=1024, kv_blocks=1024, token_budget=256, **changes)
    runner = Timed(now.kv_blocks, 8, model)
    proposers = {"ngram": NgramProposer.of, "suffix": SuffixProposer.of, "model": lambda _: guesser}
    bounds = runner.bounds()
    return Engine(runner, now, Sampler(V), bounds=bounds, proposers=proposers, clock=lambda: runner.ns + 1)


def submit(engine: Engine, number: int = 1, tokens: int = 300, temperature: float = 0.0) -> None:
    sampling = Sampling(temperature=temperature)
    engine.submit(number, PROMPT, Request(number=number, max_tokens=tokens, sampling=sampling))


def test_how_many_tokens_must_match_is_changed_while_it_runs() -> None:
    """Each step drafts what an index made anew under the settings of that moment finds, whatever it was before."""
    model = TableModel(V, seed=3, sharpness=1.0)
    engine = build(Guesser(model), draft_method="ngram", draft_length=4)
    submit(engine, tokens=200, temperature=1.0)
    engine.step()
    other = 0
    for step in range(60):
        low, high = ((1, 1), (3, 5), (2, 3), (4, 8))[step % 4]
        engine.change({"ngram_min": low, "ngram_max": high})
        tokens = list(engine.scheduler.running[0].tokens)
        wanted = NgramProposer(low, high).follow(1, tokens, 4)
        record = engine.step()
        drafts = unpack(record.drafts, DRAFT)
        proposed = drafts["token"][np.isin(drafts["verdict"], (ACCEPTED, REJECTED, DISCARDED))].tolist()
        assert proposed == wanted
        other += wanted != NgramProposer(2, 4).follow(1, tokens, 4)
    assert other > 20


def test_a_change_that_does_not_shape_it_keeps_what_a_proposer_has_learnt() -> None:
    engine = build(draft_method="suffix")
    proposer = engine._drafting.proposer
    engine.change({"ngram_min": 1, "ngram_max": 8, "draft_length": 8, "draft_policy": "adaptive", "draft_layers": 0})
    assert engine._drafting.proposer is proposer
    engine.change({"draft_method": "ngram"})
    engine.change({"draft_method": "suffix"})
    assert engine._drafting.proposer is not proposer


def test_suffix_drafts_from_an_output_that_is_done() -> None:
    engine = build(draft_method="suffix", draft_length=4)
    submit(engine, 1, tokens=40)
    while engine.has_work:
        engine.step()
    submit(engine, 2, tokens=40)
    passes = 0
    while engine.has_work:
        engine.step()
        passes += 1
    assert passes < 25


@pytest.mark.parametrize("right", [0, 99])
@pytest.mark.parametrize("drawn", [False, True])
def test_a_model_is_asked_for_what_pays(right: int, drawn: bool) -> None:
    guesser = Guesser(TableModel(V, seed=3, sharpness=3.0), right, drawn)
    engine = build(guesser, draft_method="model", draft_policy="adaptive", draft_length=6)
    submit(engine, tokens=600, temperature=0.7 if drawn else 0.0)
    late: list[int] = []
    while engine.has_work:
        late.append(int(unpack(engine.step().rows, ROW)["drafted"].sum()))
    assert all(n <= 6 for n in late)
    if right:
        assert np.mean([ask.limit for ask in guesser.asked[-20:]]) > 3 or drawn
    else:
        assert np.mean(late[100:]) < 1.5
        assert sum(1 for n in late if n) >= 3  # and it is asked again now and then


def test_drawn_drafts_are_never_trimmed_for_what_they_are() -> None:
    """Whatever adaptive lengths do, a drawn draft is verified as long as it was asked for."""
    guesser = Guesser(TableModel(V, seed=3, sharpness=1.0), 1, drawn=True)
    engine = build(guesser, draft_method="model", draft_policy="adaptive", draft_length=6)
    for number in range(1, 5):
        submit(engine, number, tokens=100, temperature=0.7)
    while engine.has_work:
        before = len(guesser.asked)
        rows = unpack(engine.step().rows, ROW)
        asked = {ask.seq: ask.limit for ask in guesser.asked[before:]}
        for row in rows:
            assert row["drafted"] == asked.get(int(row["seq"]), 0)


def test_requests_that_decline_are_left_alone_under_both_policies() -> None:
    for policy in ("fixed", "adaptive"):
        guesser = Guesser(TableModel(V, seed=3, sharpness=3.0))
        engine = build(guesser, draft_method="model", draft_policy=policy)
        engine.submit(1, PROMPT, Request(number=1, max_tokens=30, sampling=Sampling(speculate=False)))
        submit(engine, 2, tokens=30)
        while engine.has_work:
            engine.step()
        assert {ask.seq for ask in guesser.asked} == {2}
