"""The child process: started, spoken to, ended, killed. With an engine that has no model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from engine import records as r
from engine.client import EngineClient
from engine.config import EngineConfig, LiveSettings
from tests.support.clients import FAKE, Seen, running, until
from tests.support.lanes import Lanes

ROOT = Path(__file__).resolve().parents[2]
posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def submit(client: EngineClient, prompt: str = "hello", number: int = 1, tokens: int = 5) -> int:
    number_id = client.next_id()
    client.send(r.Submit(id=number_id, request=r.Request(number=number, prompt=prompt, max_tokens=tokens)))
    return number_id


def gone(pid: int, within: float = 2.0) -> bool:
    end = time.monotonic() + within
    while time.monotonic() < end:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_a_request_from_start_to_end():
    with running() as (client, seen):
        assert client.state == "ready" and client.pid == client.ready.pid != os.getpid()
        assert [type(m) for m in seen][-1] in (r.Ready, r.Keyframe, r.Status)
        command = submit(client)
        until(client, seen, lambda s: s.events(r.Finished))
        assert seen.tokens() == {1: [0, 1, 2, 3, 4]}
        assert [ack.id for ack in seen.of(r.Ack)] == [command]
        assert seen.of(r.Loading)[-1].done == 10


@posix
def test_poll_never_waits_and_keeps_to_its_limit():
    with running() as (client, seen):
        until(client, seen, lambda s: s.of(r.Status))
        os.kill(client.pid, signal.SIGSTOP)
        assert client.poll() == [], "there will be nothing, and it doesn't wait for it"
        os.kill(client.pid, signal.SIGCONT)
        submit(client, tokens=20)
        while len(client._child.backlog) < 5:
            time.sleep(0.01)
        first = client.poll(limit=3)
        assert len(first) == 3
        seen.extend(first)
        until(client, seen, lambda s: s.events(r.Finished))
        assert [record.step for record in seen.of(r.StepRecord)] == list(range(1, 21))


def test_commands_sent_while_loading_are_obeyed():
    client = EngineClient(EngineConfig(), FAKE)
    submit(client)
    until(client, Seen(), lambda s: s.events(r.Finished))
    client.close()
    assert client.join(10)


def test_text_that_is_no_unicode_is_refused_here():
    with running() as (client, seen):
        command = submit(client, prompt="a\ud800b", number=9)
        until(client, seen, lambda s: s.of(r.Refused))
        assert seen.of(r.Refused)[0].number == 9 and "Unicode" in seen.of(r.Refused)[0].message
        assert not next(a for a in seen.of(r.Ack) if a.id == command).ok


@posix
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT])
def test_a_killed_child_is_a_died_record_within_two_seconds(sent):
    with running() as (client, seen):
        submit(client, prompt="sleep 0.05", tokens=10_000)
        until(client, seen, lambda s: s.of(r.StepRecord))
        os.kill(client.pid, sent)
        started = time.monotonic()
        until(client, seen, lambda s: s.of(r.Died))
        assert time.monotonic() - started < 2 and client.state == "dead"
        reason = seen.of(r.Died)[0].reason
        assert sent.name in reason and "Restart" in reason
        assert isinstance(seen[-1], r.Died)


@posix
def test_restart_after_a_kill_keeps_the_settings_in_force():
    with running() as (client, seen):
        client.send(r.Change(id=client.next_id(), changes={"max_batch": 3}))
        until(client, seen, lambda s: s.of(r.Ack))
        first = client.pid
        os.kill(client.pid, signal.SIGKILL)
        until(client, seen, lambda s: s.of(r.Died))
        client.send(r.Pause(id=client.next_id()))  # lost: the Died record has said why
        client.restart()
        assert client.state == "starting"
        again = until(client, Seen(), lambda s: client.state == "ready")
        assert client.pid != first and again.of(r.Ready)[0].settings.max_batch == 3
        submit(client)
        assert until(client, again, lambda s: s.events(r.Finished)).tokens() == {1: [0, 1, 2, 3, 4]}
        assert not again.of(r.Died)


# --- other weights ---


def rebuilt(client: EngineClient, form: str = "int8") -> Seen:
    """Messages of the next life, up to its readiness."""
    client.rebuild(form)
    assert client.state == "starting" and client.form == form
    return until(client, Seen(), lambda s: client.state == "ready")


def test_other_weights_start_over_what_has_not_ended():
    with running() as (client, seen):
        client.send(r.Change(id=client.next_id(), changes={"max_batch": 3}))
        submit(client, number=1, tokens=2)
        submit(client, number=2, tokens=100_000)
        submit(client, number=3, tokens=100_000)
        client.send(r.Abort(id=client.next_id(), number=3))
        until(client, seen, lambda s: s.events(r.Finished) and s.events(r.Aborted) and len(s.tokens()[2]) > 3)
        client._open[2] = r.Submit(id=client._open[2].id, request=r.Request(number=2, prompt="hello", max_tokens=4))
        first, again = client.pid, rebuilt(client)
        assert client.pid != first
        assert again.of(r.Ready)[0].config.dtype == "int8" and again.of(r.Ready)[0].settings.max_batch == 3
        until(client, again, lambda s: s.events(r.Finished))
        assert again.tokens() == {2: [0, 1, 2, 3]} and not client._open


def test_a_request_is_open_until_the_last_of_its_sequences_has_ended():
    lanes = Lanes(3, beams=False)
    with running() as (client, _):
        client._open[lanes.number] = r.Submit(id=1, request=r.Request(number=lanes.number, n=3))
        tokens = dict.fromkeys(range(3), (1, "a"))
        ends = [r.Finished(seq=lanes.first + i, number=lanes.number, reason="stop", output_tokens=1) for i in range(3)]
        client._follow(lanes.record(tokens, 0, [*lanes.submitted(), ends[0]]))
        client._follow(lanes.record(tokens, 1, ends[1:2]))
        assert lanes.number in client._open
        client._follow(lanes.record(tokens, 2, ends[2:]))
        assert not client._open


def test_other_weights_leave_a_pause_paused():
    with running() as (client, seen):
        client.send(r.Pause(id=client.next_id()))
        client.send(r.SetDelay(id=client.next_id(), seconds=0.25))
        until(client, seen, lambda s: [m for m in s.of(r.Status) if m.paused and m.delay])
        again = rebuilt(client)
        until(client, again, lambda s: [m for m in s.of(r.Status) if m.paused and m.delay == 0.25])
        assert not again.of(r.Ack), "nobody asked for what the client does itself"


def test_what_the_engine_died_of_is_not_asked_again():
    with running() as (client, seen):
        submit(client, prompt="crash")
        until(client, seen, lambda s: s.of(r.Died))
        rebuilt(client)
        assert not client._open


def test_weights_that_cannot_be_loaded_lose_no_request():
    with running() as (client, seen):
        submit(client, tokens=100_000)
        until(client, seen, lambda s: s.events(r.Submitted))
        client._target = "tests.support.fake_engine:out_of_memory_load"
        client.rebuild("float32")
        until(client, Seen(), lambda s: s.of(r.Died))
        client._target = FAKE
        until(client, rebuilt(client), lambda s: s.events(r.Submitted))


def test_refused_and_lost_requests_are_not_kept():
    with running() as (client, seen):
        submit(client, prompt="", number=4)
        until(client, seen, lambda s: s.of(r.Refused))
        assert not client._open
        submit(client, tokens=100_000, number=5)
        until(client, seen, lambda s: s.events(r.Submitted))
        client._follow(msgspec.structs.replace(seen.of(r.Keyframe)[-1], sequences=[]))  # after a gap: it has ended
        assert not client._open


def test_native_output_and_stack_are_the_detail_of_a_crash():
    with running() as (client, seen):
        submit(client, prompt="segfault")
        died = until(client, seen, lambda s: s.of(r.Died)).of(r.Died)[0]
        assert "SIGSEGV" in died.reason and "fake_engine" in died.detail


def test_an_exit_code_without_a_word():
    with running(target="tests.support.fake_engine:exits") as (client, seen):
        died = seen.of(r.Died)[0]
        assert client.state == "dead" and "exit code 7" in died.reason


@pytest.mark.parametrize("target", ["engine.no_such_worker:main", "tests.support.fake_engine:no_such"])
def test_a_worker_that_cannot_be_loaded(target):
    with running(target=target) as (client, seen):
        assert client.state == "dead" and seen.of(r.Died)[0].detail.startswith("Traceback")


def test_memory_running_out_while_loading():
    with running(target="tests.support.fake_engine:out_of_memory_load") as (_, seen):
        assert "Memory ran out" in seen.of(r.Died)[0].reason


def test_stop_ends_in_good_order():
    with running() as (client, seen):
        submit(client, prompt="sleep 0.01", tokens=100_000)
        until(client, seen, lambda s: s.of(r.StepRecord))
        client.send(r.Stop(id=client.next_id()))
        until(client, seen, lambda s: s.of(r.Ended))
        assert client.state == "ended" and seen.events(r.Aborted) and isinstance(seen[-1], r.Ended)
        client.join(5)
        submit(client)
        assert isinstance(client.poll()[0], r.Died) and client.state == "dead"


@pytest.mark.parametrize("target", ["slow_load", pytest.param("stuck_load", marks=posix)])
def test_closing_in_the_middle_of_loading(target):
    client = EngineClient(EngineConfig(), f"tests.support.fake_engine:{target}")
    until(client, Seen(), lambda s: s.of(r.Loading))
    pid = client.pid
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < 1, "the stuck child takes longer"
    assert client.join(6) and not psutil.pid_exists(pid)  # not even a zombie


def test_closing_before_the_child_is_there():
    client = EngineClient(EngineConfig(), FAKE)
    client.close()
    client.close()
    assert client.join(10) and not psutil.pid_exists(client.pid)


def test_a_window_that_does_not_poll_gets_a_gap_and_a_keyframe():
    with running() as (client, seen):
        client._child.backlog._max_count = 40
        submit(client, tokens=300)
        end = time.monotonic() + 20
        while client._child.backlog._gap is None or len(client._child.backlog) < 40:
            assert time.monotonic() < end
            time.sleep(0.01)
        time.sleep(0.2)
        assert len(client._child.backlog) <= 45
        until(client, seen, lambda s: s.of(r.Gap) and s.of(r.Keyframe)[1:])
        gap = seen.of(r.Gap)[0]
        steps = [record.step for record in seen.of(r.StepRecord)]
        assert 40 >= gap.first > 1 and steps == [*range(1, gap.first), *range(gap.last + 1, steps[-1] + 1)]
        assert not seen.of(r.Ack)[1:]  # the client's own request for a keyframe isn't seen


PARENT = textwrap.dedent("""
    import sys, time
    from engine.client import EngineClient
    from engine.config import EngineConfig
    from engine.records import Request, Submit
    if __name__ == "__main__":
        client = EngineClient(EngineConfig(), sys.argv[1])
        if sys.argv[2]:
            client.send(Submit(id=1, request=Request(number=1, prompt=sys.argv[2], max_tokens=10**6)))
        while not client.poll():
            time.sleep(0.01)
        time.sleep(float(sys.argv[3]))
        print(client.pid, flush=True)
        time.sleep(60)
""")


@posix
@pytest.mark.parametrize(
    ("target", "prompt", "sent"),
    [
        ("main", "", "SIGKILL"),
        ("main", "sleep 60", "SIGKILL"),
        ("slow_load", "", "SIGKILL"),
        # while a native call holds the interpreter's lock, only Linux ends a process from outside
        pytest.param("stuck_load", "", "SIGKILL", marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux")),
        ("main", "", "SIGINT"),
        ("main", "sleep 60", "SIGINT"),
    ],
)
def test_the_child_is_gone_two_seconds_after_its_parent(tmp_path, target, prompt, sent):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    arguments = [sys.executable, str(script), f"tests.support.fake_engine:{target}", prompt, "0.5"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as parent:
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        parent.send_signal(signal.Signals[sent])
        assert gone(pid)


@posix
def test_ctrl_c_in_the_terminal_is_the_owners_business():
    with running() as (client, seen):
        os.kill(client.pid, signal.SIGINT)
        submit(client)
        until(client, seen, lambda s: s.events(r.Finished))


def test_settings_of_the_configuration_arrive():
    config = EngineConfig(settings=LiveSettings(max_batch=5), start_paused=True)
    with running(config) as (client, seen):
        until(client, seen, lambda s: s.of(r.Status))
        assert client.ready.config == config and seen.of(r.Status)[0].paused
