"""Engine.step() and what surrounds it, on a model that is a table: outputs, records, settings, refusals, ends."""

from __future__ import annotations

import numpy as np
import pytest

from engine.config import SettingRefused
from engine.core import Engine, RequestRefused
from engine.records import (
    ACCEPTED,
    CACHE,
    DECODE,
    DISCARDED,
    DRAFT,
    EVICTED,
    HIT,
    PREFILL,
    ROW,
    TOKEN,
    Aborted,
    Admitted,
    Finished,
    Preempted,
    Request,
    Sampling,
    StepRecord,
    Submitted,
    unpack,
)
from engine.sampler import Sampler
from engine.speculation.ngram import NgramProposer
from engine.speculation.proposer import Lookup
from tests.support.applier import Applier
from tests.support.fake_runner import FakeRunner, TableModel, settings
from tests.support.fake_texts import LetterTexts

V = 8
PROMPT = [1, 2, 3, 4, 5, 6, 0, 1, 2, 3]


class Oracle(Lookup):
    """A proposer that knows the model: its first `right` guesses are right, the others are not."""

    def __init__(self, model: TableModel, right: int):
        self.model, self.right = model, right
        self.forgotten: list[int] = []

    def follow(self, seq: int, tokens: list[int], limit: int) -> list[int]:
        truth = self.model.greedy(tokens, limit)
        return [t if i < self.right else (t + 1) % V for i, t in enumerate(truth)]

    def forget(self, seq: int) -> None:
        self.forgotten.append(seq)


class Clock:
    def __init__(self) -> None:
        self.ns = 1_000

    def __call__(self) -> int:
        self.ns += 10
        return self.ns


def build(right: int | None = None, room: int = 1 << 20, eos: frozenset[int] = frozenset(), **changes) -> Engine:
    now = settings(**{"draft_method": "off" if right is None else "ngram", **changes})
    model = TableModel(V, seed=3, sharpness=3.0)
    runner = FakeRunner(now.kv_blocks, 8, model, room)
    oracle = Oracle(model, right) if right is not None else NgramProposer()
    return Engine(
        runner,
        now,
        Sampler(V),
        bounds=runner.bounds(),
        proposers={"ngram": lambda _: oracle},
        texts=LetterTexts(),
        eos_ids=eos,
        clock=Clock(),
    )


def submit(engine: Engine, number: int = 1, prompt: list[int] | None = None, **fields) -> int:
    return engine.submit(number, PROMPT if prompt is None else prompt, Request(number=number, **fields))


def drain(engine: Engine) -> list[StepRecord]:
    found = []
    while engine.has_work:
        found.append(engine.step())
        engine.check()
        assert len(found) < 1_000
    return found


def tokens_of(found: list[StepRecord], seq: int = 1) -> list[int]:
    return [t["token"] for record in found for t in unpack(record.emitted, TOKEN) if t["seq"] == seq]


def ends(found: list[StepRecord]) -> list[Finished]:
    return [e for record in found for e in record.events if isinstance(e, Finished)]


def greedy(engine: Engine, count: int, prompt: list[int] = PROMPT) -> list[int]:
    return engine.runner.table_model.greedy(prompt, count)


# --- outputs ---


@pytest.mark.parametrize("right", [None, 0, 1, 2, 4])
@pytest.mark.parametrize("gamma", [1, 4, 16])
def test_output_is_the_models_own_whatever_is_drafted(right: int | None, gamma: int) -> None:
    engine = build(right, draft_length=gamma, token_budget=64)
    submit(engine, max_tokens=20)
    assert tokens_of(drain(engine)) == greedy(engine, 20)


def test_right_drafts_save_passes() -> None:
    engine = build(right=4)
    submit(engine, max_tokens=20)
    found = drain(engine)
    # the prompt gives 1, three passes 5 each, and the last is kept from going past its end
    assert [r["emitted"] for record in found for r in unpack(record.rows, ROW)] == [1, 5, 5, 5, 4]
    assert [r["drafted"] for record in found for r in unpack(record.rows, ROW)] == [0, 4, 4, 4, 3]


def test_a_row_tells_what_it_did() -> None:
    engine = build(right=2)
    submit(engine, max_tokens=20)
    first, second = engine.step(), engine.step()
    assert unpack(first.rows, ROW).tolist() == [(1, PREFILL, 10, 10, 11, 0, 0, 1)]
    assert unpack(second.rows, ROW).tolist() == [(1, DECODE, 5, 13, 14, 4, 2, 3)]
    assert (first.step, second.step) == (1, 2)
    tokens = unpack(second.emitted, TOKEN)
    assert tokens["position"].tolist() == [11, 12, 13]
    assert tokens["origin"].tolist() == [1, 1, 2]  # accepted, accepted, resampled
    verdicts = unpack(second.drafts, DRAFT)
    assert verdicts["position"].tolist() == [11, 12, 13, 13, 14]
    assert len(second.draft_text) == 5 and second.text == [chr(97 + t) for t in tokens["token"]]


def test_the_same_request_gets_the_same_seed_and_others_do_not() -> None:
    def run(numbers: list[int]) -> dict[int, list[int]]:
        engine = build(temperature=1.0, max_batch=8)
        seqs = {number: submit(engine, number, max_tokens=20) for number in numbers}
        found = drain(engine)
        return {number: tokens_of(found, seq) for number, seq in seqs.items()}

    alone, together = run([5]), run([3, 4, 5, 6])
    assert alone[5] == together[5]
    assert len({tuple(t) for t in together.values()}) > 1


def test_sampling_defaults_are_those_of_the_first_admission() -> None:
    engine = build(max_batch=1)
    submit(engine, 1, max_tokens=9)
    submit(engine, 2, max_tokens=9, sampling=Sampling(temperature=0.5, seed=7))
    engine.step()
    (one,) = engine.scheduler.running
    engine.change({"temperature": 1.5, "top_k": 3})
    assert (one.params.temperature, one.params.top_k) == (0.0, 0)
    engine.scheduler.preempt(one, "max_batch")
    engine.step()
    assert one.params.temperature == 0.0
    while engine.scheduler.running[0] is one:
        engine.step()
        if not engine.scheduler.running:
            engine.step()
    (two,) = engine.scheduler.running
    assert (two.params.temperature, two.params.top_k, two.params.seed) == (0.5, 3, 7)


# --- ends ---


def test_max_tokens_and_context_end_a_sequence() -> None:
    engine = build(max_context=16)
    submit(engine, 1, max_tokens=3)
    submit(engine, 2, max_tokens=6)
    submit(engine, 3, max_tokens=7)
    finished = {e.number: (e.reason, e.output_tokens) for e in ends(drain(engine))}
    assert finished == {1: ("length", 3), 2: ("length", 6), 3: ("context", 6)}


def test_one_token_is_enough() -> None:
    engine = build(right=4)
    submit(engine, max_tokens=1)
    (record,) = drain(engine)
    assert ends([record])[0].reason == "length" and engine.pool.used_count == 0


@pytest.mark.parametrize("right", [None, 4])
def test_end_of_sequence_ends_and_drops_what_follows(right: int | None) -> None:
    truth = greedy(build(), 30)
    eos = truth[7]
    first = truth.index(eos)
    engine = build(right, eos=frozenset({eos}))
    submit(engine, max_tokens=30)
    found = drain(engine)
    assert tokens_of(found) == truth[: first + 1]  # it is emitted, and without text
    assert ends(found)[0].reason == "stop"
    assert [piece for record in found for piece in record.text][-1] == ""


def test_ignore_eos() -> None:
    truth = greedy(build(), 30)
    engine = build(eos=frozenset(truth))
    submit(engine, max_tokens=30, ignore_eos=True)
    assert tokens_of(drain(engine)) == truth


def test_what_was_accepted_beyond_an_end_counts_as_discarded() -> None:
    truth = greedy(build(), 8)
    eos = next(t for t in truth[1:] if t != truth[0])
    end = truth.index(eos)
    engine = build(right=8, draft_length=8, eos=frozenset({eos}))
    submit(engine, max_tokens=30)
    record = drain(engine)[-1]
    (row,) = unpack(record.rows, ROW)
    assert (row["drafted"], row["accepted"], row["emitted"]) == (8, end, end)
    assert unpack(record.drafts, DRAFT)["verdict"].tolist() == [ACCEPTED] * end + [DISCARDED] * (8 - end)


def test_a_stop_string_ends_the_text_before_it() -> None:
    truth = "".join(chr(97 + t) for t in greedy(build(), 30))
    stop = truth[5:8]
    engine = build(right=4)
    submit(engine, max_tokens=30, stop=[stop])
    found = drain(engine)
    text = "".join(piece for record in found for piece in record.text) + ends(found)[0].tail
    assert text == truth[: truth.index(stop)]
    assert len(tokens_of(found)) == truth.index(stop) + 3
    assert ends(found)[0].reason == "stop"
    assert not engine.texts.open


# --- requests ---


@pytest.mark.parametrize(
    ("prompt", "fields", "says"),
    [
        ([], {}, "empty"),
        ([1, 8], {}, "vocabulary"),
        ([-1], {}, "vocabulary"),
        ([1] * 64, {}, "max_context"),
        ([1], {"max_tokens": 0}, "max_tokens"),
        ([1], {"stop": [""]}, "stop string"),
        ([1], {"sampling": Sampling(temperature=-1.0)}, "temperature"),
        ([1], {"sampling": Sampling(temperature=float("nan"))}, "temperature"),
        ([1], {"sampling": Sampling(top_p=0.0)}, "top_p"),
        ([1], {"sampling": Sampling(min_p=1.5)}, "min_p"),
        ([1], {"sampling": Sampling(top_k=-1)}, "top_k"),
    ],
)
def test_what_cannot_be_served_is_refused(prompt: list[int], fields: dict, says: str) -> None:
    engine = build()
    with pytest.raises(RequestRefused, match=says):
        submit(engine, prompt=prompt, **fields)
    assert not engine.has_work and engine.between() is None


def test_a_number_in_use_is_refused_and_free_again_afterwards() -> None:
    engine = build()
    submit(engine, 1, max_tokens=2)
    with pytest.raises(RequestRefused, match="number of its own"):
        submit(engine, 1)
    drain(engine)
    assert submit(engine, 1) == 2


def test_aborts() -> None:
    engine = build(right=2, max_batch=1)
    submit(engine, 1)
    submit(engine, 2)
    engine.step()
    assert engine.abort(2) == 1 and engine.abort(1) == 1 and engine.abort(1) == 0
    between = engine.between()
    assert [(type(e), e.number) for e in between.events] == [(Aborted, 2), (Aborted, 1)]
    assert (between.running, between.waiting, between.used, between.after) == (0, 0, 0, 1)
    engine.check()
    submit(engine, 3)
    submit(engine, 4)
    assert engine.abort() == 2 and not engine.has_work
    assert not engine.texts.open


def test_a_prompt_that_waits_while_the_context_shrinks_is_told_so() -> None:
    engine = build()
    submit(engine, 1, prompt=[1] * 40)
    engine.change({"max_context": 32})
    record = engine.step()
    (event,) = [e for e in record.events if isinstance(e, Aborted)]
    assert "raise max_context" in event.reason and event.number == 1
    assert not record.rows and not engine.has_work
    engine.check()


# --- settings ---


def test_all_changes_or_none() -> None:
    engine = build()
    before = engine.settings
    with pytest.raises(SettingRefused) as refusal:
        engine.change({"draft_length": 2, "token_budget": 2})
    assert refusal.value.key == "token_budget" and engine.settings is before
    with pytest.raises(SettingRefused):
        engine.change({"colour": 1})
    assert engine.between() is None


def test_a_pool_smaller_than_a_running_need_is_refused_by_name() -> None:
    engine = build(max_context=64)
    submit(engine, 17, max_tokens=50)
    engine.step()
    with pytest.raises(SettingRefused, match=r"request 17 .* 60; 8 blocks") as refusal:
        engine.change({"kv_blocks": 7, "max_context": 32})
    assert refusal.value.key == "kv_blocks"
    engine.change({"kv_blocks": 8})
    assert engine.runner.num_blocks == 8
    engine.check()


def test_a_pool_that_memory_has_no_room_for_is_refused_with_figures() -> None:
    engine = build(room=40)
    submit(engine)
    engine.step()
    with pytest.raises(SettingRefused, match="MiB") as refusal:
        engine.change({"kv_blocks": 100_000, "max_batch": 1})
    assert refusal.value.key == "kv_blocks"
    assert (engine.settings.kv_blocks, engine.runner.num_blocks, engine.settings.max_batch) == (32, 32, 4)
    engine.check()
    assert tokens_of(drain(engine)) == greedy(engine, 54)[1:]


def test_shrinking_and_growing_the_pool_loses_no_output() -> None:
    engine = build(max_batch=8, kv_blocks=32, max_context=32)
    for number in range(1, 7):
        submit(engine, number, prompt=PROMPT[number:] + PROMPT, max_tokens=10)
    found = [engine.step(), engine.step()]
    engine.change({"kv_blocks": 5})
    found += [engine.step()]
    causes = [(e.seq, e.cause) for e in found[-1].events if isinstance(e, Preempted)]
    assert ("resize" in {cause for _, cause in causes}) and found[-1].settings.kv_blocks == 5
    engine.change({"kv_blocks": 24})
    found += drain(engine)
    for number in range(1, 7):
        assert tokens_of(found, number) == greedy(engine, 10, PROMPT[number:] + PROMPT)


def test_the_next_step_obeys_gamma_and_method() -> None:
    engine = build(right=4, draft_length=4)
    submit(engine, max_tokens=40)
    engine.step()

    def drafted() -> int:
        return int(unpack(engine.step().rows, ROW)["drafted"][0])

    assert drafted() == 4
    engine.change({"draft_length": 1})
    assert drafted() == 1
    engine.change({"draft_length": 0})
    assert drafted() == 0
    engine.change({"draft_length": 3})
    assert drafted() == 3
    engine.change({"draft_method": "off"})
    assert drafted() == 0


def test_speculation_can_be_declined() -> None:
    engine = build(right=4)
    submit(engine, max_tokens=10, sampling=Sampling(speculate=False))
    assert not any(record.drafts for record in drain(engine))


def test_turning_the_prefix_cache_off_frees_it() -> None:
    engine = build()
    submit(engine, max_tokens=2)
    drain(engine)
    assert engine.pool.cached_count == 1
    engine.change({"prefix_cache": False})
    between = engine.between()
    assert (between.cached, between.free) == (0, 32) and len(between.blocks)
    submit(engine, max_tokens=2)
    drain(engine)
    assert engine.pool.cached_count == 0


def test_an_unknown_draft_method_is_refused() -> None:
    engine = build(right=1)
    engine._drafting._factories = {}
    engine.change({"draft_method": "off"})
    with pytest.raises(SettingRefused) as refusal:
        engine.change({"draft_method": "ngram"})
    assert refusal.value.key == "draft_method" and engine.settings.draft_method == "off"


# --- telling ---


def test_events_come_in_order() -> None:
    engine = build()
    submit(engine, max_tokens=2, label="bench", prompt=PROMPT)
    found = drain(engine)
    events = [e for record in found for e in record.events]
    assert [type(e) for e in events] == [Submitted, Admitted, Finished]
    assert (events[0].label, events[0].prompt_tokens, events[1].limit) == ("bench", 10, 12)


def test_between_is_silent_when_nothing_happened() -> None:
    engine = build()
    assert engine.between() is None
    engine.change({"draft_length": 1})
    between = engine.between()
    assert between.settings.draft_length == 1 and not between.events
    assert engine.between() is None
    submit(engine)
    assert [type(e) for e in engine.between().events] == [Submitted]
    assert engine.between() is None
    assert engine.step().events[0].again is False


def test_held_time_is_no_latency() -> None:
    engine = build()
    submit(engine, max_tokens=3)
    one = engine.step()
    engine._monotonic.ns += 5_000_000
    engine.hold(5_000_000)
    two = engine.step()
    assert two.end_clock - one.end_clock < 1_000
    assert two.start - one.start > 5_000_000
    (sequence,) = engine.scheduler.running
    assert sequence.last_token - sequence.first_token == two.end_clock - one.end_clock


def test_a_sequence_remembers_when_its_tokens_came() -> None:
    engine = build(token_budget=8)
    submit(engine, max_tokens=3)
    engine.step()  # a chunk of 8, no token yet
    (sequence,) = engine.scheduler.running
    assert (sequence.first_token, sequence.last_token) == (0, 0)
    two = engine.step()
    assert (sequence.first_token, sequence.last_token) == (two.end_clock, two.end_clock)
    three = engine.step()
    assert (sequence.first_token, sequence.last_token) == (two.end_clock, three.end_clock)
    parts = three.timing
    assert parts.total == sum((parts.schedule, parts.draft, parts.forward, parts.sample, parts.commit)) > 0
    assert three.end_clock == three.clock + parts.total - parts.commit


def test_memory_is_sampled_four_times_a_second() -> None:
    engine = build()
    submit(engine, max_tokens=40)
    assert engine.step().memory is not None
    assert engine.step().memory is None
    engine._monotonic.ns += 250_000_000
    assert engine.step().memory is not None
    assert engine.keyframe().memory is not None


@pytest.mark.parametrize("right", [None, 2])
def test_the_watched_sequence_shows_its_likeliest_tokens(right: int | None) -> None:
    engine = build(right)
    submit(engine, 1, max_tokens=20)
    seq = submit(engine, 2, prompt=PROMPT[2:], max_tokens=20)
    engine.watch(seq, 3)
    engine.step()
    record = engine.step()
    emitted = [t for t in unpack(record.emitted, TOKEN) if t["seq"] == seq]
    assert [top.position for top in record.top] == [t["position"] for t in emitted]
    assert [top.tokens[0] for top in record.top] == [t["token"] for t in emitted]  # greedy
    assert all(top.seq == seq and len(top.tokens) == len(top.text) == 3 for top in record.top)
    engine.watch(None)
    assert engine.step().top == []


def test_a_step_that_fails_can_be_run_again() -> None:
    engine = build(right=4)
    submit(engine, 1, max_tokens=20)
    submit(engine, 2, prompt=PROMPT[3:], max_tokens=20)
    found = [engine.step(), engine.step()]
    kept = engine.runner.execute

    def fail(batch: object) -> None:
        raise MemoryError

    engine.runner.execute = fail
    with pytest.raises(MemoryError):
        engine.step()
    engine.check()
    engine.change({"kv_blocks": 16})
    engine.runner.execute = kept
    found += drain(engine)
    assert [record.step for record in found] == list(range(1, len(found) + 1))
    assert tokens_of(found, 1) == greedy(engine, 20)
    assert tokens_of(found, 2) == greedy(engine, 20, PROMPT[3:])


def test_what_ended_is_forgotten() -> None:
    engine = build(right=1)
    submit(engine, 1, max_tokens=2)
    submit(engine, 2)
    engine.step()
    engine.abort(2)
    drain(engine)
    assert sorted(engine._drafting.proposer.forgotten) == [1, 2]
    assert not engine._live and not engine.texts.open


def test_a_reader_of_records_knows_what_a_keyframe_knows() -> None:
    engine = build(right=2, kv_blocks=8, max_context=48)
    reader = Applier(engine.keyframe())
    for number in range(1, 6):
        submit(engine, number, prompt=PROMPT[number:] * 2, max_tokens=25, priority=number % 2)
    while engine.has_work:
        reader.apply(engine.step())
        reader.expect(engine.keyframe())
    assert set(reader.ended.values()) == {"length"}


def test_records_tell_what_the_prefix_cache_did() -> None:
    """17 tokens are 2 full blocks of 8 and the last token, which is never looked up."""
    engine = build(kv_blocks=9, max_context=64)
    prompt = [1, 2, 3, 4] * 4 + [5]
    submit(engine, 1, prompt, max_tokens=2)
    first = run_out(engine)
    (admitted,) = [e for r in first for e in r.events if isinstance(e, Admitted)]
    assert (admitted.cached_tokens, admitted.looked_up) == (0, 16)
    submit(engine, 2, prompt, max_tokens=2)
    second = run_out(engine)
    (admitted,) = [e for r in second for e in r.events if isinstance(e, Admitted)]
    assert (admitted.cached_tokens, admitted.looked_up) == (16, 16)
    hits = unpack(second[0].cache, CACHE)
    assert hits[["kind", "block", "seq", "owner", "steps"]].tolist() == [(HIT, 0, 2, 1, 1), (HIT, 1, 2, 1, 1)]
    assert hits["ns"].min() > 0
    engine = build(kv_blocks=8, max_context=64)
    submit(engine, 1, prompt, max_tokens=2)
    run_out(engine)
    submit(engine, 2, [6] * 60, max_tokens=4)
    evicted = np.concatenate([unpack(r.cache, CACHE) for r in run_out(engine)])
    assert evicted[["kind", "block", "seq", "owner"]].tolist() == [(EVICTED, 1, 2, 1), (EVICTED, 0, 2, 1)]


def run_out(engine: Engine) -> list[StepRecord]:
    records = []
    while engine.has_work:
        records.append(engine.step())
    return records
