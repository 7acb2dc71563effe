"""An engine without a model, for tests of what is around an engine: processes, pipes, pauses, faults.

Each step emits one token per running request: token = position. A request's prompt may name a fault to show at
its first step: "crash", "memory", "segfault", "sleep 5" (a long step), or "big 100000" (bytes of each record).
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial

from engine import records as r
from engine.config import EngineConfig, LiveSettings, Model, SettingRefused, change
from engine.worker import Built, Progress, serve

MODEL = Model(
    name="none", architecture="none", layers=1, heads=1, kv_heads=1, head_dim=1, hidden=1, vocabulary=8,
    max_positions=4096, parameters=0, weight_bytes=0, dtype="float32", kv_bytes_per_token=2,
)  # fmt: skip


class RequestRefused(Exception):
    pass


class OutOfDeviceMemory(Exception):
    pass


class FakeEngine:
    def __init__(self, settings: LiveSettings, step_seconds: float = 0.001):
        self.settings = settings
        self.last_step = 0
        self.held = 0
        self.running: dict[int, r.Request] = {}
        self.left: dict[int, int] = {}
        self.events: list[r.Event] = []
        self.seqs = 0
        self.big = 0
        self.step_seconds = step_seconds
        self.memory_fails = 0  # steps that will run out of memory

    @property
    def has_work(self) -> bool:
        return bool(self.running)

    @property
    def budget(self) -> r.StepBudget:
        return r.StepBudget(tokens=self.settings.token_budget)

    @property
    def clock(self) -> int:
        return time.monotonic_ns() - self.held

    def submit(self, number: int, token_ids: list[int], request: r.Request) -> int:
        if not token_ids:
            raise RequestRefused("the prompt is empty; type something")
        self.seqs += 1
        self.running[self.seqs], self.left[self.seqs] = request, request.max_tokens
        self.events.append(
            r.Submitted(
                seq=self.seqs, number=number, prompt_tokens=len(token_ids), max_tokens=request.max_tokens,
                priority=0, arrival=self.clock, prompt=request.prompt, label=request.label,
            )
        )  # fmt: skip
        return self.seqs

    def abort(self, number: int | None) -> None:
        for seq, request in list(self.running.items()):
            if number in (None, request.number):
                del self.running[seq]
                self.events.append(r.Aborted(seq=seq, number=request.number))

    def change(self, changes: dict) -> LiveSettings:
        changed = change(self.settings, changes)
        if changed.max_batch < 1:
            raise SettingRefused("max_batch", "max_batch must be at least 1")
        self.settings = changed
        return changed

    def hold(self, ns: int) -> None:
        assert ns >= 0
        self.held += ns

    def watch(self, seq: int | None, k: int) -> None:
        self.watched = seq

    def drain(self) -> None:
        return None

    def step(self, alone: bool = False) -> r.StepRecord:
        for request in self.running.values():
            self._fault(request.prompt)
        start, clock = time.monotonic_ns(), self.clock
        time.sleep(self.step_seconds)
        self.last_step += 1
        tokens, text = [], []
        for seq, request in list(self.running.items()):
            position = request.max_tokens - self.left[seq]
            tokens.append((seq, position, position, r.SAMPLED))
            text.append(f"{position} ")
            self.left[seq] -= 1
            if not self.left[seq]:
                del self.running[seq]
                self.events.append(
                    r.Finished(seq=seq, number=request.number, reason="length", output_tokens=position + 1)
                )
        events, self.events = self.events, []
        return r.StepRecord(
            v=r.SCHEMA, step=self.last_step, start=start, clock=clock, end_clock=self.clock, timing=r.Timing(),
            rows=b"", blocks=bytes(self.big), tables=b"", events=events, bound="no_work",
            running=len(self.running), waiting=0, used=0, cached=0, free=0, emitted=r.pack(tokens, r.TOKEN),
            text=text, drafts=b"", draft_text=[], settings=self.settings, budget=self.budget,
        )  # fmt: skip

    def between(self) -> r.Between | None:
        if not self.events:
            return None
        events, self.events = self.events, []
        return r.Between(
            v=r.SCHEMA, after=self.last_step, clock=self.clock, blocks=b"", tables=b"", events=events,
            running=len(self.running), waiting=0, used=0, cached=0, free=0, settings=self.settings, budget=self.budget,
        )  # fmt: skip

    def keyframe(self) -> r.Keyframe:
        return r.Keyframe(
            v=r.SCHEMA, step=self.last_step, clock=self.clock, block_size=16, settings=self.settings,
            budget=self.budget, state=b"", refcount=b"", filled=b"", owner=b"", table_seqs=b"", table_lengths=b"",
            table_blocks=b"", sequences=[], running=list(self.running), waiting=[],
        )  # fmt: skip

    def _fault(self, prompt: str) -> None:
        kind, _, value = prompt.partition(" ")
        if kind == "crash":
            raise RuntimeError("a fault made by hand")
        if kind == "memory":
            raise MemoryError
        if kind == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if kind == "sleep":
            time.sleep(float(value))
        if kind == "big":
            self.big = int(value)
        if self.memory_fails:
            self.memory_fails -= 1
            raise OutOfDeviceMemory("no memory for the step")


def encode_request(request: r.Request) -> list[int]:
    return list(request.prompt.encode())


def build(config: EngineConfig, progress: Progress, load_seconds: float = 0.0) -> Built:
    for done in range(10):
        progress("reading nothing", done + 1, 10)
        time.sleep(load_seconds / 10)
    return Built(
        engine=FakeEngine(config.settings),
        encode_request=encode_request,
        ready=r.Ready(
            v=r.SCHEMA, pid=os.getpid(), device="none", runner="none", config=config, settings=config.settings,
            model=MODEL, block_size=config.block_size, limits={},
        ),
        refusals=(RequestRefused,),
        out_of_memory=(OutOfDeviceMemory,),
    )  # fmt: skip


def main(commands, records, config: bytes) -> None:
    serve(commands, records, config, build)


def slow_load(commands, records, config: bytes) -> None:
    serve(commands, records, config, partial(build, load_seconds=60.0))


def stuck_load(commands, records, config: bytes) -> None:
    """Doesn't come back from loading, as a long native call that holds on to the interpreter wouldn't."""

    def hang(config: EngineConfig, progress: Progress) -> Built:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        import ctypes

        progress("hanging", 0, 0)
        time.sleep(0.2)
        ctypes.PyDLL(None).sleep(60)  # PyDLL keeps the interpreter lock
        raise AssertionError

    serve(commands, records, config, hang)


def out_of_memory_load(commands, records, config: bytes) -> None:
    def fail(config: EngineConfig, progress: Progress) -> Built:
        raise MemoryError

    serve(commands, records, config, fail)


def exits(commands, records, config: bytes) -> None:
    print("last words")
    os._exit(7)
