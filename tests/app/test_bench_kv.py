"""`servescope bench kv`: one object with the figures, those at the top the worst of the largest pool."""

from __future__ import annotations

import json

import pytest

from app import headless
from app.__main__ import main
from app.bench import runs
from tests.support.inprocess import InProcessEngine

MODEL = ["--pairs", "2", "--prompt-tokens", "70"]


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    monkeypatch.setattr(headless, "EngineClient", InProcessEngine)


@pytest.fixture
def jobs(monkeypatch) -> list[dict]:
    """What was asked for; the answers are made up so that every figure has another source."""
    asked: list[dict] = []

    def answer(module: str, text: str, timeout: float) -> dict:
        job = json.loads(text)
        asked.append(job)
        slower = job["blocks"] / 1e6 + len(asked) / 1e3
        loads = [
            {
                "gamma": gamma,
                "us": [500 + 100 * gamma + slower * step for step in range(job["steps"])],
                "parts_ms": {"schedule": 0.3, "settle": 0.2 + slower, "drain": 0.1},
                "running": 7.5, "drafted": 3.5, "ended": 1.5, "evicted": 2.5,
            }
            for gamma in job["gammas"]
        ]  # fmt: skip
        return {"blocks": job["blocks"], "block_size": 16, "loads": loads,
                "alloc_free_us": slower, "lookup_us_per_block": 2 * slower}  # fmt: skip

    monkeypatch.setattr(runs, "fresh_process", answer)
    return asked


def bench(capsys, *words: str) -> dict:
    assert main(["bench", "kv", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_pools_take_turns_and_the_worst_is_on_top(jobs, capsys):
    found = bench(capsys, "--rows", "8", "--blocks", "1000000", "256", "--rounds", "2", "--steps", "101", "--no-model")
    assert [job["blocks"] for job in jobs] == [256, 1_000_000] * 2 and {job["rows"] for job in jobs} == {8}
    assert [(load["blocks"], load["gamma"]) for load in found["loads"]] == [
        (256, 0), (256, 4), (1_000_000, 0), (1_000_000, 4)]  # fmt: skip
    worst = found["loads"][-1]
    assert found["schedule_ms_p50"] == worst["schedule_ms_p50"] == pytest.approx(0.950, abs=1e-3)
    assert found["schedule_ms_p99"] == worst["schedule_ms_p99"] == pytest.approx(0.999, abs=1e-3)
    assert found["alloc_free_us"] == 1.003 and found["lookup_us_per_block"] == 2.006
    assert worst["parts_ms"] == {"schedule": 0.3, "settle": 1.203, "drain": 0.1}
    assert found["size_ratio"]["median"] == pytest.approx((550 / 500 + 950 / 900) / 2, abs=0.01)
    assert "prefix_ttft_ratio" not in found


def test_one_pool_has_nothing_to_be_compared_with(jobs, capsys):
    assert main(["bench", "kv", "--blocks", "4000", "--rounds", "1", "--steps", "9", "--no-model"]) == 0
    said = capsys.readouterr().out
    assert "γ 4" in said and "a block taken and let go of" in said and "÷" not in said


def test_hits_are_of_whole_blocks_and_counted(jobs, capsys):
    found = bench(capsys, "--steps", "5", "--rounds", "1", *MODEL)
    assert found["prefix_hit_tokens"] == 64 and found["prefix_prompt_tokens"] == 70 and found["pairs"] == 2
    for name in ("prefix_ttft_ratio", "prefix_cold_ms", "prefix_hit_ms"):
        assert 0 < found[name]["min"] <= found[name]["median"] <= found[name]["max"]


def test_without_a_prefix_cache_there_is_nothing_to_hit(jobs, capsys):
    words = ["--steps", "5", "--rounds", "1", *MODEL, "--set", "prefix_cache=false"]
    assert main(["bench", "kv", *words]) == 1
    assert "prefix_cache" in capsys.readouterr().err


@pytest.mark.slow
def test_the_real_thing_in_words(capsys):
    words = ["--rows", "8", "--blocks", "256", "512", "--steps", "20", "--rounds", "1", *MODEL]
    assert main(["bench", "kv", *words]) == 0
    said = capsys.readouterr().out
    assert "512 blocks, γ 4" in said and "largest ÷ smallest pool" in said and "times as fast" in said


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--rows", "0"], "--rows 0"),
        (["--blocks", "4000", "100"], "--blocks 100: 256 sequences need 3,840"),
        (["--blocks", "100000000"], "--blocks 100,000,000"),
        (["--gamma", "99"], "--gamma 99"),
        (["--steps", "0"], "--steps 0"),
        (["--rounds", "0"], "--rounds 0"),
        (["--pairs", "0"], "--pairs 0"),
        (["--prompt-tokens", "1"], "--prompt-tokens 1"),
        (["--set", "nothing=1"], "nothing"),
    ],
)
def test_bad_numbers_are_one_line(capsys, words, named):
    assert main(["bench", "kv", *words]) == 2
    said = capsys.readouterr().err
    assert named in said and said.count("\n") == 1


def test_a_process_that_fails_is_said(monkeypatch, capsys):
    def fail(*_, **__):
        raise RuntimeError("engine.kv_times ended with 1: out of memory")

    monkeypatch.setattr(runs, "fresh_process", fail)
    assert main(["bench", "kv", "--no-model"]) == 1
    assert "out of memory" in capsys.readouterr().err
