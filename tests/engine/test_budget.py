"""The budget that the engine finds itself: against machines whose steps cost a known sum, with noise and spikes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from engine.budget import AIM, LEAST, MOST, UNWATCHED, AutoBudget, Work, work_of
from engine.config import AUTO
from engine.core import Engine
from engine.records import DECODE, PREFILL, ROW, Request, StepRecord, unpack
from engine.runner.batch import PackedBatch
from engine.runner.pooled import dummy_batch
from engine.sampler import Sampler
from engine.speculation.ngram import NgramProposer
from tests.support.fake_runner import FakeRunner, TableModel, settings

GAP = 100.0  # ms
STREAMS, PROMPT = 8, 1024


class Machine:
    """Steps take `prices` (ms: step, token, row of logits, 1,000 pairs) times `slow`, with relative noise."""

    def __init__(self, slow: float = 1.0, noise: float = 0.0, spikes: float = 0.0, seed: int = 0):
        self.prices = np.array((3.0, 0.45, 0.15, 0.15))
        self.slow, self.noise, self.spikes = slow, noise, spikes
        self._rng = random.Random(seed)

    def quiet(self, work: Work) -> float:
        return float(self.prices @ work) * self.slow

    def ms(self, work: Work) -> float:
        spike = self._rng.uniform(3, 10) if self._rng.random() < self.spikes else 1.0
        return self.quiet(work) * (1 + self.noise * self._rng.uniform(-1, 1)) * spike


def seeded(machine: Machine) -> AutoBudget:
    found = AutoBudget()

    def run(lengths: list[int]) -> tuple[Work, float]:
        work = work_of(dummy_batch(lengths, 16))
        return work, machine.ms(work)

    found.cost.seed(run, 0.26, 10_000, 512)
    return found


def decode(found: AutoBudget, machine: Machine, steps: int) -> None:
    for i in range(steps):
        work = np.array((1.0, STREAMS, STREAMS, STREAMS * (100 + i) / 1e3))
        found.cost.learn(work, machine.ms(work))


def prompt(found: AutoBudget, machine: Machine, tokens: int = PROMPT, streams: int = STREAMS) -> list[float]:
    """A prompt is computed beside `streams`; what each of its steps would take without noise, ms."""
    context, done, took = 200 * streams, 0, []
    while done < tokens:
        budget = found.found(streams, context, done, AIM * GAP if streams else UNWATCHED, MOST)
        chunk = min(budget.tokens - streams, tokens - done)
        assert chunk > 0
        pairs = (context + chunk * done + chunk * (chunk + 1) / 2) / 1e3
        work = np.array((1.0, streams + chunk, streams, pairs))
        took.append(machine.quiet(work))
        found.cost.learn(work, machine.ms(work))
        done, context = done + chunk, context + streams
    return took


def test_the_first_prompt_after_the_warm_up_is_cut_to_the_gap() -> None:
    machine = Machine()
    took = prompt(seeded(machine), machine)
    assert max(took) < GAP and np.median(took) > 0.8 * AIM * GAP


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spikes", [0.0, 0.05])
def test_noise_and_spikes_move_it_little(seed: int, spikes: float) -> None:
    machine = Machine(noise=0.1, spikes=spikes, seed=seed)
    found = seeded(Machine(noise=0.1, seed=seed))
    for _ in range(4):
        decode(found, machine, 300)
        took = prompt(found, machine)
        assert max(took) < GAP
        assert np.median(took) > 0.6 * AIM * GAP, "nor does it collapse"


def test_a_single_spike_costs_a_quarter_of_it_at_most() -> None:
    machine = Machine()
    found = seeded(machine)
    decode(found, machine, 200)
    before = found.found(STREAMS, 1600, 0, AIM * GAP, MOST).tokens
    work = np.array((1.0, STREAMS, STREAMS, 1.6))
    found.cost.learn(work, 50 * machine.quiet(work))
    assert 0.7 * before < found.found(STREAMS, 1600, 0, AIM * GAP, MOST).tokens < before
    decode(found, machine, 5)
    assert found.found(STREAMS, 1600, 0, AIM * GAP, MOST).tokens > 0.9 * before


def test_a_machine_that_becomes_slower_is_believed_in_three_steps() -> None:
    machine = Machine()
    found = seeded(machine)
    decode(found, machine, 200)
    machine.slow = 3.0
    decode(found, machine, 3)
    took = prompt(found, machine)
    assert max(took) < 1.1 * GAP and np.median(took) > 0.6 * AIM * GAP
    machine.slow = 1.0
    decode(found, machine, 10)
    assert np.median(prompt(found, machine)) > 0.6 * AIM * GAP, "and faster again"


@pytest.mark.parametrize("slow", [0.02, 10.0, 100.0])
def test_machines_of_any_speed(slow: float) -> None:
    machine = Machine(slow=slow)
    found = seeded(machine)
    decode(found, machine, 50)
    alone = machine.quiet(np.array((1.0, STREAMS, STREAMS, 1.6)))
    least = LEAST * float(machine.prices[1]) * slow
    took = prompt(found, machine)
    assert max(took) < max(GAP, 1.35 * alone + 1.5 * least), "a prompt never starves, nor stretches steps beyond need"


def test_a_long_time_of_decoding_leaves_the_price_of_prompts_as_it_was() -> None:
    machine = Machine(noise=0.1)
    found = seeded(machine)
    decode(found, machine, 5000)
    took = prompt(found, machine)
    assert max(took) < GAP and took[0] > 0.6 * AIM * GAP


def test_nobody_waits_for_a_step_without_streams() -> None:
    machine = Machine()
    found = seeded(machine)
    took = prompt(found, machine, tokens=6000, streams=0)
    assert max(took) < 1.2 * UNWATCHED and np.median(took) > 0.8 * UNWATCHED
    assert found.found(0, 0, 0, UNWATCHED, 64).tokens == 64, "the setting's own limit"


def test_more_streams_than_it_may_take_still_run() -> None:
    assert AutoBudget().found(80, 8000, 0, AIM * GAP, 64).tokens == 80


def test_the_same_times_give_the_same_budgets() -> None:
    def budgets() -> list[int]:
        machine = Machine(noise=0.2, spikes=0.1, seed=3)
        found, out = seeded(machine), []
        for _ in range(50):
            decode(found, machine, 1)
            out.append(found.found(STREAMS, 900, 0, AIM * GAP, MOST).tokens)
        return out

    assert budgets() == budgets()


def test_a_clock_that_stands_still_teaches_nothing() -> None:
    found = AutoBudget()
    before = found.cost.prices.tolist()
    found.cost.learn(np.array((1.0, 8.0, 8.0, 1.0)), 0.0)
    assert found.cost.prices.tolist() == before


def test_slow_seeds_are_left_out() -> None:
    asked: list[int] = []

    def run(lengths: list[int]) -> tuple[Work, float]:
        asked.append(sum(lengths))
        return work_of(dummy_batch(lengths, 16)), 200.0 * sum(lengths)

    AutoBudget().cost.seed(run, 0.26, 10_000, 512)
    assert asked == [1]
    asked.clear()
    AutoBudget().cost.seed(run, 0.26, 64, 4)
    assert 128 not in asked and 8 not in asked


def test_work_counts_attended_pairs() -> None:
    work = work_of(dummy_batch([3, 1], 16))
    assert work.tolist() == [1.0, 4.0, 2.0, (1 + 2 + 3 + 1) / 1e3]


# --- in the engine, with a clock that a machine drives ---


class TimedRunner(FakeRunner):
    """Its passes take what a `Machine` says."""

    def __init__(self, machine: Machine, clock: Clock, *args):
        super().__init__(*args)
        self._machine, self._clock = machine, clock

    def execute(self, batch: PackedBatch):
        self._clock.ns += round(1e6 * self._machine.ms(work_of(batch)))
        return super().execute(batch)


class Clock:
    ns = 1

    def __call__(self) -> int:
        return self.ns


def build(machine: Machine, **changes) -> tuple[Engine, Clock]:
    clock, model = Clock(), TableModel(8, seed=3, sharpness=3.0)
    now = settings(max_batch=16, max_context=1024, kv_blocks=256, **{"token_budget": AUTO, **changes})
    runner = TimedRunner(machine, clock, now.kv_blocks, 16, model)
    engine = Engine(
        runner, now, Sampler(8), bounds=runner.bounds(), proposers={"ngram": NgramProposer.of}, budget=seeded(machine),
        clock=clock,
    )  # fmt: skip
    return engine, clock


def served(engine: Engine, streams: int, late: int) -> list[StepRecord]:
    """`streams` requests decode, then one of `late` tokens comes; the steps from there to its first token."""
    for number in range(1, streams + 1):
        engine.submit(number, [1, 2, 3, 4], Request(number=number, max_tokens=400, ignore_eos=True))
    for _ in range(20):
        engine.step()
    seq = engine.submit(streams + 1, [i % 7 for i in range(late)], Request(number=streams + 1, max_tokens=4))
    steps = []
    while not steps or not any(row["seq"] == seq and row["emitted"] for row in unpack(steps[-1].rows, ROW)):
        steps.append(engine.step())
    return steps


def kinds(step: StepRecord) -> list[int]:
    return unpack(step.rows, ROW)["kind"].tolist()


def test_engine_keeps_the_gap_while_a_prompt_comes() -> None:
    engine, _ = build(Machine(), draft_length=0, draft_method="off")
    steps = served(engine, STREAMS, 512)
    assert max(s.timing.total for s in steps) < GAP * 1e6 and len(steps) < 6
    for step in steps:
        scheduled = int(unpack(step.rows, ROW)["scheduled"].sum())
        assert scheduled <= step.budget.tokens and step.budget.goal == AIM * GAP
        assert kinds(step).count(DECODE) == STREAMS and kinds(step).count(PREFILL) == 1
        assert step.settings.token_budget == AUTO
    assert engine.keyframe().budget == steps[-1].budget


def test_engine_takes_a_prompt_whole_when_nobody_decodes() -> None:
    engine, _ = build(Machine())
    steps = served(engine, 0, 512)
    assert len(steps) == 1 and steps[0].budget.goal == UNWATCHED


def test_a_smaller_gap_is_kept_too() -> None:
    engine, _ = build(Machine(), max_gap=40, draft_method="off")
    assert max(s.timing.total for s in served(engine, STREAMS, 256)) < 40e6


def test_auto_obeys_from_the_next_step_on_and_marks_the_change_alone() -> None:
    engine, _ = build(Machine(), token_budget=24, draft_method="off")
    first = served(engine, 4, 64)
    assert {s.budget.tokens for s in first} == {24} and all(s.budget.goal == 0 for s in first)
    engine.change({"token_budget": "auto"})
    between = engine.between()
    assert between is not None and between.settings.token_budget == AUTO and between.budget.tokens > 64
    found = [engine.step() for _ in range(5)]
    assert {s.settings for s in found} == {engine.settings}, "its moves are no changes of settings"
    engine.change({"token_budget": 512})
    assert engine.step().budget.tokens == 512


def test_without_chunks_a_prompt_is_whole() -> None:
    engine, _ = build(Machine(slow=10.0), chunked_prefill=False, draft_method="off")
    steps = served(engine, 4, 600)
    assert len(steps) == 1 and steps[0].budget.goal == 0


def test_drafts_are_not_cut_where_no_prompt_waits() -> None:
    engine, _ = build(Machine(slow=200.0), draft_length=8)
    for number in range(1, 9):
        engine.submit(number, [1, 2, 3, 1, 2, 3, 1, 2], Request(number=number, max_tokens=60, ignore_eos=True))
    drafted = [int(unpack(engine.step().rows, ROW)["drafted"].sum()) for _ in range(40)]
    assert max(drafted) > 2 * LEAST
