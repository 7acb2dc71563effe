"""One job as a process of its own: `python -m engine.MODULE JOB`, JSON in and out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec

from engine.model.problem import ModelProblem


def answer(run: Callable[[Any], Any], job: type[msgspec.Struct]) -> None:
    """Print what `run` makes of the job that this process was started with, or the problem with its model."""
    try:
        found = run(msgspec.json.decode(sys.argv[1], type=job))
    except ModelProblem as problem:
        found = {"problem": str(problem)}
    print(msgspec.json.encode(found).decode())
