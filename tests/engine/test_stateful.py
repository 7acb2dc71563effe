"""The scheduler, the pool and the core under hostile use, without weights.

Whatever is submitted, aborted, preempted, resized, switched or made to fail between any two steps: every invariant
holds, every record applied to a reader's state gives the engine's own, and every sequence that finishes has
exactly the tokens, the text and the reason that the model gives it alone: a sample those of its own seed, a beam search
what it finds without a pool.
"""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import count
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck
from hypothesis import settings as profile
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.beam_candidates import candidates
from engine.beam_search import IDLE, BeamSearch
from engine.config import AUTO, SettingRefused
from engine.core import Engine
from engine.records import (
    NONE,
    ROW,
    Between,
    Preempted,
    Request,
    Sampling,
    Searched,
    StepRecord,
    decode,
    encode,
    unpack,
)
from engine.requests import RequestRefused
from engine.runner.launch import Launcher
from engine.sampler import Sampler, SampleRow
from engine.sequence import sequences_of
from engine.speculation.ngram import NgramProposer
from tests.support.applier import Applier
from tests.support.fake_runner import FakeRunner, TableModel, settings
from tests.support.fake_texts import LetterTexts

VOCABULARY = 8
EOS = 7
PREFIX = [1, 2, 3, 1, 2, 4, 5, 0, 3, 3, 2, 1, 6, 0, 2, 5, 1, 1, 2, 3, 4, 4, 0, 6, 5, 2, 0, 1, 3, 5, 6, 6]
NEVER = 2_000  # steps within which any backlog of these sizes is done

RANGES = {
    "max_batch": st.integers(1, 8),
    "max_context": st.integers(16, 96),
    "kv_blocks": st.integers(4, 24),
    "token_budget": st.one_of(st.just(AUTO), st.integers(8, 200)),
    "draft_length": st.integers(0, 6),
    "draft_method": st.sampled_from(["off", "ngram"]),
    "chunked_prefill": st.booleans(),
    "prefix_cache": st.booleans(),
    "watermark": st.sampled_from([0.0, 0.01, 0.2, 0.5]),
    "admission": st.sampled_from(["prompt", "chunk"]),
    "allocation": st.sampled_from(["paged", "reserved"]),
    "batching": st.sampled_from(["continuous", "static"]),
    "preemption": st.sampled_from(["recompute", "swap"]),
    "swap_blocks": st.sampled_from([0, 2, 6, 20]),
    "block_size": st.sampled_from([8, 8, 16, 32]),
}


class PassFailed(RuntimeError):
    pass


class HostileUse(RuleBasedStateMachine):
    START: ClassVar[dict[str, object]] = {}  # settings that it begins with

    def runner_of(self, *args: object, **more: object) -> FakeRunner:
        return FakeRunner(*args, **more)

    def launcher(self) -> Launcher | None:
        return None

    def asked(self, what: dict) -> dict:
        """What `soak` asks for or changes, as this machine would have it."""
        return what

    @initialize(
        block_size=st.sampled_from([8, 8, 8, 16, 128]),
        seed=st.integers(0, 5),
        batch=st.sampled_from([1, 2, 4, 6, 8]),
        chunked=st.booleans(),
        blocks=st.integers(4, 12),
    )
    def build(self, block_size: int, seed: int, batch: int, chunked: bool, blocks: int) -> None:
        context = min(64, blocks * block_size)  # the pool may be just as large as one request
        start = settings(
            max_batch=batch, max_context=context, kv_blocks=blocks, token_budget=64 if not chunked else 16,
            chunked_prefill=chunked, **self.START,
        )  # fmt: skip
        self.model = TableModel(VOCABULARY, seed, sharpness=3.0)
        self.runner = self.runner_of(blocks, block_size, self.model, room=20)
        self.texts = LetterTexts()
        self.time = 1_000_000
        self.engine = Engine(
            self.runner,
            start,
            Sampler(VOCABULARY),
            bounds=self.runner.bounds(),
            proposers={"ngram": NgramProposer.of},
            texts=self.texts,
            eos_ids=frozenset({EOS}),
            launcher=self.launcher(),
            clock=self.tick,
        )
        self.reader = Applier(self.engine.keyframe())
        self.requests: dict[int, tuple[list[int], Request]] = {}  # by seq
        self.preempted: list[Preempted] = []
        self.judged: set[int] = set()
        self.numbers = self.searches = self.shadows = self.checked = 0

    def tick(self) -> int:
        self.time += 1_000
        return self.time

    @rule(
        shared=st.integers(0, len(PREFIX)),
        tail=st.lists(st.integers(0, VOCABULARY - 1), min_size=0, max_size=40),
        max_tokens=st.integers(1, 40),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        stop=st.sampled_from([[], [], ["ab"], ["c", "bad"]]),
        ignore_eos=st.booleans(),
        speculate=st.sampled_from([True, True, False]),
        copies=st.sampled_from([1, 1, 2, 5]),
        samples=st.sampled_from([1, 1, 1, 2, 4, 9]),
        temperature=st.sampled_from([0.0, 0.0, 0.8]),
        beams=st.sampled_from([0, 0, 0, 0, 1, 2, 3, 8]),
    )
    def submit(
        self,
        shared: int,
        tail: list[int],
        max_tokens: int,
        priority: int,
        stop: list[str],
        ignore_eos: bool,
        speculate: bool,
        copies: int,
        samples: int,
        temperature: float,
        beams: int,
    ) -> None:
        for copy in range(copies):
            prompt = PREFIX[:shared] + tail + [copy] * (copy > 0)
            self.numbers += 1
            request = Request(
                number=self.numbers, max_tokens=max_tokens, priority=priority, ignore_eos=ignore_eos,
                stop=[] if beams else stop, n=1 if beams else samples, beams=beams,
                length_penalty=(1.0, 0.0, 2.0)[shared % 3], early_stopping=(False, True, "never")[max_tokens % 3],
                sampling=Sampling(
                    speculate=speculate and not temperature, temperature=None if beams else temperature, seed=shared
                ),
                prompt="x" * shared, label="test",
            )  # fmt: skip
            now = self.engine.settings
            try:
                seq = self.engine.submit(self.numbers, prompt, request)
            except RequestRefused:
                least = -(-min(len(prompt) + max_tokens, now.max_context) // now.block_size)
                assert (
                    not prompt or len(prompt) >= now.max_context
                    or beams > now.max_batch or beams * least > now.kv_blocks
                )  # fmt: skip
            else:
                for lane in range(sequences_of(request)):
                    self.requests[seq + lane] = prompt, request

    @rule(which=st.integers(0, 1_000))
    def abort(self, which: int) -> None:
        live = [s.number for s in (*self.engine.scheduler.running, *self.engine.scheduler.waiting)]
        assert self.engine.abort(live[which % len(live)] if live else 12_345) == min(1, len(live))

    @rule(which=st.integers(0, 1_000))
    def shadow(self, which: int) -> None:
        """Run one of the latest again without drafts; many of them can't be."""
        number = max(1, self.numbers - which % 8)
        with suppress(RequestRefused):
            seq = self.engine.shadow(number)
            sequence = self.engine.scheduler.shadows[-1]
            assert sequence.seq == seq and not sequence.request.sampling.speculate
            self.requests[seq] = sequence.tokens[:], sequence.request

    @rule()
    @precondition(lambda self: self.numbers % 7 == 6)
    def abort_all(self) -> None:
        self.drain()
        self.engine.abort()
        assert not self.engine.has_work and self.engine.pool.used_count == 0

    @rule(which=st.integers(0, 1_000))
    def preempt(self, which: int) -> None:
        self.drain()
        running = self.engine.scheduler.running
        if running:
            self.engine.scheduler.preempt(running[which % len(running)], "kv_blocks")

    @rule(changes=st.one_of(*(st.fixed_dictionaries({key: values}) for key, values in RANGES.items())))
    def drag_one(self, changes: dict[str, int | float | bool | str]) -> None:
        self.drag(changes)

    @rule(changes=st.fixed_dictionaries({}, optional=RANGES))
    def drag_several(self, changes: dict[str, int | float | bool | str]) -> None:
        self.drag(changes)

    @rule(by=st.integers(-8, 8))
    def drag_pool(self, by: int) -> None:
        """Along its own edge, where it is refused, or preempts whoever holds the end."""
        self.drag({"kv_blocks": max(4, self.engine.settings.kv_blocks + by)})

    def drag(self, changes: dict[str, int | float | bool | str]) -> None:
        self.drain()
        before = self.engine.settings, self.engine.keyframe().state, self.engine.runner.num_blocks
        try:
            new = self.engine.change(changes)
        except SettingRefused:
            after = self.engine.settings, self.engine.keyframe().state, self.engine.runner.num_blocks
            assert before == after
        else:
            assert all(getattr(new, key) == value for key, value in changes.items())
            assert new.block_size == self.engine.runner.block_size
            assert len(self.engine.scheduler.running) <= new.max_batch

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for number in range(steps):
            if self.engine.has_work:
                if number:
                    self.engine.check()  # after the last one the invariant does
                self.run_one()

    @rule()
    def step_that_fails(self) -> None:
        if not self.engine.has_work:
            return
        step, passes = self.engine.last_step, self.runner.passes

        def fail(batch: object) -> None:
            raise PassFailed

        self.runner.execute, kept = fail, self.runner.execute
        try:
            self.follow(self.engine.step())
            assert self.runner.passes == passes  # there was nothing to run
        except PassFailed:
            assert self.engine.last_step == step
        finally:
            self.runner.execute = kept

    @rule()
    def drain(self) -> None:
        if (record := self.engine.drain()) is not None:
            self.follow(record)

    @rule(ns=st.integers(1, 500))
    def hold(self, ns: int) -> None:
        self.engine.hold(ns)

    @invariant()
    def everything_holds(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.check()
        self.checked += 1
        between = self.engine.between()
        if between is not None:
            self.follow(between)
        assert self.engine.between() is None
        self.reader.expect(self.engine.keyframe())
        assert self.texts.open.keys() == self.reader.live.keys()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        first = self.engine.last_step
        while self.engine.has_work:
            self.run_one()
            self.everything_holds()
            assert self.engine.last_step < first + NEVER, "it doesn't get done"
        assert self.judged == self.requests.keys()
        assert self.engine.pool.used_count == 0

    # --- what must be true ---

    def run_one(self) -> None:
        now = self.engine.settings
        record = self.engine.step()
        rows = unpack(record.rows, ROW)
        alone = [self.requests[seq][1].number < 0 for seq in rows["seq"].tolist()]
        assert not any(alone) or len(alone) == 1, "a shadow runs beside others"
        assert int(rows["scheduled"].sum()) <= record.budget.tokens
        assert now.token_budget in (AUTO, record.budget.tokens)
        assert int((rows["scheduled"] > 0).sum()) <= now.max_batch and record.running <= now.max_batch
        assert int(rows["drafted"].max(initial=0)) <= (now.draft_length if now.draft_method != "off" else 0)
        assert len(rows) or record.events or record.wasted, "a step without any work in it"
        self.follow(record)

    def follow(self, record: StepRecord | Between) -> None:
        assert decode(encode(record)) == record
        self.reader.apply(record)
        for event in record.events:
            if isinstance(event, Searched):
                self.judge_search(event)
            if isinstance(event, Preempted):
                self.preempted.append(event)
                assert (event.needed > 0) == (event.by != NONE)
                assert not event.bytes or event.swapped
        for seq in self.reader.ended.keys() - self.judged:
            self.judged.add(seq)
            if self.reader.ended[seq] not in ("aborted", "beams"):
                self.judge(seq)
        for state in record.shadows:
            assert not state.different and state.equal <= state.tokens
            self.shadows += state.done and state.equal == state.tokens > 0

    def judge(self, seq: int) -> None:
        """Against the model alone: no batch, no cache, no drafts."""
        prompt, request = self.requests[seq]
        first = min(s for s, (_, r) in self.requests.items() if r is request)
        temperature, seed = request.sampling.temperature or 0.0, (request.sampling.seed or 0) + seq - first
        tokens, text, reason = list(prompt), "", ""
        while not reason:
            logits = torch.from_numpy(self.model.logits(tokens))[None]
            row = SampleRow(temperature=temperature, seed=seed, position=len(tokens))
            token = Sampler(VOCABULARY).sample(logits, [row])[0].tokens[0]
            tokens.append(token)
            if token == EOS and not request.ignore_eos:
                reason = "stop"
                break
            text += self.texts.piece(token)
            hits = [text.index(s) for s in request.stop if s in text]
            if hits:
                text, reason = text[: min(hits)], "stop"
            elif len(tokens) - len(prompt) == request.max_tokens:
                reason = "length"
            elif len(tokens) == self.reader.limits[seq]:
                reason = "context"
        assert self.reader.outputs[seq] == tokens[len(prompt) :]
        assert (self.reader.texts[seq], self.reader.ended[seq]) == (text, reason)

    def judge_search(self, event: Searched) -> None:
        """Against the search alone: its lanes are lists of tokens."""
        self.searches += 1
        prompt, request = self.requests[event.seq]
        eos_ids = () if request.ignore_eos else (EOS,)
        longest = self.reader.limits[event.seq] - len(prompt)
        search = BeamSearch(request.beams, longest, eos_ids, request.length_penalty, request.early_stopping)
        lanes = {0: list(prompt)}
        while not search.over:
            logits = torch.from_numpy(np.stack([self.model.logits(lanes[lane]) for lane in search.lanes]))
            step = search.advance(dict(zip(search.lanes, candidates(logits, search.needed), strict=True)))
            lanes = {
                lane: [*lanes[parent], token]
                for lane, (parent, token) in enumerate(zip(step.parents, step.tokens, strict=True))
                if parent != IDLE
            }
        expected = search.hypotheses()
        assert [h.token_ids for h in event.found] == [list(h.tokens) for h in expected]
        assert [(h.log_probability, h.score) for h in event.found] == [(h.logprob, h.score) for h in expected]
        for hypothesis in event.found:
            letters = [t for t in hypothesis.token_ids if request.ignore_eos or t != EOS]
            assert hypothesis.text == "".join(map(self.texts.piece, letters))


COMMON = {"suppress_health_check": list(HealthCheck), "print_blob": True}


def test_hostile_use() -> None:
    run_state_machine_as_test(HostileUse, settings=profile(max_examples=80, stateful_step_count=40, **COMMON))


@pytest.mark.parametrize("seed", range(3))
def test_soak_under_load(seed: int) -> None:
    machine = soak(seed)
    causes = {event.cause for event in machine.preempted}
    assert causes >= {"kv_blocks", "max_batch", "resize"}
    assert any(event.bytes for event in machine.preempted)
    assert machine.searches > 5 and machine.reader.copies > 5 and machine.shadows


@pytest.mark.slow(seconds=14)
@pytest.mark.parametrize("part", range(6))
def test_soak_for_fifty_thousand_steps(part: int) -> None:
    """Each a command or a pass, and everything is counted again after it. In parts, that processes of tests share."""
    checked, seeds = 0, count(100 * (part + 1))
    while checked < 50_000 / 6:
        checked += soak(next(seeds)).checked


def soak(seed: int, machine: HostileUse | None = None) -> HostileUse:
    """The same rules at random with a queue that never runs dry, which a minimising search seldom keeps up."""
    dice, more = random.Random(seed), random.Random(seed + 1_000)
    machine = HostileUse() if machine is None else machine
    machine.build(block_size=8, seed=seed, batch=8, chunked=seed % 2 == 0, blocks=12)

    def one(key: str) -> int | float | bool | str:
        return {
            "max_batch": dice.randint(1, 8),
            "max_context": dice.randint(32, 96),
            "token_budget": dice.choice([AUTO, dice.randint(8, 120)]),
            "draft_length": dice.randint(0, 6),
            "draft_method": dice.choice(["off", "ngram", "ngram"]),
            "chunked_prefill": dice.random() < 0.7,
            "prefix_cache": dice.random() < 0.7,
            "watermark": dice.choice([0.0, 0.01, 0.2]),
            "admission": dice.choice(["prompt", "chunk"]),
            "allocation": dice.choice(["paged", "paged", "reserved"]),
            "batching": dice.choice(["continuous"] * 4 + ["static"]),
            "preemption": dice.choice(["recompute", "swap"]),
            "swap_blocks": dice.choice([0, 2, 4, 12]),
            "block_size": dice.choice([8, 8, 16]),
        }[key]

    machine.drag({"preemption": "swap", "swap_blocks": 12})
    for _ in range(250):
        while len(machine.engine.scheduler.waiting) < 3:
            asked = {
                "shared": dice.choice([0, 8, 17, 25, 31]),
                "tail": [dice.randrange(VOCABULARY) for _ in range(dice.randrange(12))],
                "max_tokens": dice.randint(1, 40),
                "priority": dice.choice([0, 0, 0, 1]),
                "stop": dice.choice([[], [], ["abc"]]),
                "ignore_eos": dice.random() < 0.8,
                "speculate": dice.random() < 0.8,
                "copies": dice.choice([1, 3]),
                "samples": dice.choice([1, 1, 1, 4]),
                "temperature": dice.choice([0.0, 0.0, 0.8]),
                "beams": dice.choice([0, 0, 0, 1, 2, 4]),
            }
            machine.submit(**machine.asked(asked))
            machine.everything_holds()
        for _ in range(dice.randint(1, 6)):
            machine.step(1)
            machine.everything_holds()
        roll = dice.random()
        if roll < 0.3:
            machine.drag_pool(by=dice.randint(-6, 6))
        elif roll < 0.6:
            key = dice.choice([*sorted(RANGES.keys() - {"kv_blocks"}), "max_batch", "max_batch"])
            machine.drag(machine.asked({key: one(key)}))
        elif roll < 0.7:
            machine.preempt(dice.randrange(8))
        elif roll < 0.8:
            machine.abort(dice.randrange(100))
        elif roll < 0.85:
            machine.step_that_fails()
        if more.random() < 0.1:
            machine.shadow(more.randrange(8))
        machine.everything_holds()
    machine.teardown()
    return machine
