"""What the pool and the scheduler cost a step: `bench kv`'s half here.

Runs as a process of its own (`python -m engine.kv_times JOB`), JSON in and out, as `engine.step_times` does. The
engine is the whole one under `engine.kv_load`. Of each step three parts are timed, each as a whole, for a clock read
for every row would be a good part of what it measures:

  schedule  the step's budget and the plan: rows, blocks for them, admission with its look-ups, drafts
  settle    what the pass came to in the pool: fills, hashes of full blocks, blocks that go back, sequences that end
  drain     the change list: touched blocks and table entries as the record has them

Not counted: drafting, the model, sampling, text, and the rest of the record. When a step counts, every block that no
sequence holds is cached already, so whoever takes one evicts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter_ns
from typing import Any

import msgspec

from engine.collector import keep_out_of_steps
from engine.core import Engine
from engine.kv_load import BLOCK_SIZE, Load, hold, make_engine, sequence
from engine.records import CACHE, EVICTED, ROW, Finished, unpack

SETTLING = 400  # steps before those that count: by then rows are of all ages
SEED = 7
TRIES = 50
PROMPT_BLOCKS = 64  # of a look-up, and of a table that is taken and let go of

PARTS = ("schedule", "settle", "drain")


class Job(msgspec.Struct, frozen=True):
    blocks: int
    gammas: list[int]
    rows: int
    steps: int  # that count, at each γ


class Stopwatch:
    """ns spent in the functions it is put around."""

    def __init__(self) -> None:
        self.ns = 0

    def around(self, function: Callable) -> Callable:
        def timed(*arguments):
            started = perf_counter_ns()
            try:
                return function(*arguments)
            finally:
                self.ns += perf_counter_ns() - started

        return timed

    def take(self) -> int:
        ns, self.ns = self.ns, 0
        return ns


def run(job: Job) -> dict[str, Any]:
    """Figures of the steps at each γ, and of single calls on a warm pool."""
    answer: dict[str, Any] = {"blocks": job.blocks, "block_size": BLOCK_SIZE, "rows": job.rows, "loads": []}
    for gamma in job.gammas:
        engine = make_engine(job.blocks, job.rows, gamma, SEED)
        load = Load(engine, job.rows, SEED)
        load.warm()
        answer["loads"].append({"gamma": gamma} | _steps(engine, load, job.steps))
        engine.abort()
    return answer | _calls(engine, load)


def _steps(engine: Engine, load: Load, count: int) -> dict[str, Any]:
    settle, drain = Stopwatch(), Stopwatch()
    scheduler, pool = engine.scheduler, engine.pool
    scheduler.settle = settle.around(scheduler.settle)  # type: ignore[method-assign]
    scheduler.end = settle.around(scheduler.end)  # type: ignore[method-assign]
    pool.drain = drain.around(pool.drain)  # type: ignore[method-assign]
    for _ in range(SETTLING):
        load.top_up()
        engine.step()
    settle.take(), drain.take()
    times: list[tuple[int, int, int]] = []
    running = drafted = evicted = ended = 0
    for _ in range(count):
        load.top_up()
        record = engine.step()
        times.append((record.timing.schedule, settle.take(), drain.take()))
        evicted += int((unpack(record.cache, CACHE)["kind"] == EVICTED).sum())
        ended += sum(isinstance(event, Finished) for event in record.events)
        running += record.running
        drafted += int(unpack(record.rows, ROW)["drafted"].sum())
    del scheduler.settle, scheduler.end, pool.drain
    return {
        "us": [sum(parts) / 1e3 for parts in times],  # of each step
        "parts_ms": {name: median(part) / 1e6 for name, part in zip(PARTS, zip(*times, strict=True), strict=True)},
        "running": running / count,
        "drafted": drafted / running,  # a row
        "evicted": evicted / count,
        "ended": ended / count,
    }


def _calls(engine: Engine, load: Load) -> dict[str, float]:
    """µs a block, medians: one taken from the free ones and let go of; and one of a prompt hashed and found."""
    pool, taken, found = engine.pool, [], []
    fitting = pool.num_blocks // PROMPT_BLOCKS - 1
    prompts = [load.tokens(PROMPT_BLOCKS * BLOCK_SIZE + 1) for _ in range(min(TRIES, fitting))]
    for prompt in prompts:
        pool.truncate(hold(engine, prompt[:-1]), 0)
    for prompt in prompts:
        asking = sequence(prompt)
        started = perf_counter_ns()
        blocks = pool.lookup(asking)
        found.append((perf_counter_ns() - started) / 1e3 / PROMPT_BLOCKS)
        assert len(blocks) == PROMPT_BLOCKS
    holder = sequence([0])
    pool.grow(holder, PROMPT_BLOCKS)  # evicts; never sealed, so they are free ones afterwards
    pool.truncate(holder, 0)
    for _ in range(TRIES):
        started = perf_counter_ns()
        pool.grow(holder, PROMPT_BLOCKS)
        pool.truncate(holder, 0)
        taken.append((perf_counter_ns() - started) / 1e3 / PROMPT_BLOCKS)
    return {"alloc_free_us": median(taken), "lookup_us_per_block": median(found)}


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=Job)
    keep_out_of_steps()  # as in the process that serves
    print(msgspec.json.encode(run(job)).decode())


if __name__ == "__main__":
    main()
