"""Where the time of a decode step goes, and how near it comes to the machine's ceiling: `bench step`'s half here.

Runs as a process of its own (`python -m engine.step_times JOB`), JSON in and out, because the program itself sees no
runner. The engine is the whole one, asked for one step after the other; its records are encoded as for a window.

Parts of a step: schedule (with proposing drafts: there are none); prepare, laying the batch out in arrays; forward, the
model; sample; record, which is commit, text and encoding. A roofline (Williams et al. 2009): a forward pass takes no
less than reading its bytes takes, and no less than its products take. Bytes are the weights, once, and the keys and
values of all contexts; products those with weights. Both ceilings are measured here, on as many threads; the rate of
reading over as many bytes as a step reads, since a last cache of hundreds of megabytes may hold them from step to step.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import msgspec
import numpy as np
import torch

from engine import records
from engine.build import build
from engine.config import EngineConfig
from engine.core import Engine
from engine.cpu.speed import read_bandwidth
from engine.device_roof import products_per_s, products_per_token
from engine.job import answer
from engine.model.cache import no_progress
from engine.records import ROW, TOKEN, Request, Sampling, StepRecord, unpack
from engine.runner.pooled import PooledRunner

SETTLING = 4  # decode steps before those that count
SEED = 7

Parts = dict[str, float]  # seconds


class Job(msgspec.Struct, frozen=True):
    config: EngineConfig
    streams: list[int]
    prompt_tokens: int
    steps: int  # that count, of each number of streams


def run(job: Job) -> dict[str, Any]:
    """Raises ModelProblem or SettingRefused."""
    engine = build(job.config, no_progress).engine
    assert isinstance(engine, Engine) and isinstance(engine.runner, PooledRunner)
    runner = engine.runner
    threads = job.config.threads or torch.get_num_threads()
    peak = products_per_s(runner, threads)
    return {
        "model": runner.model.name,
        "dtype": runner.model.dtype,
        "device": runner.device_text,
        "block_size": runner.block_size,
        "prompt_tokens": job.prompt_tokens,
        "steps": job.steps,
        "memory_bytes_per_s": read_bandwidth(threads),
        "products_per_s": peak,
        "batches": [_batch(engine, count, job, threads, peak) for count in job.streams],
    }


def _batch(engine: Engine, streams: int, job: Job, threads: int, peak: float) -> dict[str, Any]:
    _start(engine, streams, job)
    for _ in range(SETTLING):
        engine.step()
    parts: list[Parts] = []
    ops: list[Parts] = []
    contexts: list[int] = []
    for _ in range(job.steps):
        contexts.append(sum(len(sequence.tokens) for sequence in engine.scheduler.running))
        part, op = _timed(engine)
        parts.append(part)
        ops.append(op)
    engine.abort()
    runner = engine.runner
    moved = runner.step_bytes + sum(contexts) / len(contexts) * runner.model.kv_bytes_per_token
    products = streams * products_per_token(runner.config)
    rate = read_bandwidth(threads, int(moved))
    forward, ceiling = _median(parts)["forward"], max(moved / rate, products / peak)
    return {
        "streams": streams,
        "context": sum(contexts) / len(contexts) / streams,
        "step_ms": 1e3 * median(sum(part.values()) for part in parts),
        "parts_ms": {name: 1e3 * value for name, value in _median(parts).items()},
        "forward_ms": {name: 1e3 * value for name, value in _median(ops).items()},
        "bytes": moved,
        "bytes_per_s": rate,
        "products": products,
        "ceiling_ms": 1e3 * ceiling,
        "bound": "bytes" if moved / rate >= products / peak else "products",
        "fraction": ceiling / forward,
    }


def _start(engine: Engine, streams: int, job: Job) -> None:
    """Prompts of random tokens, computed until every stream decodes. Low ids may be special tokens."""
    vocabulary = engine.runner.model.vocabulary
    low = 256 if vocabulary > 1024 else 0
    ids = np.random.default_rng(SEED).integers(low, vocabulary, (streams, job.prompt_tokens))
    for number, row in enumerate(ids.tolist()):
        request = Request(
            number=number,
            max_tokens=SETTLING + job.steps + 2 * streams,
            ignore_eos=True,
            sampling=Sampling(temperature=0.0),
        )
        engine.submit(number, row, request)
    while not _all_decode(engine.step(), streams):
        pass


def _all_decode(record: StepRecord, streams: int) -> bool:
    return len(unpack(record.emitted, TOKEN)) == streams and (unpack(record.rows, ROW)["scheduled"] == 1).all()


def _timed(engine: Engine) -> tuple[Parts, Parts]:
    """The parts of one step, and the ops of its forward."""
    before = engine.runner.op_seconds()
    record = engine.step()
    ops = {name: seconds - before[name] for name, seconds in engine.runner.op_seconds().items()}
    stepped = time.perf_counter()
    records.encode(record)
    encoded = time.perf_counter() - stepped
    timing, forward = record.timing, sum(ops.values())
    return {
        "schedule": (timing.draft + timing.schedule) / 1e9,
        "prepare": timing.forward / 1e9 - forward,
        "forward": forward,
        "sample": timing.sample / 1e9,
        "record": timing.commit / 1e9 + encoded,
    }, ops


def _median(rows: list[Parts]) -> Parts:
    return {name: median(row[name] for row in rows) for name in rows[0]}


if __name__ == "__main__":
    answer(run, Job)
