"""What every way to build an engine ends with: first times for its budget, and the message that it is ready."""

from __future__ import annotations

import os
from collections.abc import Callable

from engine.budget import AutoBudget, Work
from engine.config import EngineConfig
from engine.formulas import pairs_per_token
from engine.records import SCHEMA, Ready
from engine.roof import Roof
from engine.runner.base import Runner
from engine.serving import Serving


def first_times(budget: AutoBudget, runner: Runner, run: Callable[[list[int]], tuple[Work, float]]) -> None:
    """Let `budget` know what steps take before there was one. `run`: of rows of these lengths, in tokens, the work of a
    step and its ms."""
    model = runner.model
    longest = min(runner.num_blocks * runner.block_size, model.max_positions)
    pairs = pairs_per_token(model.layers, model.heads, model.head_dim, model.parameters)
    budget.cost.seed(run, pairs, longest, runner.num_blocks)


def ready_of(
    engine: Serving,
    config: EngineConfig,
    *,
    notices: list[str],
    absent: dict[str, str],
    absent_drafts: dict[str, str],
    roof: Roof | None,
) -> Ready:
    """Of an engine that has run nothing yet."""
    runner = engine.runner
    return Ready(
        v=SCHEMA,
        pid=os.getpid(),
        device=runner.device_text,
        runner=runner.name,
        config=config,
        settings=engine.settings,
        model=runner.model,
        block_size=runner.block_size,
        limits=engine.bounds,
        notices=notices,
        absent=absent,
        absent_drafts=absent_drafts,
        gpu=runner.gpu,
        roof=roof,
    )
