"""Penalties on tokens that a sequence holds already, as in vLLM, so that text doesn't go in circles.

Of a token that prompt or output holds the logit is divided by `repetition` where it is positive and multiplied where it
is negative; of one that the output holds, `presence` is then subtracted once and `frequency` for each time. All of it
before temperature and filters, so a greedy request obeys too: its likeliest token is the likeliest that is left.

At a drafted position the drafts before it count as output, for that position's token is only ever asked for after
those: were one of them rejected, what follows it would be discarded. So speculation changes nothing here either.

Each token of a sequence is counted once, when it has come, and a pass changes the logits of the distinct tokens held
and no others. A row without penalties never comes here. Knows token ids and logits, no sequences.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Penalties:
    """Of one sequence, with how often it holds which token."""

    __slots__ = ("_counts", "_known", "_places", "_tokens", "frequency", "presence", "repetition")

    def __init__(self, repetition: float = 1.0, presence: float = 0.0, frequency: float = 0.0):
        self.repetition = repetition
        self.presence = presence
        self.frequency = frequency
        self._known = 0  # tokens counted
        self._tokens = array("q")  # distinct ones, in the order in which they first came
        self._counts = array("q")  # beside them: how often each is output; 0 of one that only the prompt has
        self._places: dict[int, int] = {}  # of each token within both

    @property
    def known(self) -> int:
        """How many of the sequence's tokens are counted."""
        return self._known

    def follow(self, tokens: list[int], prompt_tokens: int) -> None:
        """Count those of `tokens`, prompt and output, that have come since the last call."""
        known = self._known
        assert known <= len(tokens)
        for token in tokens[known:prompt_tokens]:
            self._add(token, 0)
        for token in tokens[max(known, prompt_tokens) :]:
            self._add(token, 1)
        self._known = len(tokens)

    def held(self, after: Sequence[int] = ()) -> tuple[Ints, Ints]:
        """The distinct tokens (n,), and how often each is output (n,), once `after` were output too."""
        distinct = len(self._tokens)
        for token in after:
            self._add(token, 1)
        found = np.array(self._tokens), np.array(self._counts)
        for token in after:
            self._counts[self._places[token]] -= 1
        for token in self._tokens[distinct:]:
            del self._places[token]
        del self._tokens[distinct:], self._counts[distinct:]
        return found

    def _add(self, token: int, times: int) -> None:
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = len(self._tokens)
            self._tokens.append(token)
            self._counts.append(0)
        self._counts[place] += times


Place = tuple[int, Penalties, Sequence[int]]  # a row of the logits, whose penalties, the drafts before it


def penalise(logits: torch.Tensor, places: Sequence[Place]) -> torch.Tensor:
    """A copy of logits (n, vocabulary) with the penalties of `places` taken, in float32 if they were in less. Each
    value is worked out in float64 and rounded once."""
    out = logits.float() if logits.dtype.itemsize < 4 else logits.clone()
    held = [penalties.held(after) for _, penalties, after in places]
    sizes = [len(tokens) for tokens, _ in held]

    def entries(values: list[float]) -> torch.Tensor:  # one of each place, for every token held there
        return torch.from_numpy(np.repeat(np.array(values, dtype=np.float64), sizes)).to(out.device)

    rows = torch.from_numpy(np.repeat([row for row, _, _ in places], sizes)).to(out.device)
    tokens = torch.from_numpy(np.concatenate([tokens for tokens, _ in held])).to(out.device)
    counts = torch.from_numpy(np.concatenate([counts for _, counts in held])).to(out.device)
    repetition = entries([penalties.repetition for _, penalties, _ in places])
    x = out[rows, tokens].double()
    x = torch.where(x > 0, x / repetition, x * repetition)
    x -= entries([penalties.presence for _, penalties, _ in places]) * (counts > 0)
    x -= entries([penalties.frequency for _, penalties, _ in places]) * counts
    out[rows, tokens] = x.to(out.dtype)
    return out
