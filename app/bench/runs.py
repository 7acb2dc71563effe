"""What benches share: medians with a spread, and runs of ourselves in fresh processes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from statistics import median


class BenchFailed(RuntimeError):
    """What was to be measured ended, or didn't come to pass; the message says why. No fault of the bench's own."""


def fresh_process(module: str, *arguments: str, timeout: float, without: tuple[str, ...] = ()) -> dict:
    """Run `python -m module arguments`, `without` those variables of our environment, and read the one JSON object it
    prints last. It ends with us, however we end. Raises BenchFailed."""
    environment = {name: value for name, value in os.environ.items() if name not in without}
    done = subprocess.run(
        [sys.executable, "-m", "app.bench.tied", str(os.getpid()), module, *arguments],
        capture_output=True, text=True, timeout=timeout, check=False, env=environment,
    )  # fmt: skip
    if done.returncode or not done.stdout.strip():
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise BenchFailed(f"{module} ended with {done.returncode}: {last}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def interval(values: list[float], draws: int = 2000, seed: int = 0) -> tuple[float, float]:
    """Bootstrap 95 % interval of the median."""
    rng = random.Random(seed)
    medians = sorted(median(rng.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws) - 1]


def summary(values: list[float]) -> dict[str, float]:
    """Median and spread, rounded for reading."""
    return {"median": round(median(values), 3), "min": round(min(values), 3), "max": round(max(values), 3)}
