"""Whether drafting pays, from step times and counts: the ratio, the formula's, and where the time goes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from engine.formulas import (
    accept_probability,
    expected_accepted,
    expected_tokens_per_pass,
    speedup,
    speedup_ideal,
)
from ui.payoff import Verified, break_even, measure, plain_time


def columns(drafting: int, plain: int, *, rows=4, drafted=16, accepted=8, took=1300, step=1000, draft=0, gamma=4):
    """Steps of `rows` decode rows: first plain ones at γ 0, then ones with drafts. Times in ns, all in `forward`."""
    n = drafting + plain
    is_drafting = np.arange(n) >= plain
    zero = np.zeros(n, np.int64)
    return SimpleNamespace(
        step=np.arange(1, n + 1), gamma=np.where(is_drafting, gamma, 0), prefill=zero, decode=np.full(n, rows),
        accepted=np.where(is_drafting, accepted, 0), rejected=np.where(is_drafting, drafted - accepted, 0),
        schedule=zero, draft=np.where(is_drafting, draft, 0), swap=zero,
        forward=np.where(is_drafting, took - draft, step), sample=zero, commit=zero,
    )  # fmt: skip


def verified(examined, accepted, passes: int) -> Verified:
    lengths = np.zeros(17, np.int64)
    lengths[0] = passes
    return Verified(np.array(examined), np.array(accepted), lengths)


def test_the_worked_examples_of_the_formulas_that_are_shown():
    assert accept_probability(0.3, 0.5) == pytest.approx(0.6)
    assert expected_tokens_per_pass(0.8, 4) == pytest.approx(3.3616)
    assert expected_accepted(0.8, 5) == pytest.approx(2.689, abs=5e-4)
    assert speedup_ideal(0.8, 5, 10) == pytest.approx(2.46, abs=5e-3)


def test_the_ratio_is_tokens_over_time_against_plain_steps():
    figures = measure(columns(20, 10), verified([80, 120], [80, 80], 80), 4, "ngram")
    assert figures.state == "known" and figures.plain_from == "measured" and figures.plain_steps == 10
    assert figures.tokens_per_row == pytest.approx(3.0)
    assert figures.ratio == pytest.approx(speedup(3.0, 1000, 0, 1300))
    assert figures.batch == 4 and figures.pass_tokens == 20 and figures.steps == 20


def test_steps_in_which_nothing_was_drafted_count_as_well():
    """A draft that fits one step in two gains half: what it costs and gives is taken over all steps."""
    half = columns(20, 10)
    idle = np.arange(30) % 2 == 1
    for name in ("accepted", "rejected"):
        setattr(half, name, np.where(idle, 0, getattr(half, name)))
    half.forward = np.where(idle, 1000, half.forward)
    figures = measure(half, verified([40, 20], [40, 40], 40), 4, "ngram")
    assert figures.tokens_per_row == pytest.approx(2.0) and figures.share == pytest.approx(0.5)
    assert figures.ratio == pytest.approx(2.0 * 1000 / 1150)


def test_the_formula_takes_measured_times_and_acceptance():
    figures = measure(columns(20, 10, draft=100), verified([80, 64, 51, 41], [64, 51, 41, 33], 80), 4, "model")
    alpha = (64 + 51 + 41 + 33) / (80 + 64 + 51 + 41)
    assert figures.alpha == pytest.approx(alpha)
    assert figures.formula == pytest.approx((expected_accepted(alpha, 4) + 1) * 1000 / (100 + 1200))
    assert figures.draft == 100 and figures.verify == 1200


def test_where_time_goes_sums_to_what_a_token_takes():
    figures = measure(columns(20, 10, draft=100), verified([80, 40], [80, 80], 80), 4, "model")
    costs = figures.costs
    assert costs is not None
    assert costs.total == pytest.approx(1300 / 12)  # of a step that gives 4 + 8 tokens
    assert costs.draft == pytest.approx(100 / 12)
    assert costs.rejected == pytest.approx(1200 * 8 / 20 / 12)  # 8 of the pass's 20 tokens came to nothing
    assert costs.verify == pytest.approx(1200 * 12 / 20 / 12) and costs.other == 0


def test_steps_under_other_drafts_tell_only_what_plain_steps_take():
    figures = measure(columns(20, 10), verified([80, 40], [80, 80], 80), 4, "ngram", first=21)
    assert figures.steps == 10 and figures.plain_steps == 10
    other = measure(columns(20, 10), verified([], [], 0), 8, "ngram")
    assert other.state == "idle"


def test_without_plain_steps_the_plain_time_is_derived_and_said_so():
    mixed = columns(40, 0)
    mixed.rejected = np.where(np.arange(40) % 2, 8, 20)
    mixed.forward = 600 + 25 * (mixed.decode + mixed.accepted + mixed.rejected)  # a line: 600 + 25 a token
    figures = measure(mixed, verified([160, 80], [160, 160], 160), 4, "ngram")
    assert figures.plain_from == "derived"
    assert figures.plain == pytest.approx(600 + 25 * 4, rel=0.01)


def test_plain_steps_at_another_batch_do_not_count():
    rows = np.array([4] * 5 + [32] * 5)
    total = np.where(rows == 4, 1000, 9000)
    every = np.ones(10, bool)
    assert plain_time(total, rows, rows, every, every, 4.0) == (1000.0, "measured", 5)
    assert plain_time(total, rows, rows, every, every, 16.0)[1] == "derived"


@pytest.mark.parametrize(
    ("gamma", "method", "passes", "adaptive", "state"),
    [
        (0, "ngram", 0, False, "off"),
        (4, "off", 0, False, "method_off"),
        (4, "ngram", 0, False, "no_matches"),
        (4, "ngram", 0, True, "resting"),
        (4, "ngram", 3, False, "too_few"),
    ],
)
def test_empty_states_are_told_apart(gamma, method, passes, adaptive, state):
    told = columns(2, 5, drafted=0 if not passes else 16, accepted=0)
    figures = measure(told, verified([passes], [0], passes), gamma, method, adaptive=adaptive)
    assert figures.state == state


def test_nothing_decoded_yet_is_no_verdict():
    assert measure(columns(0, 0), verified([], [], 0), 4, "ngram").state == "idle"


def test_a_draft_that_is_hardly_ever_kept_is_hopeless_once_there_are_many():
    assert measure(columns(20, 10), verified([80], [2], 80), 4, "ngram").hopeless
    assert not measure(columns(20, 10), verified([80], [8], 80), 4, "ngram").hopeless
    assert not measure(columns(5, 10), verified([20], [0], 20), 4, "ngram").hopeless


def test_break_even_gives_back_the_cost():
    alpha = break_even(1.5, share=1.0, length=4.0)
    assert alpha is not None
    assert sum(alpha**i for i in range(5)) == pytest.approx(1.5, rel=1e-6)
    assert break_even(0.9, 1.0, 4.0) == 0.0
    assert break_even(6.0, 1.0, 4.0) is None
