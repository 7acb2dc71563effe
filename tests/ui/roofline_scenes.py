"""A real scheduler over a cost model's time, served into a mirror, and what its passes really were."""

from __future__ import annotations

import numpy as np

from engine import records as r
from engine.config import EngineConfig, LiveSettings, Simulation
from engine.cost_model import attended
from engine.simulation.build import build
from tests.support.inprocess import InProcessEngine
from tests.support.synthetic import NoProbe, NoWorkload
from ui.context import ViewContext
from ui.cursor import Cursor
from ui.mirror import Mirror
from ui.selection import Selection
from ui.theme import Name, Theme


class Served:
    """Attributes:
        passes: of each step, as the runner had it: tokens, tokens of context read, query-key pairs, rows of logits.
    """

    def __init__(self, requests: int = 12, steps: int = 500, **settings):
        first = {"max_batch": 6, "kv_blocks": 400, "max_context": 2048, "token_budget": 128, "draft_method": "suffix",
                 "draft_length": 4, "draft_policy": "fixed"}  # fmt: skip
        config = EngineConfig(
            simulation=Simulation(profile="h200:llama-3-8b", paced=False, output_tokens=40),
            settings=LiveSettings(**(first | settings)),
        )
        self.source, self.mirror = InProcessEngine(config, build), Mirror()
        self.source.provenance = "simulated"
        self.passes: list[tuple[int, int, int, int]] = []
        self._watch(self.source.engine.runner)
        for number in range(requests):
            prompt = f"Request {number}: " + "tell me about the sea. " * (1 + 23 * (number % 3))
            request = r.Request(number=number + 1, prompt=prompt, max_tokens=200)
            self.source.send(r.Submit(id=self.source.next_id(), request=request))
        for _ in range(steps):
            self.mirror.apply_all(self.source.poll())

    def context(self, theme: Name = "dark") -> ViewContext:
        return ViewContext(
            self.mirror, Cursor(self.mirror), Selection(), Theme(theme), self.source, NoWorkload(), NoProbe()
        )

    def _watch(self, runner) -> None:
        execute = runner.execute

        def watched(batch):
            lengths = np.diff(batch.row_starts)
            reads, pairs = attended(lengths, batch.contexts)
            self.passes.append((int(lengths.sum()), int(reads), int(pairs), len(batch.logit_index)))
            return execute(batch)

        runner.execute = watched
