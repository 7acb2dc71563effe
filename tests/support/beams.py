"""Driving a beam search: by any function from continuations to logits, and what to compare the outcome with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from engine.beam_candidates import candidates
from engine.beam_search import IDLE, BeamSearch, BeamStep, Hypothesis

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

# continuations, one a live lane, to logits (lanes, vocabulary)
Model = Callable[[list[tuple[int, ...]]], torch.Tensor]


def search(model: Model, beams: BeamSearch) -> list[Hypothesis]:
    """To its end; lanes' tokens are kept here as an engine keeps them, by the steps' parents alone."""
    for _ in steps(model, beams):
        pass
    return beams.hypotheses()


def steps(model: Model, beams: BeamSearch) -> Iterator[tuple[BeamStep, dict[int, tuple[int, ...]]]]:
    """Each step, and the tokens in each lane after it."""
    lanes: dict[int, tuple[int, ...]] = {0: ()}
    while not beams.over:
        assert sorted(lanes) == beams.lanes
        found = candidates(model([lanes[lane] for lane in beams.lanes]), beams.needed)
        step = beams.advance(dict(zip(beams.lanes, found, strict=True)))
        lanes = {
            lane: (*lanes[parent], token)
            for lane, (parent, token) in enumerate(zip(step.parents, step.tokens, strict=True))
            if parent != IDLE
        }
        yield step, lanes


class Table:
    """A tiny model: the logits of the next token depend on the last one alone."""

    def __init__(self, vocabulary: int, seed: int, scale: float = 1.5):
        numbers = np.random.default_rng(seed).normal(scale=scale, size=(vocabulary + 1, vocabulary))
        self.logits = torch.tensor(numbers, dtype=torch.float32)  # (last token, next); the last row: nothing yet
        self.logprobs = self.logits.double().log_softmax(dim=1).tolist()

    def __call__(self, continuations: list[tuple[int, ...]]) -> torch.Tensor:
        return self.logits[[tokens[-1] if tokens else -1 for tokens in continuations]]

    def logprob(self, tokens: tuple[int, ...]) -> float:
        return math.fsum(self.logprobs[before][token] for before, token in zip((-1, *tokens), tokens, strict=False))


def every_ending(vocabulary: int, eos: set[int], longest: int) -> list[tuple[int, ...]]:
    """Each sequence that ends by an ending token, or by its length."""
    going = [token for token in range(vocabulary) if token not in eos]
    found: list[tuple[int, ...]] = []
    for length in range(1, longest + 1):
        ends = range(vocabulary) if length == longest else sorted(eos)
        found += [(*start, end) for start in itertools.product(going, repeat=length - 1) for end in ends]
    return found


class Dense:
    """A transformers model after one prompt: a row a live lane, keys and values reordered as lanes are."""

    def __init__(self, model: PreTrainedModel, prompt: list[int]):
        self._model = model
        self._prompt = prompt
        self._past: Cache | None = None
        self._rows: list[tuple[int, ...]] = []

    def __call__(self, continuations: list[tuple[int, ...]]) -> torch.Tensor:
        if self._past is None:
            ids = torch.tensor([self._prompt])
        else:
            self._past.reorder_cache(torch.tensor([self._rows.index(tokens[:-1]) for tokens in continuations]))
            ids = torch.tensor([tokens[-1:] for tokens in continuations])
        with torch.inference_mode():
            out = self._model(input_ids=ids, past_key_values=self._past, use_cache=True, logits_to_keep=1)
        self._past, self._rows = out.past_key_values, continuations
        return out.logits[:, -1]
