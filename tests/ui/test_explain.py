"""Sentences and the figures behind them: numbers, verdicts, whether drafting pays, bytes that sum."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from engine.formulas import speedup
from engine.records import ACCEPTED, BONUS, DISCARDED, REJECTED, RESAMPLED
from ui import explain
from ui.payoff import Payoff, break_even, measure, plain_time

MIB = 1 << 20


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 MiB"),
        (23_040, "22.5 KiB"),
        (269 * MIB, "269 MiB"),
        (2 << 30, "2.00 GiB"),
        (-5 * MIB, "−5.00 MiB"),
        (math.nan, "–"),
    ],
)
def test_bytes_are_binary_units(value, text):
    assert explain.size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.00042, "0.42 ms"), (0.084, "84.0 ms"), (0.31, "310 ms"), (1.239, "1.24 s"), (200, "3 min 20 s"), (None, "–")],
)
def test_durations_have_three_figures(seconds, text):
    assert explain.duration(seconds) == text


def test_a_mark_names_the_setting_as_the_controls_do():
    assert explain.change("draft_length", 4, 8) == "γ 4 → 8"
    assert explain.change("kv_blocks", 512, 1024) == "KV blocks 512 → 1,024"
    assert explain.change("prefix_cache", True, False) == "prefix cache on → off"


def test_white_space_is_made_visible():
    assert explain.visible("\n") == "⏎"
    assert explain.visible(" ") == "·"
    assert explain.visible(" the ") == "the"


def test_an_accepted_draft_tells_its_probability_and_the_draw():
    words = explain.verdict(ACCEPTED, "fox", 0.3, 0.5, 0.41)
    assert words == "“fox” accepted: accepted with probability min(1, 0.30/0.50) = 0.60; drew 0.41"


def test_a_greedy_decision_draws_nothing():
    assert "greedy" in explain.verdict(ACCEPTED, "fox", 0.9, 1.0, math.nan)
    assert "not the target's likeliest" in explain.verdict(REJECTED, "fox", 0.1, 1.0, math.nan)


def test_the_other_verdicts_say_where_the_token_comes_from():
    assert "without being examined" in explain.verdict(DISCARDED, "x", 0, 0, math.nan)
    assert "max(0, p − q)" in explain.verdict(RESAMPLED, "x", 0.4, 0, 0.2)
    assert "bonus" in explain.verdict(BONUS, "x", 0.4, 0, 0.2)


# --- does drafting pay ---


def columns(drafting: int, plain: int, *, rows=4, drafted=16, accepted=8, took=1300, step=1000, draft=0):
    """Steps of `rows` decode rows: first plain ones, then ones with drafts. Times in ns, all of it in `forward`."""
    n = drafting + plain
    is_drafting = np.arange(n) >= plain
    zero = np.zeros(n, np.int64)
    return SimpleNamespace(
        prefill=zero, decode=np.full(n, rows), accepted=np.where(is_drafting, accepted, 0),
        rejected=np.where(is_drafting, drafted - accepted, 0), schedule=zero, draft=np.where(is_drafting, draft, 0),
        forward=np.where(is_drafting, took - draft, step), sample=zero, commit=zero,
    )  # fmt: skip


def test_the_ratio_is_tokens_over_time_against_plain_steps():
    figures = measure(columns(20, 10), np.array([80, 40]), np.array([80, 80]), 4, "ngram")
    assert figures.state == "known" and figures.plain_from == "measured"
    assert figures.tokens_per_row == pytest.approx(3.0)
    assert figures.ratio == pytest.approx(speedup(3.0, 1000, 0, 1300))
    headline, because = explain.payoff(figures)
    assert headline == "Pays now: 2.31×"
    assert "takes 1.30 of a plain one and gives 3.00 tokens a row" in because and "drafting is free" in because


def test_drafting_that_costs_says_so():
    slow = columns(20, 10, accepted=1, took=2000, draft=400)
    figures = measure(slow, np.array([80, 10]), np.array([15, 5]), 4, "ngram")
    headline, because = explain.payoff(figures)
    assert headline.startswith("Costs now: 0.6")
    assert "0.40 of that is drafting" in because and "break-even at α" in because


def test_about_even_is_called_even():
    figures = measure(columns(20, 10, took=3000), np.array([80, 40]), np.array([80, 80]), 4, "ngram")
    assert explain.payoff(figures)[0] == "Even now: 1.00×"


def test_without_plain_steps_the_plain_time_is_derived_and_said_so():
    mixed = columns(40, 0)
    mixed.rejected = np.where(np.arange(40) % 2, 8, 20)
    mixed.forward = 600 + 25 * (mixed.decode + mixed.accepted + mixed.rejected)  # a line: 600 + 25 a token
    figures = measure(mixed, np.array([160, 80]), np.array([160, 160]), 4, "ngram")
    assert figures.plain_from == "derived"
    assert figures.plain == pytest.approx(600 + 25 * 4, rel=0.01)
    assert "derived from a line" in explain.payoff(figures)[1]


def test_plain_steps_at_another_batch_do_not_count():
    rows = np.array([4] * 5 + [32] * 5)
    total = np.where(rows == 4, 1000, 9000)
    every = np.ones(10, bool)
    assert plain_time(total, rows, rows, every, every, 4.0) == (1000.0, "measured")
    assert plain_time(total, rows, rows, every, every, 16.0)[1] == "derived"


@pytest.mark.parametrize(
    ("gamma", "method", "examined", "state", "words"),
    [
        (0, "ngram", [0], "off", "γ = 0"),
        (4, "off", [0], "method_off", "method is off"),
        (4, "ngram", [0], "no_matches", "no repeated n-gram"),
        (4, "ngram", [3], "too_few", "3 drafting passes"),
    ],
)
def test_empty_states_are_told_apart(gamma, method, examined, state, words):
    figures = measure(columns(2, 5), np.array(examined), np.array([1]), gamma, method)
    assert figures.state == state
    assert words in explain.payoff(figures)[1]


def test_nothing_decoded_yet_is_no_verdict():
    figures = measure(columns(0, 0), np.zeros(4, int), np.zeros(4, int), 4, "ngram")
    assert explain.payoff(figures)[0] == "No decode steps yet"


def test_break_even_gives_back_the_cost():
    alpha = break_even(1.5, share=1.0, length=4.0)
    assert alpha is not None
    assert sum(alpha**i for i in range(5)) == pytest.approx(1.5, rel=1e-6)
    assert break_even(0.9, 1.0, 4.0) == 0.0
    assert break_even(6.0, 1.0, 4.0) is None
    assert "no acceptance would pay" in explain.payoff(Payoff(state="known", ratio=0.5, plain=1.0, verify=6.0))[1]
