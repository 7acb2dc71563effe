"""What the calibration bench makes of measured steps; the measuring itself needs a real engine and time."""

from __future__ import annotations

import json

import pytest

from app.bench.calibrate import ALLOWED, Case, cases, fitted, in_words, judged
from engine.cost_model import Rates, counts
from engine.profiles import parse

MADE = Rates(bandwidth=30e9, flops=120e9, overhead=4e-3, attention=4e9)


def times(**slower: float) -> dict:
    """As a machine with these rates takes; `slower`: the cases of a context that take so many times longer."""
    counted = counts(parse("h200:smollm2-135m").model)
    found = {}
    for case in cases(64, 512, 1024):
        work = counted.work([1] * case.streams, [case.context] * case.streams, case.streams)
        found[case] = work, MADE.seconds(work) * slower.get(f"at_{case.context}", 1.0)
    return found


def test_a_machine_that_is_a_roofline_is_predicted():
    found = judged(times(), fitted(64, 1024))
    assert found["holds"] and found["worst_error"] < 0.01
    assert found["attention_gb_per_s"] == pytest.approx(4, rel=0.01)
    seen = [row for row in found["cases"] if row["fitted"]]
    assert {(row["streams"], row["context"]) for row in seen} == {(1, 64), (4, 64), (32, 64), (4, 1024)}
    unseen = {(row["streams"], row["context"]) for row in found["cases"] if not row["fitted"]}
    assert unseen == {(2, 64), (8, 64), (16, 64), (2, 512), (8, 512)}


def test_one_that_is_none_is_told_so():
    found = judged(times(at_512=1.5), fitted(64, 1024))
    assert not found["holds"] and found["worst_error"] == pytest.approx(0.5, abs=0.02) and found["within"] == ALLOWED
    assert "does not hold" in in_words(found | {"model": "m", "dtype": "file", "device": "CPU"})


def test_what_bound_no_step_is_no_figure():
    """A fit to steps that bytes don't explain: JSON has no infinity."""
    measured = {case: (work, 0.02 + 1e-4 * case.streams) for case, (work, _) in times().items()}
    found = judged(measured, fitted(64, 1024))
    json.dumps(found, allow_nan=False)
    assert None in (found["bandwidth_gb_per_s"], found["attention_gb_per_s"])
    assert "no limit in these steps" in in_words(found | {"model": "m", "dtype": "file", "device": "CPU"})


def test_a_case_is_its_streams_and_context():
    assert Case(2, 64) == Case(2, 64) != Case(2, 512)
