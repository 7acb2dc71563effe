"""The step loop: commands are obeyed by the step that their Ack names, and pausing changes no output."""

from __future__ import annotations

import os
import random
import time
from queue import SimpleQueue

import pytest

from engine import records as r
from engine.config import EngineConfig, LiveSettings
from engine.loop import Loop
from engine.model.problem import ModelProblem
from engine.worker import explain
from tests.support.clients import Seen, running, until
from tests.support.fake_engine import FakeEngine, OutOfDeviceMemory, RequestRefused, encode_request
from tests.support.inprocess import InProcessEngine

TABLE = "tests.support.inprocess:table_main"
SETTINGS = LiveSettings(max_batch=4, max_context=128, kv_blocks=40, token_budget=32)
CONFIG = EngineConfig(settings=SETTINGS, block_size=8)


class Clock:
    def __init__(self):
        self.ns = 10**9

    def __call__(self) -> int:
        return self.ns


class Bench:
    """A loop on the model-less engine with a clock that only moves by hand."""

    def __init__(self, paused: bool = False):
        self.clock = Clock()
        self.engine = FakeEngine(LiveSettings(), step_seconds=0)
        self.sent = Seen()
        self.ids = 0
        self.loop = Loop(
            self.engine, encode_request, self.sent.append, refusals=(RequestRefused,),
            out_of_memory=(OutOfDeviceMemory,), paused=paused, clock=self.clock,
        )  # fmt: skip
        self.loop.begin()

    def do(self, kind: type, **fields: object) -> r.Ack:
        self.ids += 1
        self.loop.handle(kind(id=self.ids, **fields))
        return next(ack for ack in self.sent.of(r.Ack) if ack.id == self.ids)

    def submit(self, tokens: int = 3, prompt: str = "hello") -> r.Ack:
        return self.do(r.Submit, request=r.Request(number=self.ids, prompt=prompt, max_tokens=tokens))

    def turn(self, seconds: float = 0.0) -> None:
        self.clock.ns += round(seconds * 1e9)
        self.loop.turn()

    @property
    def steps(self) -> int:
        return len(self.sent.of(r.StepRecord))


def test_it_begins_with_a_keyframe_and_its_status():
    bench = Bench()
    assert [type(m) for m in bench.sent] == [r.Keyframe, r.Status] and bench.sent[-1].idle


def test_nothing_to_do_is_waiting_for_a_command():
    bench = Bench()
    assert bench.loop.idle_for() is None
    bench.submit()
    assert bench.loop.idle_for() == 0


def test_paused_it_takes_requests_and_says_so_without_a_step():
    bench = Bench(paused=True)
    bench.submit()
    bench.turn()
    bench.loop.settle()
    assert bench.steps == 0 and isinstance(bench.sent[-2], r.Between) and bench.sent[-1].paused
    assert bench.loop.idle_for() is None


def test_single_steps_while_paused():
    bench = Bench(paused=True)
    assert not bench.do(r.StepOnce).ok  # nothing to compute
    bench.submit(tokens=10)
    assert bench.do(r.StepOnce, steps=2).step == 1
    for _ in range(5):
        bench.turn()
    assert bench.steps == 2 and bench.loop.idle_for() is None
    bench.do(r.Resume)
    bench.turn()
    assert bench.steps == 3


def test_a_single_step_while_running_leaves_it_paused():
    bench = Bench()
    bench.submit(tokens=10)
    bench.do(r.StepOnce)
    for _ in range(3):
        bench.turn()
    assert bench.steps == 1 and bench.sent.of(r.Status)[-1].paused


def test_paused_time_is_not_on_the_engines_clock():
    bench = Bench()
    bench.submit(tokens=10)
    bench.turn()
    bench.do(r.Pause)
    bench.clock.ns += 5_000_000_000
    bench.submit()  # in the middle of a pause: what went by must be off the clock already
    assert bench.engine.held == 5_000_000_000
    bench.clock.ns += 2_000_000_000
    bench.do(r.Resume)
    bench.turn(seconds=1.0)  # this second counts
    assert bench.engine.held == 7_000_000_000


def test_slow_motion_holds_steps_back_and_is_off_the_clock():
    bench = Bench()
    bench.submit(tokens=10)
    bench.do(r.SetDelay, seconds=0.5)
    bench.turn()
    assert bench.steps == 1 and bench.loop.idle_for() == 0.5
    bench.turn(seconds=0.25)
    assert bench.steps == 1
    bench.turn(seconds=0.25)
    assert bench.steps == 2 and bench.engine.held == 500_000_000
    bench.do(r.SetDelay, seconds=0.1)  # the wait that has begun gets shorter with it
    assert bench.loop.idle_for() == pytest.approx(0.1)
    bench.do(r.SetDelay, seconds=0)
    bench.turn()
    assert bench.steps == 3


def test_a_delay_out_of_range_is_refused():
    assert "outside" in Bench().do(r.SetDelay, seconds=-1.0).message


def test_a_change_is_in_force_in_the_step_its_ack_names():
    bench = Bench()
    bench.submit(tokens=10)
    bench.turn()
    ack = bench.do(r.Change, changes={"max_batch": 3})
    bench.turn()
    record = bench.sent.of(r.StepRecord)[-1]
    assert ack.ok and ack.step == record.step == 2 and record.settings.max_batch == ack.settings.max_batch == 3


def test_a_refused_change_names_its_setting_and_changes_nothing():
    ack = Bench().do(r.Change, changes={"max_batch": 0})
    assert not ack.ok and ack.key == "max_batch" and ack.settings == LiveSettings()


def test_a_refused_request_is_answered_twice():
    bench = Bench()
    ack = bench.submit(prompt="")
    assert not ack.ok and bench.sent.of(r.Refused)[0].message == ack.message


def test_keyframes_on_request_and_every_so_many_steps():
    bench = Bench()
    bench.submit(tokens=7)
    assert isinstance(bench.sent[-1], r.Ack)
    bench.do(r.SendKeyframe, every=3)
    kinds = [type(m) for m in bench.sent]
    assert kinds[-3:] == [r.Between, r.Keyframe, r.Ack]  # what came before the keyframe is told before it
    for _ in range(7):
        bench.turn()
    assert [key.step for key in bench.sent.of(r.Keyframe)] == [0, 0, 3, 6]


def test_memory_that_runs_out_in_a_step_shrinks_the_pool_and_the_step_runs_again():
    bench = Bench()
    bench.submit()
    bench.engine.memory_fails = 2
    for _ in range(3):
        bench.turn()
    assert bench.steps == 1 and bench.engine.settings.kv_blocks < 512 and len(bench.sent.of(r.Notice)) == 2


def test_memory_that_never_suffices_ends_with_the_reason():
    bench = Bench()
    bench.submit()
    bench.engine.memory_fails = 100
    with pytest.raises((MemoryError, OutOfDeviceMemory)):
        for _ in range(100):
            bench.turn()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModelProblem("the file is truncated; fetch it again"), "The file is truncated; fetch it again."),
        (MemoryError(), "fewer KV blocks"),
        (OutOfDeviceMemory("no room"), "fewer KV blocks"),
        (ImportError("no torch"), "Reinstall"),
        (ValueError("odd"), "ValueError: odd"),
    ],
)
def test_every_way_to_fail_is_told_in_words(error, words):
    assert words in explain(error)


def test_a_directorys_name_stays_as_it_was_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mymodel").mkdir()
    assert explain(ModelProblem("mymodel is no complete model directory")).startswith("mymodel is")


# --- with the real core ---


def requests(count: int = 6, tokens: int = 40) -> list[r.Request]:
    return [
        r.Request(number=i, token_ids=[(i * 3 + j) % 8 for j in range(5 + 7 * i)], max_tokens=tokens)
        for i in range(count)
    ]


def straight() -> dict[int, list[int]]:
    """What the requests give when nobody interferes."""
    source, seen = InProcessEngine(CONFIG), Seen()
    for request in requests():
        source.send(r.Submit(id=source.next_id(), request=request))
    while len(seen.events(r.Finished)) < len(requests()):
        seen.extend(source.poll())
    return seen.tokens()


def test_pauses_steps_and_delays_change_no_output():
    source, seen, rng = InProcessEngine(CONFIG), Seen(), random.Random(3)
    for request in requests():
        source.send(r.Submit(id=source.next_id(), request=request))
    while len(seen.events(r.Finished)) < len(requests()):
        kind = rng.choice([r.Pause, r.Resume, r.StepOnce, r.SetDelay, r.SendKeyframe])
        more = {"seconds": rng.choice([0.0, 0.001])} if kind is r.SetDelay else {}
        source.send(kind(id=source.next_id(), **more))
        seen.extend(source.poll())
        source.engine.check()
    assert seen.tokens() == straight()


def test_latencies_leave_out_what_was_held_back():
    source, seen = InProcessEngine(CONFIG), Seen()
    source.send(r.Submit(id=1, request=requests(1, tokens=8)[0]))
    source.send(r.StepOnce(id=2))
    seen.extend(source.poll())
    time.sleep(0.3)
    source.send(r.Resume(id=3))
    while not seen.events(r.Finished):
        seen.extend(source.poll())
    first, *_, last = seen.of(r.StepRecord)
    assert (last.start - first.start) - (last.clock - first.clock) > 290_000_000


def test_the_first_step_after_an_ack_obeys_it_in_a_real_child():
    with running(CONFIG, TABLE) as (client, seen):
        client.send(r.SetDelay(id=client.next_id(), seconds=0.005))  # so that the wishes find something running
        for request in requests(8, tokens=60):
            client.send(r.Submit(id=client.next_id(), request=request))
        asked: dict[int, tuple[str, int]] = {}
        wishes = [("max_batch", 2), ("token_budget", 8), ("draft_length", 1), ("kv_blocks", 20), ("max_batch", 4)]
        for key, value in wishes:
            already = len(seen) + 5
            until(client, seen, lambda s, n=already: len(s) > n or len(s.events(r.Finished)) == 8)
            asked[client.next_id()] = key, value
            client.send(r.Change(id=max(asked), changes={key: value}))
            until(client, seen, lambda s: len([a for a in s.of(r.Ack) if a.id in asked]) == len(asked))
        until(client, seen, lambda s: len(s.events(r.Finished)) == 8)
        records = {record.step: record for record in seen.of(r.StepRecord)}
        acks = [ack for ack in seen.of(r.Ack) if ack.id in asked]
        assert any(ack.ok for ack in acks)
        for ack in acks:
            key, value = asked[ack.id]
            if ack.ok and ack.step in records:
                record = records[ack.step]
                assert getattr(record.settings, key) == value
                rows = r.unpack(record.rows, r.ROW)
                assert len(rows) <= record.settings.max_batch
                assert rows["scheduled"].sum() <= record.settings.token_budget
                assert rows["drafted"].max(initial=0) <= record.settings.draft_length
                assert record.used + record.cached + record.free == record.settings.kv_blocks
        assert seen.tokens() == {
            request.number: tokens for request, tokens in zip(requests(8, 60), _alone(8, 60), strict=True)
        }


def _alone(count: int, tokens: int) -> list[list[int]]:
    """Each request's output when it is served by itself, without drafts."""
    out = []
    for request in requests(count, tokens):
        source, seen = InProcessEngine(CONFIG), Seen()
        source.send(r.Change(id=1, changes={"draft_length": 0}))
        source.send(r.Submit(id=2, request=request))
        while not seen.events(r.Finished):
            seen.extend(source.poll())
        out.append(seen.tokens()[request.number])
    return out


def test_an_idle_child_takes_no_processor_time():
    import psutil

    with running(CONFIG, TABLE) as (client, _):
        process, taken = psutil.Process(client.pid), [float("inf")]
        while min(taken) > 0.03 and len(taken) < 10:  # it may still be tidying up from its start
            before = process.cpu_times().user
            time.sleep(1.0)
            taken.append(process.cpu_times().user - before)
        assert min(taken) <= 0.03, "in a second"


def test_crash_in_a_step_is_a_died_record_with_the_stack_in_its_detail(capfd):
    with running() as (client, seen):
        client.send(r.Submit(id=1, request=r.Request(number=1, prompt="crash")))
        died = until(client, seen, lambda s: s.of(r.Died)).of(r.Died)[0]
    assert "a fault made by hand" in died.reason and "Traceback" in died.detail
    assert capfd.readouterr() == ("", "")


def test_commands_before_a_step_are_all_obeyed_before_it():
    from engine.worker import run

    bench, inbox = Bench(), SimpleQueue()
    for number in range(3):
        inbox.put(r.Submit(id=number + 1, request=r.Request(number=number, prompt="a", max_tokens=2)))
    inbox.put(r.SetDelay(id=4, seconds=0))
    bench.engine.step = _then_stop(bench.engine.step, inbox)
    run(bench.loop, inbox)
    assert [ack.step for ack in bench.sent.of(r.Ack)][:4] == [1, 1, 1, 1]


def _then_stop(step, inbox):
    def stepping(**more):
        inbox.put(r.Stop(id=9))
        return step(**more)

    return stepping


def test_openmp_threads_spin_for_a_moment_only_unless_the_user_said_otherwise(monkeypatch):
    from engine.worker import _share_cores

    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.setenv(name, "")  # so that it is as before when the test ends
        monkeypatch.delenv(name)
    _share_cores()
    assert 0 < int(os.environ["GOMP_SPINCOUNT"]) < 100_000
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    _share_cores()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE" and "GOMP_SPINCOUNT" not in os.environ
