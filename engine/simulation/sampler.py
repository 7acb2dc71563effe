"""Chooses in the place of logits: filler tokens, ends after a drawn length, drafts accepted at drawn rates.

All of it is seeded: it depends on a request's seed and on positions, so that a run can be run again and a preempted
request goes on as it would have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from statistics import NormalDist

import numpy as np
import torch

from engine.config import Simulation
from engine.random_numbers import ACCEPT, seeds_array, uniform
from engine.sampler import Decision, Outcome, Sampler, SampleRow, outcome
from engine.simulation.words import END, another, filler
from engine.speculation.accept import ExactRule, leading

# Beside the lanes of engine.random_numbers.
LENGTH, SKILL, MATCH = 16, 17, 18
# Output lengths are log-normal, as those of chat logs about are: 0.8 puts nine in ten within 0.27 and 3.7 times the
# median.
SPREAD = 0.8
# How far a sequence's own acceptance lies from the method's, at most: texts differ in how easily they are guessed.
SKILLS = 0.15


@dataclass(slots=True)
class SimulatedRow(SampleRow):
    """`ends`: the position at which the request would end by itself."""

    ends: int = 1 << 62

    @classmethod
    def of(cls, row: SampleRow, prompt_tokens: int, simulation: Simulation) -> SimulatedRow:
        own = {field.name: getattr(row, field.name) for field in fields(SampleRow)}
        return cls(**own, ends=prompt_tokens + output_length(row.seed, simulation.output_tokens))


def output_length(seed: int, mean: int) -> int:
    """Tokens, the one that ends it included: log-normal with that mean."""
    draw = float(uniform(seeds_array([seed]), np.zeros(1, np.int64), LENGTH)[0])
    normal = NormalDist().inv_cdf(min(max(draw, 1e-9), 1 - 1e-9))
    return max(1, round(mean * math.exp(SPREAD * normal - SPREAD**2 / 2)))


class SimulatedSampler(Sampler):
    """`acceptance`: mean probability that an examined draft is accepted; whoever drafts sets it."""

    def __init__(self, vocabulary: int):
        super().__init__(vocabulary)
        self.acceptance = 0.0

    def sample(self, logits: torch.Tensor, rows: list[SampleRow], rule: ExactRule | None = None) -> list[Outcome]:
        if not rows:
            return []
        lengths = np.array([len(row.drafts) for row in rows])
        gamma = int(lengths.max())
        seeds = seeds_array([row.seed for row in rows])[:, None]  # (rows, 1)
        positions = np.array([row.position for row in rows])[:, None] + np.arange(gamma + 1)  # (rows, γ + 1)
        words = filler(seeds, positions)
        skill = uniform(seeds, np.zeros((1, 1), np.int64), SKILL)  # (rows, 1)
        p = np.clip(self.acceptance + SKILLS * (2 * skill - 1), 0, 1) * np.ones((1, gamma))
        draws = uniform(seeds, positions[:, :gamma], ACCEPT)
        passed = draws < p if rule is None else rule.accepts(p, np.ones_like(p), draws)
        accepted = leading(passed & (np.arange(gamma) < lengths[:, None]))
        # a request ends where it ends: no draft knows that
        ends = np.array([row.ends if isinstance(row, SimulatedRow) else -1 for row in rows])
        ending = (ends >= positions[:, 0]) & (ends <= positions[:, 0] + accepted)
        accepted = np.where(ending, ends - positions[:, 0], accepted)
        outcomes = []
        for i, row in enumerate(rows):
            stop, n = int(accepted[i]), len(row.drafts)
            last = END if ending[i] else int(words[i, stop])
            if stop < n and last == row.drafts[stop]:
                last = another(last)
            decision = Decision(
                accepted=stop,
                last=last,
                last_p=1.0,
                last_q=0.0,
                last_draw=math.nan,
                p=p[i, :n].tolist(),
                q=[1.0] * n,
                draws=draws[i, :n].tolist(),
            )
            outcomes.append(outcome(row, decision))
        return outcomes
