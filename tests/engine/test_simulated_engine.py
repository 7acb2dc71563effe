"""The simulated runner under the real core: times are the cost model's, everything else is as it always is."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest

from engine import records as r
from engine.config import EngineConfig, LiveSettings, Simulation
from engine.cost_model import Rates, StepWork, counts, fit, reached
from engine.model.problem import ModelProblem
from engine.profiles import UnknownProfile, devices, models, parse, slug
from engine.records import Request, StepRecord
from engine.requests import RequestRefused
from engine.simulation.build import build
from engine.simulation.clock import SimulatedClock
from engine.simulation.sampler import output_length
from engine.simulation.words import FILLER
from tests.support.inprocess import InProcessEngine


def config(profile: str = "h200:llama-3-8b", mean: int = 40, **settings) -> EngineConfig:
    first = {"max_batch": 16, "kv_blocks": 2000, "max_context": 2048}
    simulation = Simulation(profile=profile, paced=False, output_tokens=mean)
    return EngineConfig(simulation=simulation, settings=LiveSettings(**{**first, **settings}))


def serve(built, requests: list[Request]) -> list[StepRecord]:
    for request in requests:
        built.engine.submit(request.number, built.encode_request(request), request)
    steps = []
    while built.engine.has_work:
        steps.append(built.engine.step())
        built.engine.check()
    return steps


def asked(count: int, **more) -> list[Request]:
    return [Request(number=i + 1, prompt=f"Request {i}: tell me about the sea. ", max_tokens=200, **more)
            for i in range(count)]  # fmt: skip


def of(*settings_and_requests):
    configuration, requests = settings_and_requests
    return serve(build(configuration, lambda *_: None), requests)


def test_a_step_takes_what_the_cost_model_says_to_the_nanosecond():
    built = build(config(draft_length=0), lambda *_: None)
    steps = serve(built, asked(8))
    profile = parse("h200:llama-3-8b")
    counted, rates = counts(profile.model), reached(profile.device, 32)
    for step in steps:
        rows = r.unpack(step.rows, r.ROW)
        logits = len(r.unpack(step.emitted, r.TOKEN))
        work = counted.work(rows["scheduled"], rows["context"], logits)
        assert step.timing.forward == round(1e9 * rates.seconds(work))
        assert step.timing.total == step.timing.forward == step.end_clock - step.clock
    assert all(after.clock == before.end_clock for before, after in pairwise(steps))


def test_two_runs_are_the_same_to_the_byte():
    once, again = (of(config(draft_method="suffix"), asked(12)) for _ in range(2))
    for a, b in zip(once, again, strict=True):
        assert (a.rows, a.emitted, a.text, a.drafts, a.timing) == (b.rows, b.emitted, b.text, b.drafts, b.timing)


def test_a_small_pool_preempts_and_the_text_stays():
    def texts(steps: list[StepRecord]) -> dict[int, str]:
        found: dict[int, str] = {}
        for step in steps:
            for seq, piece in zip(r.unpack(step.emitted, r.TOKEN)["seq"].tolist(), step.text, strict=True):
                found[seq] = found.get(seq, "") + piece
        return found

    wide = of(config(mean=150, draft_length=0), asked(12))
    narrow = of(config(mean=150, draft_length=0, kv_blocks=24, max_context=256), asked(12))
    preempted = [e for step in narrow for e in step.events if isinstance(e, r.Preempted)]
    assert preempted and texts(narrow) == texts(wide)
    words = set(" ".join(texts(wide).values()).split())
    assert words <= set(FILLER)


def test_requests_end_by_themselves_about_as_long_as_asked():
    lengths = [output_length(seed, 200) for seed in range(4000)]
    assert 190 < np.mean(lengths) < 210
    assert min(lengths) >= 1 and np.median(lengths) < np.mean(lengths)  # log-normal: a long tail
    steps = of(config(mean=10), asked(8))
    reasons = {e.reason for step in steps for e in step.events if isinstance(e, r.Finished)}
    assert reasons == {"stop"}


def test_a_request_that_ignores_the_end_runs_to_its_limit():
    steps = of(config(mean=3), asked(2, ignore_eos=True))
    assert [e.output_tokens for s in steps for e in s.events if isinstance(e, r.Finished)] == [200, 200]


@pytest.mark.parametrize("method, rate", [("ngram", 0.5), ("suffix", 0.6), ("layers", 0.5)])
def test_drafts_are_accepted_at_the_rate_that_is_assumed(method, rate):
    steps = of(config(mean=10_000, draft_method=method, draft_length=4), asked(16, ignore_eos=True))
    drafts = np.concatenate([r.unpack(step.drafts, r.DRAFT) for step in steps])
    verdicts = drafts["verdict"]
    examined, accepted = (verdicts <= r.REJECTED).sum(), (verdicts == r.ACCEPTED).sum()
    assert examined > 500 and abs(accepted / examined - rate) < 0.08
    drafting = {step.timing.draft > 0 for step in steps if len(step.drafts)}
    assert drafting == {method == "layers"}  # a model's drafts cost time, looked-up ones don't


def test_simulated_acceptance_decides_here_too():
    steps = of(config(mean=10_000, simulated_acceptance=(1.0,)), asked(2, ignore_eos=True))
    verdicts = np.concatenate([r.unpack(step.drafts, r.DRAFT)["verdict"] for step in steps])
    assert (verdicts == r.REJECTED).sum() == 0 < (verdicts == r.ACCEPTED).sum()


def test_what_only_a_model_can_answer_is_refused_in_words():
    built = build(config(), lambda *_: None)
    with pytest.raises(RequestRefused, match="without beams"):
        built.engine.submit(1, [300, 301], Request(number=1, prompt="x", max_tokens=8, beams=2))
    with pytest.raises(RequestRefused, match="real one"):
        built.engine.shadow(1)
    assert {"head", "model"} <= set(built.ready.absent_drafts)


def test_everything_it_says_of_itself_says_simulated():
    built = build(config(), lambda *_: None)
    assert built.ready.runner == "simulated" and built.ready.device == "H200, simulated"
    assert built.ready.config.simulation is not None
    assert any("text means nothing" in notice for notice in built.ready.notices)


def test_a_pool_beyond_the_device_is_allowed_and_labelled():
    built = build(config("h200:smollm2-135m", kv_blocks=400_000), lambda *_: None)
    assert built.engine.settings.kv_blocks == 400_000
    assert built.ready.device == "H200, simulated, pool beyond its memory"
    assert any("no such device could run this" in notice for notice in built.ready.notices)
    assert built.ready.limits["kv_blocks"].reason == "asked for by hand: more than one H200 holds beside the weights"
    built.engine.change({"block_size": 32})
    limit = built.engine.bounds["kv_blocks"]
    assert limit.high == 200_000 and limit.reason.startswith("asked for by hand")
    within = build(config("h200:smollm2-135m", kv_blocks=300_000), lambda *_: None).ready.limits["kv_blocks"]
    assert within.reason == f"memory: {int(within.high):,} blocks fit beside the weights"


def test_a_model_that_does_not_fit_is_refused():
    with pytest.raises(ModelProblem, match="doesn't fit"):
        build(config("rtx-4090:llama-3-70b", kv_blocks=0), lambda *_: None)


def test_settings_change_between_two_steps():
    built = build(config(), lambda *_: None)
    for request in asked(6, ignore_eos=True):
        built.engine.submit(request.number, built.encode_request(request), request)
    for _ in range(4):
        built.engine.step()
    for changes in ({"max_batch": 3}, {"kv_blocks": 500}, {"block_size": 32}, {"swap_blocks": 64, "preemption": "swap"},
                    {"draft_method": "layers", "draft_length": 2}):  # fmt: skip
        built.engine.change(changes)
        built.engine.step()
        built.engine.check()


def test_several_samples_of_a_prompt():
    request = Request(number=1, prompt="Tell me about the sea.", max_tokens=20, n=3)
    steps = of(config(), [request])
    assert sum(isinstance(e, r.Finished) for step in steps for e in step.events) == 3


def test_over_the_loop_and_the_wire():
    engine = InProcessEngine(config(), build)
    engine.send(r.Submit(id=engine.next_id(), request=asked(1)[0]))
    messages = [m for _ in range(300) for m in engine.poll()]
    assert any(isinstance(e, r.Finished) for m in messages if isinstance(m, StepRecord) for e in m.events)
    for message in messages:
        assert msgspec.msgpack.encode(message)


# --- time ---


class Host:
    """A real clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.ns, self.slept = 1_000, 0.0

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.ns += round(seconds * 1e9)


def clock(paced: bool, period: float = 0.0) -> tuple[SimulatedClock, Host]:
    host = Host()
    return SimulatedClock(paced, lambda: host.ns, host.sleep, period), host


def test_what_the_machine_needs_is_no_part_of_a_step():
    made, host = clock(paced=False)
    made.begin()
    before = made()
    host.ns += 5_000_000
    made.advance(1e-3)
    host.ns += 5_000_000
    made.end()
    assert made() - before == 1_000_000 and host.slept == 0
    made.release()
    host.ns += 7
    assert made() - before == 1_000_007  # waiting for work, time is the real one's


def test_a_paced_step_takes_its_time_and_no_longer():
    made, host = clock(paced=True)
    made.begin()
    host.ns += 400_000
    made.advance(1e-3)
    made.end()
    assert host.slept == pytest.approx(600e-6)
    made.begin()
    host.ns += 2_000_000  # a machine that is too slow: it doesn't wait, and the figures don't change
    made.advance(1e-3)
    before = host.slept
    made.end()
    assert host.slept == before


def test_steps_of_a_given_rate_are_due_at_that_rate_whatever_is_done_between_them():
    made, host = clock(paced=True, period=5e-3)
    host.ns = begun = 1_000_000_000
    for _ in range(4):
        made.begin()
        made.advance(5e-3)
        host.ns += 1_000_000
        made.end()
        host.ns += 300_000  # sending and commands
    assert host.ns - begun == 3 * 5_000_000 + 300_000  # the first is due at once
    host.ns += 900_000_000  # a pause is made up for by no more than one early step
    waited = host.ns
    for _ in range(3):
        made.begin()
        made.advance(5e-3)
        made.end()
    assert host.ns - waited == 2 * 5_000_000


def test_an_engine_of_a_given_rate_takes_that_long_for_every_step():
    asked_for = config(draft_length=4, draft_method="layers")
    simulation = msgspec.structs.replace(asked_for.simulation, steps_per_s=200.0)
    steps = of(msgspec.structs.replace(asked_for, simulation=simulation), asked(4))
    assert {step.timing.total for step in steps} == {5_000_000}
    assert sum(len(step.text) for step in steps) > 4  # and drafts nevertheless


# --- profiles and the cost model ---


def test_the_profiles_that_are_promised():
    for device in ("rtx-4090", "rtx-5090", "a100-80-gb", "h100", "h200"):
        for model in ("smollm2-135m", "llama-3-8b", "llama-3-70b", "qwen3-06b", "qwen3-8b", "qwen3-32b", "mistral-7b"):
            assert parse(f"{device}:{model}").model.weight_bytes > 0
    assert {slug(each.name) for each in devices()} >= {"h200", "a10"} and len(models()) >= 7


@pytest.mark.parametrize("text", ["h200", "h300:llama-3-8b", "h200:", "a100:llama-3-8b", "", ":", "h200:llama"])
def test_a_profile_that_is_none_names_those_that_are(text):
    with pytest.raises(UnknownProfile, match=r"h200.*llama-3-8b"):
        parse(text)


def test_the_cost_of_a_decode_step_is_that_of_reading_it():
    profile = parse("h200:llama-3-8b")
    work = counts(profile.model).work([1], [1], 1)
    embedding = profile.model.shape.embedding * 2
    assert work.bytes == profile.model.weight_bytes - embedding + 2 * profile.model.kv_bytes_per_token
    assert 0.5 < work.intensity < 1.5  # REFERENCE: decode of one stream is about 1
    thousand = counts(profile.model).work([1000], [1000], 1)
    assert 700 < thousand.intensity < 1300  # and prefill of 1,000 tokens about 1,000
    rates = reached(profile.device, 32)
    assert rates.seconds(work) < rates.seconds(thousand)


def test_the_fit_finds_the_rates_that_made_the_times():
    made = Rates(bandwidth=20e9, flops=80e9, overhead=2e-3, attention=5e9)
    counted = counts(parse("h200:smollm2-135m").model)
    steps = [counted.work([1] * rows, [held] * rows, rows) for rows, held in ((1, 64), (4, 64), (32, 64), (4, 1024))]
    found = fit([(work, made.seconds(work)) for work in steps])
    for rows in (2, 8, 16):
        work = counted.work([1] * rows, [500] * rows, rows)
        assert found.seconds(work) == pytest.approx(made.seconds(work), rel=0.001)


def test_a_fit_to_noise_has_no_negative_rates():
    found = fit([(StepWork(1e8, 1e8), 0.02), (StepWork(1.01e8, 4e8), 0.019), (StepWork(1.1e8, 3.2e9), 0.05)])
    assert found.bandwidth > 0 and found.flops > 0 and found.overhead >= 0
