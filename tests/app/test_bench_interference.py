"""`servescope bench interference`: one object with the figures, each from the records of a real core."""

from __future__ import annotations

import json

import pytest

from app import headless
from app.__main__ import main
from tests.support.inprocess import InProcessEngine

SMALL = ["--streams", "3", "--new-tokens", "40", "--newcomer-tokens", "60", "--rounds", "2"]


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    monkeypatch.setattr(headless, "EngineClient", InProcessEngine)


def test_one_object_with_all_figures(capsys):
    assert main(["bench", "interference", *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for name in ("worst_gap_ms", "ttft_ms", "usual_gap_ms"):
        assert 0 < found[name]["min"] <= found[name]["median"] <= found[name]["max"]
    assert found["settings"]["draft_length"] == 0 and found["rounds"] == 2 and found["newcomer_tokens"] == 60


def test_a_smaller_budget_takes_the_newcomer_more_steps(capsys):
    """With one step a poll, a prompt of 60 in steps of 8 keeps its first token waiting; the setting is in force."""
    assert main(["bench", "interference", *SMALL, "--set", "token_budget=16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["token_budget"] == 16


def test_in_words(capsys):
    assert main(["bench", "interference", *SMALL]) == 0
    assert "worst gap" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--streams", "0"], "--streams"),
        (["--new-tokens", "4"], "--new-tokens"),
        (["--rounds", "0"], "--rounds"),
        (["--set", "draft_length=2"], "draft_length"),
    ],
)
def test_bad_numbers_are_one_line(capsys, words, named):
    assert main(["bench", "interference", *words]) == 2
    said = capsys.readouterr().err
    assert named in said and said.count("\n") == 1


def test_streams_too_short_for_the_newcomer(capsys):
    words = ["--streams", "2", "--new-tokens", "16", "--newcomer-tokens", "400", "--set", "token_budget=16"]
    assert main(["bench", "interference", *words]) == 1
    assert "more new tokens" in capsys.readouterr().err
