"""A request run again without drafts: the same tokens, in idle moments alone, and nobody else notices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine import records as r
from engine.config import EngineConfig
from engine.core import Engine, RequestRefused
from engine.records import DECODE, ROW, Aborted, Preempted, Request, Sampling, ShadowState, StepRecord, unpack
from engine.sampler import Sampler
from engine.shadow import KEPT, Shadows
from engine.speculation.ngram import NgramProposer
from engine.texts import NullTexts
from tests.support.applier import Applier
from tests.support.fake_runner import FakeRunner, TableModel, settings
from tests.support.inprocess import InProcessEngine

PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]


class Ticking:
    """A clock that a test advances: `each` ns at every look."""

    def __init__(self, each: int = 1000):
        self.now, self.each = 0, each

    def __call__(self) -> int:
        self.now += self.each
        return self.now


class Flipping(FakeRunner):
    """Says something else at one position when it is asked for one row only: a model that drafting changes."""

    at = -1

    def execute(self, batch):
        logits = super().execute(batch)
        if len(batch.tokens) == 1 and int(batch.positions[0]) == self.at:
            logits = -logits
        return logits


def build(runner=FakeRunner, **changes) -> Engine:
    now = settings(**{"draft_method": "ngram", "draft_length": 4, "max_context": 256, "kv_blocks": 64, **changes})
    made = runner(now.kv_blocks, 8, TableModel(8, seed=3, sharpness=3.0))
    made.resize_host(now.swap_blocks)
    return Engine(made, now, Sampler(8), bounds=made.bounds(), proposers={"ngram": NgramProposer.of}, clock=Ticking())


def run(engine: Engine, most: int = 2000) -> Iterator[StepRecord]:
    for _ in range(most):
        if not engine.has_work:
            return
        yield engine.step()
        engine.check()
    pytest.fail("it doesn't end")


def last(records: list[StepRecord]) -> ShadowState:
    return [state for record in records for state in record.shadows][-1]


def ask(number: int = 0, tokens: int = 60, **more) -> Request:
    return Request(number=number, max_tokens=tokens, ignore_eos=True, **more)


def done(engine: Engine, request: Request, prompt: list[int] = PROMPT) -> int:
    seq = engine.submit(request.number, prompt, request)
    list(run(engine))
    return seq


def test_all_tokens_are_equal_and_none_was_drafted():
    engine = build()
    done(engine, ask())
    shadow = engine.shadow(0)
    records = list(run(engine))
    state = last(records)
    assert (state.tokens, state.equal, state.different, state.first) == (60, 60, 0, -1) and state.done
    assert state.drafted > 0 and not state.ended
    rows = [row for record in records for row in unpack(record.rows, ROW).tolist()]
    assert {row[0] for row in rows} == {shadow} and all(row[5] == 0 for row in rows)


def test_it_counts_as_it_goes():
    engine = build()
    done(engine, ask())
    engine.shadow(0)
    equal = [record.shadows[0].equal for record in run(engine) if record.shadows]
    assert equal == sorted(equal) and set(range(2, 61)) <= set(equal)


def test_with_samplings_own_defaults_of_the_day():
    """Defaults that were changed since bind neither run."""
    engine = build()
    done(engine, ask())
    engine.change({"temperature": 1.0})
    engine.shadow(0)
    assert last(list(run(engine))).equal == 60


def test_a_difference_is_told_with_its_place():
    engine = build(Flipping)
    seq = done(engine, ask())
    before = engine._shadows._past[0].tokens[:]
    engine.runner.at = len(PROMPT) + 20
    engine.shadow(0)
    state = last(list(run(engine)))
    assert state.seq == seq and state.first == 21 and state.equal + state.different == 60 and state.different
    assert len(state.words) == 2 and before == engine._shadows._past[0].tokens


def others(records: list[StepRecord], shadows: set[int]) -> list[tuple]:
    """What is said of everybody else, steps that only shadows ran in left out."""
    out = []
    for record in records:
        rows = [row for row in unpack(record.rows, ROW).tolist() if row[0] not in shadows]
        if rows:
            assert len(rows) == len(unpack(record.rows, ROW)), "a shadow runs alone"
            out.append((rows, record.emitted, record.drafts, record.budget.tokens))
    return out


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kv_blocks": 34, "token_budget": 16},
        {"prefix_cache": False, "batching": "static"},
        {"allocation": "reserved"},
        {"preemption": "swap", "swap_blocks": 16, "kv_blocks": 34, "admission": "chunk"},
    ],
    ids=["roomy", "tight", "static", "reserved", "swap"],
)
def test_nobody_else_notices(changes):
    """The same arrivals, at the same places among their own steps, with a shadow and without."""
    told = []
    for with_shadow in (False, True):
        engine = build(**changes)
        applier = Applier(engine.keyframe())
        records: list[StepRecord] = []
        shadows: set[int] = set()

        def step(engine=engine, records=records, applier=applier):
            records.append(engine.step())
            engine.check()
            applier.apply(records[-1])

        def serve(engine=engine, step=step):
            """To the end of everybody but shadows."""
            while any(number >= 0 for number in engine._live):
                step()

        engine.submit(0, PROMPT * 3, ask(tokens=80))
        serve()
        if with_shadow:
            shadows.add(engine.shadow(0))
            for _ in range(30):
                step()
        # numbers of sequences are given in order of arrival, so the other run skips the shadow's
        engine._last_seq = 2
        for number in (1, 2, 3):
            engine.submit(number, [number, *PROMPT], ask(number, tokens=90))
            step()
        serve()
        if with_shadow:
            while engine.has_work:
                step()
            state = last(records)
            assert state.equal == 80 and state.done
            assert any(isinstance(e, Preempted) and e.cause == "shadow" for r in records for e in r.events)
            assert engine.scheduler.host.free_count == engine.scheduler.host.num_blocks
        told.append(others(records, shadows))
        applier.expect(engine.keyframe())
    assert told[0] == told[1]


def test_it_leaves_the_prefix_cache_alone():
    engine = build()
    done(engine, ask())
    before = engine.pool.findable()
    engine.shadow(0)
    records = list(run(engine))
    assert engine.pool.findable() == before and engine._prefixes.use.requests <= 1
    assert not any(record.cache or record.sealed for record in records)


def test_several_take_turns():
    engine = build()
    for number in range(3):
        done(engine, ask(number, tokens=30), [number, *PROMPT])
    for number in range(3):
        engine.shadow(number)
    records = list(run(engine))
    assert all(len(unpack(record.rows, ROW)) == 1 for record in records)
    ends = {state.number: state for record in records for state in record.shadows}
    assert [ends[n].equal for n in range(3)] == [30] * 3 and all(state.done for state in ends.values())


def test_asked_for_while_the_original_runs_it_waits_for_its_end():
    engine = build()
    seq = engine.submit(0, PROMPT, ask())
    for _ in range(3):
        engine.step()
    engine.shadow(0)
    records = list(run(engine))
    order = [unpack(record.rows, ROW)["seq"].tolist() for record in records]
    assert order.index([seq + 1]) > max(i for i, seqs in enumerate(order) if seq in seqs)
    assert last(records).equal == 60


def test_speeds_are_of_steps_that_each_had_alone():
    engine = build()
    done(engine, ask())
    engine.shadow(0)
    state = last(list(run(engine)))
    assert state.shadow_pace.tokens == 59 and state.shadow_pace.alone
    assert state.original_pace.tokens == 59 and state.original_pace.alone
    # every look at the clock is as long: fewer steps, more tokens a second
    assert state.original_pace.ns < state.shadow_pace.ns


def test_who_ran_beside_others_is_measured_as_it_was():
    engine = build()
    engine.submit(0, PROMPT, ask(tokens=40))
    engine.submit(1, PROMPT[1:], ask(1, tokens=60))
    list(run(engine))
    engine.shadow(0)
    state = last(list(run(engine)))
    assert not state.original_pace.alone and state.original_pace.tokens == 39 and state.shadow_pace.alone


def test_time_that_others_took_is_not_the_shadows():
    engine = build()
    done(engine, ask())
    engine.shadow(0)
    for _ in range(10):
        engine.step()
    engine._monotonic.now += 10**9
    done(engine, ask(1, tokens=20), [4, 5, 6])
    states = [state for state in engine._shadows.all() if state.number == 0]
    assert states[0].done and states[0].shadow_pace.ns < 10**9


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (ask(n=2), "2 samples"),
        (ask(beams=2), "2 beams"),
        (ask(sampling=Sampling(temperature=0.7)), "temperature 0.7"),
    ],
)
def test_refusals_say_why(request_, words):
    engine = build()
    done(engine, request_)
    with pytest.raises(RequestRefused, match=words):
        engine.shadow(0)


def test_unknown_waiting_and_twice():
    engine = build(max_batch=1)
    with pytest.raises(RequestRefused, match="not among"):
        engine.shadow(5)
    engine.submit(0, PROMPT, ask())
    engine.submit(1, PROMPT, ask(1))
    engine.step()
    with pytest.raises(RequestRefused, match="still waits"):
        engine.shadow(1)
    engine.shadow(0)
    with pytest.raises(RequestRefused, match="already"):
        engine.shadow(0)
    list(run(engine))
    engine.shadow(0)  # and once more, if somebody wants to
    assert last(list(run(engine))).equal == 60


def test_what_ran_simulated_is_refused():
    engine = build()
    engine.submit(0, PROMPT, ask())
    engine.change({"simulated_acceptance": [0.5]})
    engine.change({"simulated_acceptance": []})
    list(run(engine))
    with pytest.raises(RequestRefused, match="meaningless"):
        engine.shadow(0)


def test_one_that_never_drafted_is_fine():
    engine = build(draft_method="off")
    done(engine, ask(tokens=10))
    engine.shadow(0)
    state = last(list(run(engine)))
    assert state.equal == 10 and state.drafted == 0


def test_aborted_by_its_own_number_by_the_requests_and_with_all():
    engine = build()
    for number in (0, r.shadow_number(0), None):
        done(engine, ask(), PROMPT)
        engine.shadow(0)
        for _ in range(5):
            engine.step()
        engine.abort(number)
        assert not engine.has_work and engine.pool.used_count == 0
        between = engine.between()
        assert [e for e in between.events if isinstance(e, Aborted)]
        assert between.shadows[0].done and between.shadows[0].ended == "aborted" and between.shadows[0].equal > 0
        engine.check()


def test_an_aborted_request_takes_its_shadow_along():
    engine = build()
    engine.submit(0, PROMPT, ask())
    engine.step()
    engine.shadow(0)
    engine.abort(0)
    assert not engine.has_work
    with pytest.raises(RequestRefused, match="not among"):
        engine.shadow(0)


def test_settings_change_under_it():
    engine = build(swap_blocks=8, preemption="swap")
    done(engine, ask(tokens=100))
    engine.shadow(0)
    records: list[StepRecord] = []
    for change in ({"draft_length": 8}, {"kv_blocks": 40}, {"max_batch": 1}, {"block_size": 16},
                   {"prefix_cache": False}, {"allocation": "reserved"}, {"draft_method": "off"}):  # fmt: skip
        engine.change(change)
        records += [engine.step() for _ in range(5)]
        engine.check()
    records += run(engine)
    assert last(records).equal == 100 and last(records).done


def test_a_shadow_keeps_no_setting_from_being_made():
    """The pool may become smaller than it needs: it ends, and says why."""
    engine = build(max_context=128)
    done(engine, ask(tokens=100))
    engine.shadow(0)
    for _ in range(10):
        engine.step()
    engine.change({"max_context": 64, "kv_blocks": 8})
    assert not engine.has_work
    state = engine.between().shadows[0]
    assert state.done and "no room" in state.ended


def test_only_so_many_are_remembered():
    engine = build()
    for number in range(KEPT + 2):
        done(engine, ask(number, tokens=3))
    with pytest.raises(RequestRefused, match="not among"):
        engine.shadow(1)
    for number in range(2, KEPT + 2):
        engine.shadow(number)
    list(run(engine))
    done(engine, ask(1000, tokens=3))
    engine.shadow(1000)
    list(run(engine))
    kept = engine._shadows
    assert len(kept.all()) == KEPT == len(kept._past)
    assert len(kept._alone) <= 3 * KEPT


def test_a_step_of_many_rows_costs_nothing_here():
    shadows = Shadows(NullTexts())
    shadows.see([(1, DECODE, 1, 1, 1, 0, 0, 1)] * 2, 0, 10)
    assert not shadows._alone and not shadows.changed


def test_over_the_pipe_it_is_a_command_with_an_answer():
    engine, seen = InProcessEngine(EngineConfig(settings=settings(max_context=128, kv_blocks=64)), steps_per_poll=9), []
    command = r.Shadow(id=engine.next_id(), number=7)
    engine.send(command)
    seen += engine.poll()
    refused = next(m for m in seen if isinstance(m, r.Ack))
    assert refused.id == command.id and not refused.ok and "not among" in refused.message
    assert not any(isinstance(m, r.Refused) for m in seen), "no request of anybody's was refused"
    engine.send(r.Submit(id=engine.next_id(), request=ask(7, tokens=12, prompt="abcabcabc")))
    for _ in range(5):
        seen += engine.poll()
    engine.send(r.Shadow(id=engine.next_id(), number=7))
    for _ in range(5):
        seen += engine.poll()
    assert [m.ok for m in seen if isinstance(m, r.Ack)] == [False, True, True]
    states = [s for m in seen if isinstance(m, StepRecord | r.Between) for s in m.shadows]
    assert states[-1].done and states[-1].equal == 12
    engine.send(r.SendKeyframe(id=engine.next_id()))
    frame = [m for m in engine.poll() if isinstance(m, r.Keyframe)][-1]
    assert frame.shadows == [states[-1]]
