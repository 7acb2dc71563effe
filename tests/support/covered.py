"""The engine on the default model under one combination of settings, in a process of its own.

Two of them with a thread each finish in little more than half the time of one with two: a matrix of this model's size
leaves a second thread mostly waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context

import torch

from app.bench.combinations import Combination
from app.bench.oracle import NEW_TOKENS
from engine.model.store import resolve
from engine.model.weights import load
from engine.records import StepRecord
from engine.runner.cpu import CpuRunner
from tests.support.oracle import prompts
from tests.support.served import serve, start

PROCESSES = 2  # what the smallest machine has cores for

Covered = tuple[list[list[int]], int]  # what each prompt gave, and how many were preempted


@cache
def _runners() -> dict[int, CpuRunner]:
    """One runner a block size, on the same weights in float32."""
    files, device = resolve("default"), torch.device("cpu")
    config, weights = load(files, torch.float32, device)
    return {size: CpuRunner(config, weights, files.name, torch.float32, device, size, 4) for size in (16, 32)}


def cover(combination: Combination) -> Covered:
    """Invariants are checked as it goes."""
    torch.set_num_threads(1)
    engine = start(_runners()[combination.block_size], combination.settings())

    def squeeze(step: int, record: StepRecord) -> None:
        changes = combination.change_at(step)
        if changes:
            engine.change(changes)

    return serve(engine, prompts(), NEW_TOKENS, squeeze)


@contextmanager
def under_way(combinations: list[Combination]) -> Iterator[dict[Combination, Future[Covered]]]:
    """All of them begun, those of one sequence at a time first: they take longest."""
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        yield {each: pool.submit(cover, each) for each in sorted(combinations, key=lambda each: each.batch)}
        pool.shutdown(wait=True, cancel_futures=True)
