"""The soak's arithmetic tells a leak from noise, and a short soak of the real window finds none of the coarse kind."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections import Counter

import pytest

from app.bench import soak
from app.bench.soak_samples import QUANTITIES, grown, process
from app.bench.soak_trend import HOUR, Allowance, trend
from app.options import UsageError

MINUTES = 1.6


def wobbling(slope_an_hour: float, seconds: float = 3_600, noise: float = 3.0, seed: int = 1):
    """Samples every ten seconds around 200."""
    rng = random.Random(seed)
    times = [10.0 * i for i in range(int(seconds / 10))]
    return times, [200 + slope_an_hour * at / HOUR + rng.gauss(0, noise) for at in times]


def test_noise_is_flat_and_a_leak_is_not():
    allowed = Allowance(8.0, 0.02)
    held = 0
    for seed in range(20):
        assert trend(*wobbling(0, seed=seed), allowed).flat
        found = trend(*wobbling(30, seed=seed), allowed)
        assert not found.flat and 25 < found.low < found.high < 35
        held += found.low <= 30 <= found.high
    assert held >= 16, "an interval of 95 % holds the truth in 19 of 20"


def test_what_rises_and_falls_back_is_flat():
    times = [10.0 * i for i in range(360)]
    saw = [200 + 40 * (at % 300) / 300 for at in times]
    assert trend(times, saw, Allowance(8.0)).flat


def test_a_single_file_that_stays_open_is_found():
    times = [10.0 * i for i in range(360)]
    assert trend(times, [17.0] * 360, Allowance(0)).flat
    leaking = trend(times, [17.0 + i // 60 for i in range(360)], Allowance(0))
    assert not leaking.flat and leaking.last > leaking.first


def test_growth_within_the_allowance_is_flat_and_says_its_slope():
    found = trend(*wobbling(4, noise=0.1), Allowance(8.0))
    assert found.flat and found.slope == pytest.approx(4, abs=0.3) and found.last > found.first


def test_too_few_samples_are_an_error():
    with pytest.raises(ValueError, match="samples"):
        trend([1.0, 2.0], [1.0, 2.0], Allowance(0))


def test_types_that_grew_are_named_the_most_first():
    before, after = Counter(a=10, b=5, c=7), Counter(a=11, b=900, c=7, d=2)
    assert grown(before, after) == {"b": [5, 900], "d": [0, 2], "a": [10, 11]}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_process_is_read_as_the_system_has_it():
    found = process(os.getpid())
    assert 0 < found["anonymous"] <= found["rss"] and found["threads"] >= 1
    with open(os.devnull), open(os.devnull):
        assert process(os.getpid())["files"] == found["files"] + 2
    assert process(2**22 + 1) is None


@pytest.mark.parametrize("words", [("--minutes", "0"), ("--history", "2"), ("--size", "big"), ("--unpaced",)])
def test_bad_words_are_refused(words):
    parser = argparse.ArgumentParser()
    soak.add_arguments(parser)
    with pytest.raises(UsageError):
        soak.run(parser.parse_args(words))


@pytest.mark.slow(seconds=100)
@pytest.mark.timeout(400)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_short_soak_finds_nothing_that_grows():
    """Too short for a slope of memory, which the hour by command tells: here it may rise by what is filled at first.
    As paced as the hour is, so that as many steps are made and asked for beside other tests as alone."""
    command = [sys.executable, "-m", "app", "bench", "soak", "--minutes", str(MINUTES), "--history", "0.003",
               "--simulate", "h200:llama-3-8b", "--json"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=350, check=False)
    assert done.returncode in (0, 1), done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["simulated"] and told["steps"] > 4_000 and told["requests"] > 150 and all(told["full"].values())
    assert told["errors"] == [] and told["drift"] == 0 and told["gc_uncollectable"] == 0
    assert set(told["did"]) >= {"hover", "scroll", "ask", "drag", "choose"}
    trends = told["trends"]
    assert set(trends) == set(QUANTITIES)
    for name in ("window_files", "engine_files", "window_threads", "engine_threads", "python_threads", "timers"):
        assert trends[name]["flat"], (name, trends[name])
    for name, most in (("window_anonymous", 30), ("engine_anonymous", 20)):
        assert trends[name]["last_quarter"] - trends[name]["first_quarter"] < most, (name, trends[name])
    # four thousand shaped texts are kept, of some three objects each; a minute doesn't shape them all
    for name, most in (("gc_objects", 16_000), ("qt_objects", 200)):
        assert trends[name]["last_quarter"] - trends[name]["first_quarter"] < most, (name, told["types"])
