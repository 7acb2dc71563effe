"""Draft methods of a simulated engine: drafts that come at given rates, and what they cost.

Rates are assumptions, in the middle of what the methods reach on chat: see each. The tokens are those that the target
would choose; whether one is accepted is drawn (`sampler`), and that this is simulated is told by everything that shows
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.config import LiveSettings
from engine.random_numbers import seeds_array, uniform
from engine.simulation.sampler import MATCH, SimulatedSampler
from engine.simulation.words import filler
from engine.speculation.proposer import Ask, Drafts, Factory, Lookup


@dataclass(frozen=True)
class Skill:
    """`found`: share of passes for which there is a draft. `acceptance`: of an examined token."""

    found: float
    acceptance: float


# Prompt lookup finds something to copy in about a third of chat's passes, and about half of it is right; the suffix
# method, which also knows past outputs, finds more and longer matches. A model drafts always: a quarter of a target's
# layers with its own head, untrained, agrees with it about half the time.
SKILLS = {"ngram": Skill(0.35, 0.50), "suffix": Skill(0.45, 0.60), "layers": Skill(1.0, 0.50)}


class SimulatedLookup(Lookup):
    """Costs nothing, as looking up does on the host beside a device's step."""

    def __init__(self, sampler: SimulatedSampler, skill: Skill):
        self._sampler, self._skill = sampler, skill

    def propose(self, asks: list[Ask]) -> Drafts:
        self._sampler.acceptance = self._skill.acceptance
        tokens = expected(asks, [ask.most or ask.limit for ask in asks])
        seeds = seeds_array([ask.params.seed for ask in asks])
        found = uniform(seeds, np.array([len(ask.tokens) for ask in asks]), MATCH) < self._skill.found
        return Drafts([each if hit else [] for each, hit in zip(tokens, found.tolist(), strict=True)])

    def follow(self, seq: int, tokens: list[int], limit: int) -> list[int]:
        raise NotImplementedError  # a draft needs the request's seed

    def forget(self, seq: int) -> None:
        return None


class SimulatedModel:
    """A model that drafts token by token: each costs a pass of it over the batch, which `spend` takes: rows, contexts,
    the share of the target's layers."""

    watches = False

    def __init__(
        self, sampler: SimulatedSampler, skill: Skill, share: float, spend: Callable[[list[int], float], None]
    ):
        self._sampler, self._skill, self._share, self._spend = sampler, skill, share, spend

    def propose(self, asks: list[Ask]) -> Drafts:
        self._sampler.acceptance = self._skill.acceptance
        for place in range(max(ask.limit for ask in asks)):
            self._spend([len(ask.tokens) + place for ask in asks if ask.limit > place], self._share)
        return Drafts(expected(asks, [ask.limit for ask in asks]))

    def see(self, seqs: object, outcomes: object, hidden: object) -> None:
        raise NotImplementedError  # it doesn't watch

    def forget(self, seq: int) -> None:
        return None


def factories(
    sampler: SimulatedSampler, layers: int, spend: Callable[[list[int], float], None]
) -> dict[str, Factory]:
    def model(settings: LiveSettings) -> SimulatedModel:
        own = settings.draft_layers or max(1, layers // 4)
        return SimulatedModel(sampler, SKILLS["layers"], own / layers, spend)

    return {
        "ngram": lambda settings: SimulatedLookup(sampler, SKILLS["ngram"]),
        "suffix": lambda settings: SimulatedLookup(sampler, SKILLS["suffix"]),
        "layers": model,
    }


def expected(asks: list[Ask], limits: list[int]) -> list[list[int]]:
    """What the target would choose after each, of so many tokens."""
    seeds = seeds_array([ask.params.seed for ask in asks])[:, None]
    positions = np.array([len(ask.tokens) for ask in asks])[:, None] + np.arange(max(limits, default=0))
    tokens = filler(seeds, positions).tolist()
    return [row[:limit] for row, limit in zip(tokens, limits, strict=True)]
