"""What is told of a watched sequence: the numbers reproduce each decision, and telling them changes none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engine.core import Engine
from engine.records import (
    ACCEPTED,
    BONUS,
    DISCARDED,
    DRAFT,
    REJECTED,
    TOKEN,
    Request,
    Sampling,
    StepRecord,
    Verification,
    decode,
    encode,
    unpack,
)
from engine.sampler import Sampler
from engine.speculation.ngram import NgramProposer
from engine.speculation.proposer import Proposer
from tests.support.drafters import TableDrafter
from tests.support.fake_runner import FakeRunner, TableModel, settings
from tests.support.fake_texts import LetterTexts
from tests.support.verified import blurred

V = 12
PROMPT = [1, 2, 3, 4, 1, 2, 3]
FILTERS = [{}, {"temperature": 0.6, "top_k": 5}, {"top_p": 0.8}, {"temperature": 1.5, "min_p": 0.05}]


def build(drafter: str = "drawn", sharpness: float = 1.5, heat: float = 2.5) -> Engine:
    now = settings(draft_length=4, temperature=1.0)
    model = TableModel(V, seed=5, sharpness=sharpness)
    runner = FakeRunner(now.kv_blocks, 8, model)
    proposer: Proposer = TableDrafter(blurred(model, heat)) if drafter == "drawn" else NgramProposer()
    return Engine(
        runner, now, Sampler(V), bounds=runner.bounds(), proposers={"ngram": lambda _: proposer}, texts=LetterTexts()
    )


def run(engine: Engine, watched: bool = True, k: int = V, **sampling: float) -> list[StepRecord]:
    """Two requests; the second is the watched one."""
    for number, prompt in ((1, PROMPT), (2, PROMPT[2:])):
        request = Request(number=number, max_tokens=48, sampling=Sampling(seed=number, **sampling))
        seq = engine.submit(number, prompt, request)
    if watched:
        engine.watch(seq, k)
    found = []
    while engine.has_work:
        found.append(decode(encode(engine.step())))
    return found


def verifications(found: list[StepRecord]) -> list[tuple[StepRecord, Verification]]:
    return [(record, record.verification) for record in found if record.verification is not None]


@pytest.mark.parametrize("sampling", FILTERS, ids=lambda s: ",".join(s) or "plain")
@pytest.mark.parametrize("drafter", ["drawn", "certain"])
def test_the_numbers_reproduce_each_decision(drafter, sampling):
    seen = set()
    for _, told in verifications(run(build(drafter, sharpness=1.5 if drafter == "drawn" else 2.5), **sampling)):
        assert not told.greedy and told.certain == (drafter == "certain")
        over = False
        for one in told.positions:
            seen.add(one.verdict)
            if over:
                assert one.verdict == DISCARDED and not one.candidates and one.draw is None
                continue
            if one.verdict != BONUS:
                assert (one.draw * one.q < one.p) == (one.verdict == ACCEPTED)
            over = one.verdict != ACCEPTED
            by_token = {c.token: c for c in one.candidates}
            assert (one.drawn is not None) == over
            if one.drawn is not None:
                share = {t: c.p if one.verdict == BONUS else c.left for t, c in by_token.items()}
                assert math.fsum(share.values()) == pytest.approx(1)
                # the inverse of the cumulative distribution, in order of ids
                landed = next(t for t in sorted(share) if one.drawn.draw < by_token[t].below + share[t])
                assert landed == one.drawn.token
                assert one.drawn.below <= one.drawn.draw < one.drawn.below + one.drawn.share
                assert one.drawn.share == pytest.approx(share[landed])
    assert seen >= {ACCEPTED, REJECTED} and (drafter == "certain" or seen >= {DISCARDED, BONUS})


def test_all_distributions_are_whole():
    for _, told in verifications(run(build())):
        for one in told.positions:
            if one.verdict == DISCARDED:
                continue
            p, q = ([getattr(c, name) for c in one.candidates] for name in "pq")
            assert math.fsum(p) == pytest.approx(1) and p == sorted(p, reverse=True)
            if one.verdict == BONUS:
                continue
            assert math.fsum(q) == pytest.approx(1)
            left = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
            assert one.rejection == pytest.approx(math.fsum(left))
            assert (one.p, one.q) == next((c.p, c.q) for c in one.candidates if c.token == one.token)
            if one.verdict == REJECTED:
                assert [c.left for c in one.candidates] == pytest.approx([x / one.rejection for x in left])


def test_the_distributions_are_the_models():
    engine = build()
    model = engine.runner.table_model
    found = run(engine)
    tokens = list(PROMPT[2:])
    for record in found:
        if record.verification is not None:
            continued = tokens.copy()
            for one in record.verification.positions:
                if one.verdict == DISCARDED:
                    continue
                assert one.position == len(continued)
                p = model.probabilities(continued)
                assert [c.p for c in one.candidates] == pytest.approx([p[c.token] for c in one.candidates], abs=1e-6)
                continued.append(one.token if one.verdict == ACCEPTED else one.drawn.token)
        tokens += [t["token"] for t in unpack(record.emitted, TOKEN) if t["seq"] == 2]


def test_it_says_what_the_record_says():
    for record, told in verifications(run(build())):
        drafts = unpack(record.drafts, DRAFT)
        drafts = drafts[drafts["seq"] == told.seq]
        for one in told.positions:
            (entry,) = drafts[(drafts["position"] == one.position) & (drafts["verdict"] == one.verdict)]
            assert entry["token"] == (one.drawn.token if one.token is None else one.token)
            if one.verdict in (ACCEPTED, REJECTED):
                assert [entry["p"], entry["q"], entry["draw"]] == pytest.approx([one.p, one.q, one.draw])


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafter", ["drawn", "certain"])
def test_watching_changes_no_draw(drafter, sampling):
    def told(found: list[StepRecord]) -> list[tuple]:
        return [(r.rows, r.emitted, r.drafts, r.text, r.draft_text) for r in found]

    watched = run(build(drafter), **sampling)
    assert verifications(watched)
    assert told(watched) == told(run(build(drafter), watched=False, **sampling))


def test_nothing_is_told_of_others_or_without_drafts():
    assert not verifications(run(build(), watched=False))
    found = run(build("certain"))
    assert {told.seq for _, told in verifications(found)} == {2}
    for record in found:
        drafts = unpack(record.drafts, DRAFT)
        assert (record.verification is not None) == bool((drafts["seq"] == 2).any())


def test_a_greedy_decision_is_the_likeliest_of_the_models_own():
    found = verifications(run(build(sharpness=3.0, heat=0.7), temperature=0.0))
    verdicts = set()
    for _, told in found:
        assert told.greedy
        for one in told.positions:
            verdicts.add(one.verdict)
            if one.verdict == DISCARDED:
                continue
            assert one.draw is None and 0 < one.candidates[0].p < 1
            best = one.candidates[0].token
            if one.verdict != BONUS:
                assert (one.token == best) == (one.verdict == ACCEPTED)
            if one.drawn is not None:
                assert one.drawn.token == best and one.drawn.draw is None
                assert not any(c.left for c in one.candidates)
    assert verdicts == {ACCEPTED, REJECTED, DISCARDED, BONUS}


def test_only_the_best_are_told_and_those_that_were_decided_about():
    for _, told in verifications(run(build(), k=2)):
        for one in told.positions:
            if one.verdict == DISCARDED:
                continue
            tokens = {c.token for c in one.candidates}
            assert len(one.candidates) <= (6 if one.verdict == REJECTED else 3)
            assert one.token is None or one.token in tokens
            assert one.drawn is None or one.drawn.token in tokens
            best = sorted((c.p for c in one.candidates), reverse=True)
            assert one.candidates[0].p == best[0] and np.isfinite(best).all()
