"""`servescope bench speculation`: one object whose figures an own count confirms; outputs that drafts don't change."""

from __future__ import annotations

import json
from argparse import Namespace
from itertools import product

import pytest

from app import headless
from app.__main__ import main
from app.bench import speculation
from app.bench.drafted_load import PLAIN, Way, _Meter
from app.bench.repeats import loops, repeated
from engine import records as r
from engine.config import LiveSettings
from tests.support.fake_engine import FakeEngine
from tests.support.inprocess import InProcessEngine

WORDS = ["bench", "speculation", "--methods", "ngram", "--gammas", "2", "4", "--new-tokens", "16", "--pairs", "2"]


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    monkeypatch.setattr(headless, "EngineClient", InProcessEngine)


def test_one_object_with_all_figures(capsys):
    assert main([*WORDS, "--kinds", "chat", "edit", "--batches", "1", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chat_speedup_batch1"] > 0 and found["edit_speedup_batch1"] > 0
    runs = [(run["kind"], run["batch"], run["method"], run["gamma"], run["policy"]) for run in found["runs"]]
    assert sorted(runs) == sorted(
        (kind, batch, *way) for kind in ("chat", "edit") for batch in (1, 4)
        for way in (("off", 0, "fixed"), ("ngram", 2, "fixed"), ("ngram", 4, "fixed"), ("ngram", 4, "adaptive"))
    )  # fmt: skip
    for run in found["runs"]:
        assert run["speedup"] > 0 and run["verify_ms"] > 0
        assert (run["acceptance"] is None) == (run["tokens_per_pass"] is None)
        if run["acceptance"] is not None:
            assert 1 <= run["tokens_per_pass"] <= 1 + run["drafted_per_pass"] <= 1 + run["gamma"]
    chat = found["speedups"][0]
    assert len(chat["ratios"]) == 2 and chat["interval"][0] <= chat["speedup"] <= chat["interval"][1]
    assert chat["same_output"] == chat["prompts"] == 8, "the half of 16 prompts that chose nothing"
    assert {(one["kind"], one["batch"]) for one in found["adaptive"]} == {("chat", 1), ("chat", 4)}
    assert found["plain_to_bench_engine"]["ratio"] > 0 and found["plain_to_bench_engine"]["kind"] == "chat"
    assert found["lossless"]["equal"] == found["lossless"]["outputs"] == 26 and not found["lossless"]["different"]


def test_the_best_way_is_found_on_one_half_of_the_prompts_and_told_of_the_other(monkeypatch):
    seen = []

    def drive(client, requests, way, batch):
        seen.append((way, [request.number % 2 for request in requests]))
        return real(client, requests, way, batch)

    real = speculation.drive
    monkeypatch.setattr(speculation, "drive", drive)
    monkeypatch.setattr(speculation, "_beside_bench_engine", lambda client, args: None)
    assert main([*WORDS, "--kinds", "chat", "--batches", "1", "--no-adaptive", "--no-lossless", "--json"]) == 0
    rest = seen[1:]  # after the warm-up
    survey, pairs = rest[:-4], rest[-4:]
    assert all(not any(halves) for _, halves in survey) and all(all(halves) for _, halves in pairs)
    assert [way == PLAIN for way, _ in pairs] == [False, True, True, False], "each first as often as the other"


def test_in_words(capsys):
    assert main([*WORDS, "--kinds", "edit", "--batches", "1", "--no-lossless"]) == 0
    told = capsys.readouterr().out
    assert "edit, one stream: ngram γ" in told and "tokens a pass" in told


@pytest.mark.parametrize("words", [["--pairs", "0"], ["--gammas", "99"], ["--batches", "0"], ["--set", "max_batch=2"]])
def test_bad_numbers_are_one_line(capsys, words):
    assert main(["bench", "speculation", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_method_that_cannot_be_had_is_told_and_left_out(capsys):
    words = ["bench", "speculation", "--methods", "ngram", "head", "--gammas", "2", "--new-tokens", "8", "--pairs", "1"]
    assert main([*words, "--kinds", "chat", "--batches", "1", "--no-adaptive", "--no-lossless", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "head" in found["absent"] and {run["method"] for run in found["runs"]} == {"off", "ngram"}


def step(clock: int, rows: list[tuple], drafts: list[tuple] = (), **timing: int) -> r.StepRecord:
    """rows: (seq, kind, drafted, accepted, emitted)."""
    fields = {name: getattr(FakeEngine(LiveSettings(), 0).step(), name) for name in r.StepRecord.__struct_fields__}
    packed = [(seq, kind, 1 + drafted, 9, 9, drafted, kept, out) for seq, kind, drafted, kept, out in rows]
    verdicts = [(1, 0, 0, verdict, 1.0, 1.0, 0.0) for verdict in drafts]
    return r.StepRecord(**{
        **fields, "end_clock": clock, "rows": r.pack(packed, r.ROW), "drafts": r.pack(verdicts, r.DRAFT),
        "text": ["x"] * sum(row[4] for row in rows), "timing": r.Timing(**timing), "events": [],
    })  # fmt: skip


def test_a_load_counts_steps_without_prompts_from_end_to_end():
    meter = _Meter(batch=1, requests=1)
    meter._numbers = {1: 7}
    for one in (
        step(10, [(1, r.PREFILL, 0, 0, 1)], forward=99),
        step(30, [(1, r.DECODE, 3, 2, 3)], [r.ACCEPTED, r.ACCEPTED, r.REJECTED, r.RESAMPLED], draft=4, forward=12),
        step(45, [(1, r.DECODE, 0, 0, 1)], forward=8, sample=2),
        step(90, [(1, r.DECODE, 0, 0, 1), (2, r.PREFILL, 0, 0, 0)], forward=40),
    ):
        meter.see(one)
    found = meter.found
    assert (found.tokens, found.ns, found.steps) == (4, 35, 2) and found.alone == {7: (4, 35)}
    assert (found.passes, found.drafted, found.examined, found.accepted) == (1, 3, 3, 2)
    told = found.told()
    assert told["acceptance"] == round(2 / 3, 4) and told["tokens_per_pass"] == 3.0
    assert (found.draft_ns, found.verify_ns) == (4, 22)


def test_tokens_inside_repeated_runs():
    text = list(range(20))
    assert repeated(text) == 0
    assert repeated(text + text) == 20
    assert repeated([*text, *text[:8]]) == 8 and repeated([*text, *text[:7]]) == 0
    assert repeated([5] * 20) == 19, "all but the first of a run that begins again with each token"
    assert loops(text + text) and not loops([*text, *range(50, 100), *text[:8]])


def test_a_way_in_words():
    assert [str(way) for way in (PLAIN, Way("ngram", 4), Way("head", 8, "adaptive"))] == [
        "no drafts", "ngram γ 4", "head γ ≤ 8",
    ]  # fmt: skip


def test_time_is_that_of_the_full_batch():
    meter = _Meter(batch=4, requests=2)
    both = [(1, r.DECODE, 0, 0, 1), (2, r.DECODE, 0, 0, 1)]
    for one in (step(10, both), step(30, both), step(35, both[:1]), step(60, both)):
        meter.see(one)
    assert (meter.found.tokens, meter.found.ns) == (4, 20 + 25)


def test_a_batch_has_twice_its_prompts_and_no_half_has_those_of_the_other():
    args = Namespace(new_tokens=8)
    for kind, batch in product(("chat", "code"), (1, 4, 16)):
        halves = [[request.prompt for request in speculation._requests(kind, half, args, batch)] for half in (0, 1)]
        assert len(halves[0]) == len(halves[1]) >= (2 * batch if batch > 1 else 4)
        assert not set(halves[0]) & set(halves[1]) and len(set(halves[0])) == len(halves[0])
