"""The client's twin without a process: the same loop, records and commands, driven step by step by `poll`.

`build` is what the worker takes; `table_build` gives the real core over a model that is a table, so that tests of
pauses, settings and records run in milliseconds and know what must come out. `table_main` is the same for a child.
"""

from __future__ import annotations

import itertools
import os
from collections import deque

import msgspec

from engine import records as r
from engine.build import fit
from engine.client import State
from engine.config import Dtype, EngineConfig, LiveSettings
from engine.core import Engine, RequestRefused
from engine.loop import Loop
from engine.runner.base import OutOfDeviceMemory
from engine.sampler import Sampler
from engine.speculation.ngram import NgramProposer
from engine.worker import Builder, Built, Progress, explain, serve
from tests.support.fake_runner import FakeRunner, TableModel
from tests.support.fake_texts import LetterTexts

VOCABULARY = 8


class InProcessEngine:
    """Implements `ui.contracts.Source`. Each `poll` runs at most `steps_per_poll` steps before it returns."""

    provenance = "measured"
    silence = 0.0
    fixed = ""
    title = "engine in this process"

    def __init__(self, config: EngineConfig, build: Builder | None = None, steps_per_poll: int = 1):
        self.config = config
        self.steps_per_poll = steps_per_poll
        self.state: State = "starting"
        self.pid = os.getpid()
        self.ready: r.Ready | None = None
        self._build = build or table_build
        self._ids = itertools.count(1)
        self._begin()

    @property
    def engine(self) -> Engine:
        return self._loop.engine

    @property
    def settings(self) -> LiveSettings:
        return self.engine.settings

    def next_id(self) -> int:
        return next(self._ids)

    def send(self, command: r.Command) -> None:
        self._commands.append(r.decode_command(r.encode(command)))

    def poll(self, limit: int = 0) -> list[r.Message]:
        self._advance()
        count = min(limit, len(self._sent)) if limit else len(self._sent)
        return [r.decode(self._sent.popleft()) for _ in range(count)]

    def wait(self, timeout: float | None = None) -> bool:
        return True

    def restart(self) -> None:
        self._begin()

    @property
    def form(self) -> Dtype:
        return self.config.dtype

    def rebuild(self, form: Dtype) -> None:
        self.config = msgspec.structs.replace(self.config, dtype=form)
        self._begin()

    def close(self) -> None:
        if self.state == "ready":
            self.state = "ended"
            self._send(r.Ended())

    def join(self, timeout: float | None = None) -> bool:
        return True

    def _begin(self) -> None:
        self._sent: deque[bytes] = deque()
        self._commands: deque[r.Command] = deque()
        built = self._build(self.config, lambda stage, done, total: None)
        self.ready, self.state = built.ready, "ready"
        self._send(built.ready)
        self._loop = Loop(
            built.engine,
            built.encode_request,
            self._send,
            refusals=built.refusals,
            out_of_memory=built.out_of_memory,
            paused=self.config.start_paused,
        )
        self._loop.begin()

    def _advance(self) -> None:
        if self.state != "ready":
            return
        try:
            while self._commands:
                self._loop.handle(self._commands.popleft())
            for _ in range(self.steps_per_poll):
                self._loop.turn()
            self._loop.settle()
        except Exception as error:
            self._send(r.Died(reason=explain(error)))
            self.state = "dead"
        if self._loop.stopped:
            self.close()

    def _send(self, message: r.Message) -> None:
        self._sent.append(r.encode(message))


def encode_request(request: r.Request) -> list[int]:
    if request.token_ids is not None:
        return list(request.token_ids)
    return [byte % VOCABULARY for byte in request.prompt.encode()]


def table_build(config: EngineConfig, progress: Progress) -> Built:
    """The real core, scheduler, pool and sampler over `FakeRunner`."""
    progress("drawing a table", 1, 1)
    model = TableModel(VOCABULARY, config.seed, sharpness=3.0)
    runner = FakeRunner(config.settings.kv_blocks, config.block_size, model)
    bounds = runner.bounds()
    settings, notices = fit(config.settings, bounds, config.block_size)
    runner.resize_host(settings.swap_blocks)
    engine = Engine(
        runner, settings, Sampler(VOCABULARY), bounds=bounds, proposers={"ngram": NgramProposer.of},
        texts=LetterTexts(), seed=config.seed,
    )  # fmt: skip
    ready = r.Ready(
        v=r.SCHEMA,
        pid=os.getpid(),
        device=runner.device_text,
        runner=runner.name,
        config=config,
        settings=settings,
        model=runner.model,
        block_size=config.block_size,
        limits=bounds,
        notices=notices,
        absent_drafts={"head": "a table has no hidden states"},
    )
    return Built(engine, encode_request, ready, (RequestRefused,), (OutOfDeviceMemory,))


def table_main(commands, records, config: bytes) -> None:
    serve(commands, records, config, table_build)
