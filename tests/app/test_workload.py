"""The built-in workload: what it sends, how often, and that its sliders are obeyed by the requests submitted."""

from __future__ import annotations

import random
from statistics import mean

import pytest

from app.workload.arrivals import BACKLOG, PoissonWorkload
from app.workload.prompts import PromptSet, draw_length
from engine.records import Command, Request, Submit
from ui.contracts import WORKLOAD_LIMITS, WorkloadSettings


class Sink:
    """A source that keeps what it is sent."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._id = 0

    def next_id(self) -> int:
        self._id += 1
        return self._id

    def send(self, command: Command) -> None:
        assert isinstance(command, Submit)
        self.requests.append(command.request)


@pytest.fixture(scope="module")
def prompts() -> PromptSet:
    return PromptSet.load()


def workload(prompts: PromptSet, **settings) -> tuple[PoissonWorkload, Sink]:
    sink = Sink()
    return PoissonWorkload(sink, prompts, WorkloadSettings(**settings)), sink


def test_the_set_is_varied(prompts):
    assert len(prompts.prompts) >= 60
    assert {p.kind for p in prompts.prompts} == {"chat", "code", "list", "summary", "edit", "shared"}
    assert len({p.text for p in prompts.prompts}) == len(prompts.prompts)
    shared = [p for p in prompts.prompts if p.kind == "shared"]
    assert len(shared) >= 5 and len({p.system for p in shared}) == 1 and len(shared[0].system) > 1000


@pytest.mark.parametrize("rate", [0.5, 4.0, 20.0])
def test_arrivals_have_the_rate_of_the_slider(prompts, rate):
    load, sink = workload(prompts, rate=rate)
    seconds = 400 / rate
    for _ in range(1000):
        load.advance(seconds / 1000)
    assert len(sink.requests) == pytest.approx(400, abs=4 * 20)  # four standard deviations of a Poisson count


@pytest.mark.parametrize("tokens", [64, 100, 180, 400, 800])
def test_prompts_have_the_mean_of_the_slider(prompts, tokens):
    rng = random.Random(1)
    lengths = [prompts.choose(tokens, rng).tokens for _ in range(2000)]
    low = min(p.tokens for p in prompts.prompts)
    assert mean(lengths) == pytest.approx(max(tokens, low), rel=0.15)


@pytest.mark.parametrize("tokens", [16, 96, 512])
def test_outputs_have_the_mean_of_the_slider(prompts, tokens):
    load, sink = workload(prompts, output_tokens=tokens)
    load.send(1500)
    assert mean(r.max_tokens for r in sink.requests) == pytest.approx(tokens, rel=0.06)


def test_a_dragged_slider_acts_on_the_next_request(prompts):
    load, sink = workload(prompts, rate=0.0, output_tokens=500)
    load.send(200)
    load.change(WorkloadSettings(rate=0.0, output_tokens=8))
    load.send(200)
    before, after = sink.requests[:200], sink.requests[200:]
    assert mean(r.max_tokens for r in before) > 350
    assert mean(r.max_tokens for r in after) < 12


def test_stopped_or_rate_zero_sends_nothing(prompts):
    for settings in ({"running": False}, {"rate": 0.0}):
        load, sink = workload(prompts, **settings)
        assert load.advance(1000.0) == 0 and not sink.requests


def test_a_stall_is_not_answered_with_a_flood(prompts):
    load, sink = workload(prompts, rate=20.0)
    load.advance(3600.0)
    assert len(sink.requests) == BACKLOG
    load.advance(1.0)
    assert len(sink.requests) <= BACKLOG + 50


def test_values_beyond_the_limits_are_brought_to_them(prompts):
    load, _ = workload(prompts)
    load.change(WorkloadSettings(rate=1e9, prompt_tokens=-5, output_tokens=10**9))
    for key, (low, high) in WORKLOAD_LIMITS.items():
        assert low <= getattr(load.settings, key) <= high


def test_same_seed_same_requests(prompts):
    first, second = workload(prompts)[1], workload(prompts)[1]
    for sink in (first, second):
        PoissonWorkload(sink, prompts, WorkloadSettings(seed=3)).send(20)
    assert first.requests == second.requests


def test_lengths_are_positive():
    rng = random.Random(0)
    assert min(draw_length(1, rng) for _ in range(500)) == 1


def test_held_it_sends_nothing_and_goes_on_as_it_was(prompts):
    load, _ = workload(prompts, rate=10.0)
    load.hold()
    assert load.advance(30) == 0 and not load.settings.running
    load.release()
    assert load.settings.running and load.settings.rate == 10.0
    assert 0 < load.advance(1.0) < 40  # no flood for the time that it was held
    stopped, _ = workload(prompts, running=False)
    stopped.hold()
    stopped.release()
    assert not stopped.settings.running
    load.hold()
    load.change(WorkloadSettings(rate=3.0))  # resumed by hand meanwhile
    load.release()
    assert load.settings.running and load.settings.rate == 3.0
