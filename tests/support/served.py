"""The real engine in the test's process over a real runner: prompts served greedily to their end, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.bench.combinations import ROOMY
from engine.config import LiveSettings, limits
from engine.core import Engine
from engine.records import TOKEN, Preempted, Request, Sampling, StepRecord, unpack
from engine.runner.base import Runner
from engine.sampler import Sampler
from engine.speculation.ngram import NgramProposer

CHECK_EVERY = 10  # steps; a check counts everything again


def start(runner: Runner, settings: LiveSettings) -> Engine:
    runner.resize(settings.kv_blocks)
    runner.resize_host(settings.swap_blocks)
    return Engine(
        runner,
        settings,
        Sampler(runner.model.vocabulary),
        bounds=limits(runner.model, runner.block_size, ROOMY),
        proposers={"ngram": NgramProposer.of},
    )


def serve(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    between: Callable[[int, StepRecord], None] = lambda step, record: None,
) -> tuple[list[list[int]], int]:
    """What each prompt gave, and how many were preempted. `between` is called after each step."""
    for number, prompt in enumerate(prompts):
        request = Request(number=number, max_tokens=new_tokens, ignore_eos=True, sampling=Sampling(temperature=0.0))
        assert engine.submit(number, list(prompt), request) == number + 1
    outputs: list[list[int]] = [[] for _ in prompts]
    step = preempted = 0
    while engine.has_work:
        record = engine.step()
        events = list(record.events)
        for seq, token in unpack(record.emitted, TOKEN)[["seq", "token"]].tolist():
            outputs[seq - 1].append(token)
        between(step, record)
        changed = engine.between()
        if changed:
            events += changed.events
        preempted += sum(isinstance(event, Preempted) for event in events)
        step += 1
        if step % CHECK_EVERY == 0:
            engine.check()
    engine.check()
    return outputs, preempted
