"""Sampled output of the whole engine has the target's distribution, whoever drafts.

Three tokens, drawn 100,000 times through `Engine.step()` from a model of six words, are compared with their exact
joint distribution by chi-square, for each kind of drafter, with temperature, every filter and all penalties. In each
pass are rows with drafts of different lengths and rows without. The drafters are wrong most of the time. That each test
can fail is tested too: a twentieth of the draws tells every wrong rule, without filters by what it makes rarer or
likelier, with them mostly by tokens that can't come.

Another drafter is tested by a line in DRAFTERS.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from engine.penalties import Penalties
from engine.records import ACCEPTED, REJECTED, Sampling
from engine.speculation.draft_model import DraftModel
from engine.speculation.ngram import NgramProposer
from engine.speculation.proposer import Ask, Drafts, Proposer
from engine.speculation.suffix import SuffixProposer
from tests.support.drafters import SideBySide, TableDrafter
from tests.support.fake_runner import TableModel
from tests.support.joint import BATCH, BLOCK, GAMMA, MODEL, WORDS, Drawn, FastRunner, draw, fit
from tests.support.wrong_rules import COARSE, COARSE_FILTERED, NoBonus, wrong_samplers

DRAWS = 100_000
FEW = 5_000
ALARM = 1e-9  # what a wrong rule must fall below; the right one must stay above FINE
FINE = 1e-3

OTHER = TableModel(WORDS, seed=5, sharpness=0.8)  # what a draft model believes


def drawing() -> TableDrafter:
    return TableDrafter(OTHER)


def modelled() -> DraftModel:
    """With a cache of its own, and draws that belong to seed and position."""
    return DraftModel(FastRunner(3 * BATCH, BLOCK, OTHER), WORDS, draws=True, own_weights=True)


DRAFTERS: dict[str, Callable[[], Proposer]] = {
    "ngram": lambda: NgramProposer(1, 3),
    "suffix": SuffixProposer,
    "draws": drawing,  # q known, and another than p
    "draft model": modelled,
}
PENALISED = Sampling(temperature=0.8, repetition_penalty=1.4, presence_penalty=0.4, frequency_penalty=0.5)
EVERYTHING = replace(PENALISED, temperature=1.1, top_k=5, top_p=0.9, min_p=0.05)
PLAIN = Sampling(temperature=0.9)
drafters = pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)


def share_accepted(drawn: Drawn) -> float:
    """Of the drafts examined."""
    accepted, rejected = (drawn.verdicts[verdict] for verdict in (ACCEPTED, REJECTED))
    return accepted / (accepted + rejected)


@pytest.mark.slow
@pytest.mark.timeout(600)
@drafters
def test_speculation_leaves_the_distribution_alone(drafter):
    drawn = draw(drafter(), EVERYTHING, DRAWS)
    assert drawn.counts.sum() == DRAWS
    assert 0.1 < share_accepted(drawn) < 0.9  # both outcomes are at work
    assert fit(drawn.counts, EVERYTHING) > FINE


@pytest.mark.slow
@drafters
def test_every_wrong_rule_is_caught(drafter):
    assert fit(draw(drafter(), PENALISED, FEW).counts, PENALISED) > FINE
    for name, sampler in wrong_samplers(WORDS).items():
        for sampling, coarse in ((EVERYTHING, COARSE_FILTERED), (PENALISED, COARSE)):
            draws = FEW // 5 if name in coarse else FEW
            assert fit(draw(drafter(), sampling, draws, sampler).counts, sampling) < ALARM, (name, sampling)


def test_certain_drafts_and_drawn_ones_in_one_pass():
    drawn = draw(SideBySide(NgramProposer(1, 3), drawing()), PLAIN, FEW)
    assert fit(drawn.counts, PLAIN) > FINE


def test_without_drafts():
    assert fit(draw(None, PLAIN, FEW).counts, PLAIN) > FINE


def test_penalties_that_leave_the_drafts_out_are_caught(monkeypatch):
    held = Penalties.held
    monkeypatch.setattr(Penalties, "held", lambda self, after=(): held(self))
    assert fit(draw(drawing(), PENALISED, FEW).counts, PENALISED) < ALARM


class Choosy(TableDrafter):
    """Leaves out a drafted token for being unlikely, and what follows it."""

    def propose(self, asks: list[Ask]) -> Drafts:
        drafts = super().propose(asks)
        for place, tokens in enumerate(drafts.tokens):
            q = drafts.q[place]
            likely = [bool(q[i, token] > 0.25) for i, token in enumerate(tokens)]
            length = (*likely, False).index(False)
            drafts.tokens[place], drafts.q[place] = tokens[:length], q[:length]
        return drafts


def test_a_drawn_draft_must_not_be_left_out_for_what_it_is():
    """It isn't drawn from q then, but from what is left of it: see `Drafts`."""
    assert fit(draw(Choosy(OTHER), PLAIN, 2 * FEW).counts, PLAIN) < ALARM


def test_a_draft_from_the_targets_own_distribution_gives_a_token_more_than_it_has():
    """α = 1. Without the bonus the distribution is right all the same: only the count tells."""
    drawn = draw(TableDrafter(MODEL), Sampling(temperature=1.0), FEW)
    assert drawn.verdicts.get(REJECTED, 0) == 0
    assert drawn.whole == {gamma: {gamma + 1} for gamma in range(1, GAMMA + 1)}
    short = draw(TableDrafter(MODEL), Sampling(temperature=1.0), FEW, NoBonus(WORDS))
    assert fit(short.counts, Sampling(temperature=1.0)) > FINE
    assert short.whole == {}
