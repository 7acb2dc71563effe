"""Speculation's sentences: verdicts with their numbers, whether it pays and why, what is wrong with a draft."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from engine.config import LiveSettings
from engine.records import ACCEPTED, BONUS, DISCARDED, REJECTED, RESAMPLED, Ack
from tests.ui.test_payoff import columns, verified
from ui import draft_words
from ui.payoff import Payoff, Verified, measure

GREEDY = math.nan


def test_an_accepted_draft_tells_its_probability_and_the_draw():
    words = draft_words.verdict(ACCEPTED, "fox", 0.3, 0.5, 0.41)
    assert words == "“fox” accepted: accepted with probability min(1, 0.30/0.50) = 0.60; drew 0.41"


def test_a_greedy_decision_names_the_targets_own_choice():
    assert "greedy: the target's own choice was “fox” too" in draft_words.verdict(ACCEPTED, "fox", 0.9, 1.0, GREEDY)
    words = draft_words.verdict(REJECTED, "fox", 0.1, 1.0, GREEDY, chosen=" dog")
    assert "greedy: the target's own choice was “dog”, not “fox” (p = 0.10)" in words
    assert "p =" not in draft_words.verdict(REJECTED, "fox", 0.0, 1.0, GREEDY, chosen=" dog")
    assert "(greedy)" in draft_words.verdict(RESAMPLED, "dog", 0.6, 0.0, GREEDY)


def test_the_other_verdicts_say_where_the_token_comes_from():
    assert "without being examined" in draft_words.verdict(DISCARDED, "x", 0, 0, GREEDY)
    assert "max(0, p − q)" in draft_words.verdict(RESAMPLED, "x", 0.4, 0, 0.2)
    assert "bonus" in draft_words.verdict(BONUS, "x", 0.4, 0, 0.2)


def test_a_simulated_decision_claims_no_rule():
    words = draft_words.verdict(ACCEPTED, "fox", 0.3, 0.5, 0.41, simulated=True)
    assert "simulated" in words and "min(1" not in words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "n-gram · γ 4"),
        ({"draft_method": "head", "draft_policy": "adaptive"}, "trained head · γ ≤ 4"),
        ({"draft_method": "layers"}, "first 7 layers · γ 4"),
        ({"draft_method": "layers", "draft_layers": 1}, "first 1 layer · γ 4"),
        ({"draft_method": "off"}, "drafts off"),
        ({"draft_length": 0}, "drafts off"),
    ],
)
def test_a_draft_has_a_name(changes, words):
    settings = msgspec.structs.replace(LiveSettings(), **changes)
    assert draft_words.drafting(settings, settings.draft_length, layers=30) == words


def test_every_method_has_a_name():
    methods = LiveSettings.__annotations__["draft_method"]
    assert methods == "DraftMethod"
    from typing import get_args

    from engine.config import DraftMethod

    assert set(get_args(DraftMethod)) == set(draft_words.METHODS)


# --- does it pay ---


def test_what_pays_says_how_much_and_why():
    figures = measure(columns(20, 10), verified([80, 40], [80, 80], 80), 4, "ngram")
    headline, because = draft_words.payoff(figures)
    assert headline == "Pays now: 2.31×"
    assert because.startswith("batch is 4, a pass over 20 tokens takes 1.3 times a pass over 4")
    assert "a row gets 3.00 tokens a step" in because and "drafting is free" in because


def test_what_costs_names_batch_and_pass():
    slow = columns(30, 10, rows=24, drafted=96, accepted=36, took=3200, draft=100)
    figures = measure(slow, verified([720, 300], [720, 360], 720), 4, "ngram")
    headline, because = draft_words.payoff(figures)
    assert headline == "Costs now: 0.78×"
    assert because.startswith("batch is 24, a pass over 120 tokens takes 3.1 times a pass over 24")
    assert "drafting takes 0.10 of a plain step" in because and "break-even at α" in because


def test_about_even_is_called_even():
    figures = measure(columns(20, 10, took=3000), verified([80, 40], [80, 80], 80), 4, "ngram")
    assert draft_words.payoff(figures)[0] == "Even now: 1.00×"


def test_a_what_if_is_never_told_as_measured():
    figures = measure(columns(20, 10), verified([80, 40], [80, 80], 80), 4, "ngram")
    assert draft_words.payoff(figures, simulated=True)[0] == "Simulated: 2.31×"


def test_a_derived_plain_step_is_said_so():
    figures = Payoff(state="known", ratio=1.2, plain=1.0, verify=1.5, plain_from="derived", break_even=0.2)
    assert "derived from a line" in draft_words.payoff(figures)[1]
    assert "no acceptance would pay" in draft_words.payoff(Payoff(state="known", ratio=0.5, plain=1.0, verify=6.0))[1]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("off", "γ = 0"),
        ("method_off", "method is off"),
        ("idle", "measured while sequences decode"),
        ("no_matches", "nothing matched"),
        ("resting", "would cost more"),
        ("too_few", "1 drafting pass so far"),
    ],
)
def test_empty_states_are_told_apart(state, words):
    assert words in draft_words.payoff(Payoff(state=state, passes=1))[1]


def test_the_formula_is_told_with_its_numbers():
    figures = measure(columns(20, 10, draft=100), verified([80, 60], [60, 45], 80), 4, "model")
    told = draft_words.formula_story(figures)
    assert f"= {figures.formula:.2f}" in told and "0.00 ms" not in told.partition("×")[0]


def test_why_tokens_per_pass_differ_from_the_formula():
    runs = Verified(np.array([100, 68, 54, 44]), np.array([68, 54, 44, 40]), np.zeros(17))
    figures = Payoff(state="known", alpha=0.774, tokens_per_pass=3.06, expected=3.20, draft_length=4.0)
    words = draft_words.per_pass(figures, runs)
    assert words.startswith("Fewer than the formula says: acceptance isn't independent")
    assert ".68 .79 .81 .91" in words and ".77 throughout" in words
    alike = Payoff(state="known", alpha=0.8, tokens_per_pass=3.36, expected=3.3616, draft_length=4.0)
    assert draft_words.per_pass(alike, runs).startswith("As the formula says")


# --- what is wrong ---

REFUSED = Ack(id=1, ok=False, step=3, key="draft_model", message="its vocabulary differs: token 17; take another")


def test_a_refused_draft_is_told_before_anything_else():
    assert draft_words.trouble(LiveSettings(), Payoff(state="known"), REFUSED)[:2] == ("Draft refused", REFUSED.message)


def test_a_draft_that_could_not_be_had_is_told_until_another_is_chosen():
    absent = {"head": "its weights don't fit this model"}
    found = draft_words.trouble(LiveSettings(), Payoff(state="known"), None, absent, "head")
    assert found == ("No trained head here", absent["head"], "danger")
    assert draft_words.trouble(LiveSettings(), Payoff(state="known"), None, absent, "ngram") is None


def test_a_draft_that_never_fits_is_told_with_a_remedy():
    found = draft_words.trouble(LiveSettings(), Payoff(state="no_matches", steps=60))
    assert found is not None and found[0] == "The n-gram draft never matches" and "take a trained head" in found[1]
    assert draft_words.trouble(LiveSettings(), Payoff(state="no_matches", steps=6)) is None
    found = draft_words.trouble(LiveSettings(draft_method="model"), Payoff(state="known", passes=200, alpha=0.01))
    assert found is not None and "α is 0.01 over 200 drafting passes" in found[1]


def test_a_what_if_tells_its_rates():
    settings = LiveSettings(simulated_acceptance=(0.9, 0.8))
    told = draft_words.what_if(settings, "cpu")
    assert ".90 .80 by position" in told and told.endswith("the times are real")


def test_on_a_gpu_a_what_if_says_that_the_host_decides():
    told = draft_words.what_if(LiveSettings(simulated_acceptance=(0.8,)), "cuda")
    assert told.endswith("logits are copied to the host, which decides")
