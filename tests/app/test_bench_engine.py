"""`servescope bench engine`: one object with the figures, and figures that an own count confirms."""

from __future__ import annotations

import json

import pytest

from app import headless
from app.__main__ import main
from app.bench.engine import Meter
from engine import records as r
from engine.config import LiveSettings
from tests.support.fake_engine import FakeEngine
from tests.support.inprocess import InProcessEngine

FIGURES = ("output_tokens_per_s", "prefill_tokens_per_s", "ttft_s", "step_ms_p50", "step_ms_p99")


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    monkeypatch.setattr(headless, "EngineClient", InProcessEngine)


@pytest.mark.parametrize("gamma", [0, 4])
def test_one_object_with_all_figures_and_settings(capsys, gamma):
    words = ["--streams", "5", "--prompt-tokens", "20", "--new-tokens", "30", "--gamma", str(gamma), "--json"]
    assert main(["bench", "engine", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(found[name] > 0 for name in FIGURES)
    assert found["prefill_tokens_per_s"] == pytest.approx(100 / found["ttft_s"], rel=1e-3)
    settings = found["settings"]
    assert settings["max_batch"] == 5 and settings["draft_length"] == gamma and found["preemptions"] == 0
    assert (found["acceptance"] is None) == (gamma == 0)
    assert found["step_ms_p50"] <= found["step_ms_p99"]


def test_settings_given_by_hand_win(capsys):
    words = ["--streams", "4", "--new-tokens", "8", "--set", "max_batch=2", "--set", "block_size=8", "--json"]
    assert main(["bench", "engine", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["max_batch"] == 2 and found["block_size"] == 8


def test_in_words(capsys):
    assert main(["bench", "engine", "--streams", "1", "--new-tokens", "8"]) == 0
    assert "tokens/s over all streams" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--streams", "0"], ["--gamma", "99"], ["--new-tokens", "1"], ["--streams", "x"]])
def test_bad_numbers_are_one_line(capsys, words):
    try:
        code = main(["bench", "engine", *words])
    except SystemExit as end:
        code = end.code
    assert code == 2 and capsys.readouterr().err.count("\n") == 1


def test_the_decode_phase_begins_when_the_last_stream_has_its_first_token():
    def step(clock: int, seqs: list[int]) -> r.StepRecord:
        record = FakeEngine(LiveSettings(), 0).step()
        fields = {name: getattr(record, name) for name in r.StepRecord.__struct_fields__}
        emitted = r.pack([(seq, 0, 1, r.SAMPLED) for seq in seqs], r.TOKEN)
        timing = r.Timing(forward=10**6 * len(seqs))
        return r.StepRecord(**{**fields, "end_clock": clock, "emitted": emitted, "timing": timing})

    meter = Meter(streams=2)
    for message in (step(10**9, [1]), step(2 * 10**9, [1, 2]), step(3 * 10**9, [1, 2]), step(4 * 10**9, [1, 2, 2])):
        meter.see(message)
    assert meter.figures() == {"output_tokens_per_s": 2.5, "step_ms_p50": 2.5, "step_ms_p99": 2.99}
