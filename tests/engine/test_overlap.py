"""Steps that overlap: what comes out is what comes out one by one, and what was computed for nothing is counted."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import settings as profile
from hypothesis.stateful import run_state_machine_as_test

from engine.config import SettingRefused
from engine.core import Engine
from engine.records import ROW, TOKEN, Admitted, Finished, Request, Sampling, StepRecord, unpack
from engine.runner.launch import Immediate
from engine.sampler import Sampler
from engine.speculation.ngram import NgramProposer
from tests.engine.test_stateful import COMMON, HostileUse, soak
from tests.support.async_runner import AsyncRunner
from tests.support.fake_runner import FakeRunner, TableModel, settings
from tests.support.fake_texts import LetterTexts

V, EOS = 8, 7
PROMPT = [1, 2, 3, 4, 5, 6, 0, 1, 2, 3]


def build(how: str = "async", **changes) -> Engine:
    """`how`: "off"; "on", launched at once; "async", launched and computed later."""
    now = settings(**{"draft_method": "off", "prefix_cache": False, **changes})
    model = TableModel(V, seed=3, sharpness=3.0)
    runner = (AsyncRunner if how == "async" else FakeRunner)(now.kv_blocks, 8, model)
    launcher = {"off": None, "on": Immediate(runner, Sampler(V)), "async": runner}[how]
    return Engine(
        runner,
        now,
        Sampler(V),
        bounds=runner.bounds(),
        proposers={"ngram": NgramProposer.of},
        texts=LetterTexts(),
        eos_ids=frozenset({EOS}),
        launcher=launcher,
    )


def ask(engine: Engine, number: int = 1, prompt: list[int] = PROMPT, **fields) -> None:
    engine.submit(number, prompt, Request(number=number, **{"ignore_eos": True, **fields}))


def run(engine: Engine) -> list[StepRecord]:
    found = []
    while engine.has_work:
        found.append(engine.step())
        engine.check()
        assert len(found) < 1_000
    return found


def outputs(found: list[StepRecord]) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {}
    for record in found:
        for token in unpack(record.emitted, TOKEN):
            tokens.setdefault(int(token["seq"]), []).append(int(token["token"]))
    return tokens


def serials(found: list[StepRecord]) -> list[str]:
    return ["|" if record.overlapped else record.serial for record in found]


def test_each_step_but_the_first_is_begun_while_another_runs() -> None:
    engine = build()
    ask(engine, max_tokens=6)
    found = run(engine)
    assert serials(found) == ["idle", *["|"] * 5]
    assert engine.runner.deepest == 2
    assert outputs(found) == {1: engine.runner.table_model.greedy(PROMPT, 6)}
    assert not any(record.wasted for record in found), "its limit was known"


def test_off_nothing_is_said_of_it() -> None:
    engine = build("off")
    ask(engine, max_tokens=4)
    assert all((r.overlapped, r.serial, r.wasted) == (False, "", 0) for r in run(engine))


def test_what_was_computed_past_a_stop_is_wasted_and_its_blocks_are_free() -> None:
    engine = build()
    text = "".join(LetterTexts().piece(t) for t in engine.runner.table_model.greedy(PROMPT, 12))
    ask(engine, max_tokens=40, stop=[text[8:12]])
    found = run(engine)
    last, end = found[-1], found[-2]
    assert [type(event) for event in end.events] == [Finished] and end.events[0].reason == "stop"
    assert (last.wasted, last.rows, last.emitted, last.overlapped) == (1, b"", b"", True)
    assert sum(record.wasted for record in found) == 1
    assert engine.pool.used_count == 0 and not engine.has_work


def test_what_runs_for_an_aborted_request_is_wasted() -> None:
    engine = build()
    ask(engine, max_tokens=40)
    ask(engine, 2, max_tokens=10)
    for _ in range(4):
        engine.step()
    engine.abort(1)
    engine.check()
    found = run(engine)
    assert found[0].wasted == 1 and unpack(found[0].rows, ROW)["seq"].tolist() == [2]
    assert engine.pool.used_count == 0


def test_a_place_in_the_batch_is_taken_when_it_is_sure_to_be_left() -> None:
    engine = build(max_batch=1)
    ask(engine, max_tokens=3)
    ask(engine, 2, max_tokens=3)
    found = run(engine)
    assert serials(found) == ["idle", *["|"] * 5]
    assert [sum(isinstance(e, Admitted) for e in record.events) for record in found] == [1, 0, 1, 0, 0, 0]
    assert all(record.running <= 1 for record in found)


# --- why not ---


@pytest.mark.parametrize(
    ("word", "fields", "changes"),
    [
        ("drafts", {}, {"draft_method": "ngram", "draft_length": 2}),
        ("samples", {"n": 2, "sampling": Sampling(temperature=0.8)}, {}),
        ("beams", {"beams": 2, "ignore_eos": False}, {}),
        ("penalties", {"sampling": Sampling(frequency_penalty=0.5)}, {}),
        ("penalties", {}, {"presence_penalty": 0.5}),
    ],
)
def test_what_needs_the_host_overlaps_nothing_and_says_so(word: str, fields: dict, changes: dict) -> None:
    engine, plain = build(**changes), build("off", **changes)
    for each in (engine, plain):
        ask(each, max_tokens=12, **fields)
    found = run(engine)
    assert outputs(found) == outputs(run(plain))
    if word == "samples":  # until they have forked
        assert set(serials(found)[1:2]) == {word}
    else:
        assert set(serials(found)[1:]) == {word}


def test_it_ends_where_one_comes_that_needs_the_host_and_goes_on_after() -> None:
    engine = build()
    ask(engine, max_tokens=30)
    for _ in range(4):
        engine.step()
    ask(engine, 2, max_tokens=4, sampling=Sampling(presence_penalty=1.0))
    words = serials(run(engine))
    assert words[0] == "|" and words[1:6] == ["penalties"] * 5 and set(words[7:]) == {"|"}


def test_a_watched_sequence_is_looked_at_in_steps_of_its_own() -> None:
    engine = build()
    ask(engine, max_tokens=10)
    engine.step()
    engine.watch(1, 3)
    found = run(engine)
    assert serials(found)[:2] == ["|", "watch"]
    assert [len(record.top) for record in found] == [0] + [1] * 8


def test_whole_prompts_and_a_full_pool_wait_for_the_step_before() -> None:
    engine = build(chunked_prefill=False, max_batch=2, token_budget=64)
    for number in range(1, 4):
        ask(engine, number, max_tokens=4)
    assert "prompts" in serials(run(engine))
    engine = build(kv_blocks=8, max_context=64, admission="chunk")
    for number in range(1, 5):
        ask(engine, number, max_tokens=30)
    found = run(engine)
    assert "blocks" in serials(found) and "|" in serials(found)
    assert outputs(found) == dict.fromkeys(range(1, 5), engine.runner.table_model.greedy(PROMPT, 30))


def test_a_single_step_leaves_nothing_running() -> None:
    engine = build()
    ask(engine, max_tokens=8)
    for _ in range(3):
        record = engine.step(alone=True)
        assert engine.drain() is None
    assert record.serial == "stepping"
    engine.step()
    drained = engine.drain()
    assert drained is not None and drained.overlapped and engine.drain() is None
    engine.change({"kv_blocks": 16})
    assert serials(run(engine))[0] == "command"


# --- failures ---


def test_what_cant_be_begun_beside_the_step_that_runs_is_begun_after_it() -> None:
    engine = build()
    ask(engine, max_tokens=10)
    engine.step()
    engine.runner.refused = 1
    engine.check()
    found = run(engine)
    assert serials(found)[:3] == ["|", "failure", "|"]
    assert len(outputs(found)[1]) == 9


def test_a_pass_that_fails_takes_the_one_behind_it_along() -> None:
    engine = build()
    ask(engine, max_tokens=10)
    ask(engine, 2, prompt=PROMPT * 3, max_tokens=10)
    found = [engine.step(), engine.step()]
    execute = engine.runner.execute

    def fail(batch: object) -> None:
        raise MemoryError("at any point")

    engine.runner.execute = fail
    with pytest.raises(MemoryError):
        engine.step()
    engine.check()
    engine.runner.execute = execute
    engine.change({"kv_blocks": 16})
    found += run(engine)
    model = engine.runner.table_model
    assert outputs(found) == {1: model.greedy(PROMPT, 10), 2: model.greedy(PROMPT * 3, 10)}


# --- the same tokens, whatever happens ---


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("how", ["on", "async"])
def test_the_same_tokens_on_and_off(how: str, seed: int) -> None:
    one_by_one, *_ = mixed("off", seed)
    tokens, overlapped, wasted = mixed(how, seed)
    both = one_by_one.keys() & tokens.keys()  # an abort comes too late here, in time there
    assert len(both) > 25 and {seq: tokens[seq] for seq in both} == {seq: one_by_one[seq] for seq in both}
    assert overlapped > 0.05 and wasted


def mixed(how: str, seed: int) -> tuple[dict[int, list[int]], float, int]:
    """Requests of all kinds with stops, aborts and settings dragged; a pool so small that it preempts. Tokens of those
    that ended by themselves, share of steps that overlapped, tokens wasted."""
    dice = random.Random(seed)
    engine = build(how, kv_blocks=20, max_context=64, max_batch=6, token_budget=24, prefix_cache=True)
    engine.change({"swap_blocks": 12})
    found: list[StepRecord] = []
    for number in range(1, 41):
        prompt = [dice.randrange(V) for _ in range(dice.randint(1, 30))]
        kind = dice.random()
        ask(
            engine,
            number,
            prompt,
            max_tokens=dice.randint(1, 30),
            ignore_eos=dice.random() < 0.3,
            n=3 if kind < 0.05 else 1,
            stop=["ab"] if dice.random() < 0.3 else [],
            sampling=Sampling(
                temperature=dice.choice([0.0, 0.9]), seed=number, presence_penalty=1.0 if kind > 0.95 else None
            ),
        )
        for _ in range(dice.randint(0, 6)):
            if engine.has_work:
                found.append(engine.step())
                engine.check()
        if dice.random() < 0.15:
            engine.abort(number)
        if dice.random() < 0.2:
            if (record := engine.drain()) is not None:
                found.append(record)
            changes: dict = dice.choice([
                {"max_batch": 3}, {"max_batch": 6}, {"token_budget": 12}, {"preemption": "swap"},
                {"preemption": "recompute"}, {"kv_blocks": 16}, {"kv_blocks": 24}, {"block_size": 16, "kv_blocks": 10},
                {"block_size": 8, "kv_blocks": 20}, {"chunked_prefill": False, "token_budget": 64},
                {"chunked_prefill": True}, {"draft_method": "ngram"}, {"draft_method": "off"},
            ])  # fmt: skip
            with suppress(SettingRefused):
                engine.change(changes)
            engine.check()
    found += run(engine)
    ended = {e.seq for record in found for e in record.events if isinstance(e, Finished)}
    tokens = {seq: each for seq, each in outputs(found).items() if seq in ended}
    return tokens, float(np.mean([r.overlapped for r in found])), sum(r.wasted for r in found)


class OverlappedUse(HostileUse):
    """The same hostile use, and every claim that is checked there, of an engine whose steps overlap."""

    START: ClassVar = {"draft_method": "off"}

    def runner_of(self, *args, **more) -> AsyncRunner:
        self.dice = random.Random(5)
        self.overlapped = self.wasted = 0
        return AsyncRunner(*args, **more)

    def launcher(self) -> AsyncRunner:
        return self.runner

    def asked(self, what: dict) -> dict:
        """Mostly what can overlap."""
        if self.dice.random() < 0.1:
            return what
        plain = {"samples": 1, "beams": 0, "draft_method": "off"}
        return {key: plain.get(key, value) for key, value in what.items()}

    def follow(self, record) -> None:
        super().follow(record)
        if isinstance(record, StepRecord):
            self.overlapped += record.overlapped
            self.wasted += record.wasted
            if self.dice.random() < 0.02:
                self.runner.refused = 1


def test_hostile_use_of_steps_that_overlap() -> None:
    run_state_machine_as_test(OverlappedUse, settings=profile(max_examples=30, stateful_step_count=40, **COMMON))


@pytest.mark.parametrize("seed", range(2))
def test_soak_of_steps_that_overlap(seed: int) -> None:
    machine = soak(seed, OverlappedUse())
    assert machine.overlapped > 0.2 * machine.engine.last_step and machine.wasted
    assert any(event.cause == "kv_blocks" for event in machine.preempted)
