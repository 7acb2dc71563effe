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

    def held(self, after: Sequence[int] = ()) -> tuple[array[int], array[int]]:
        """The distinct tokens (n,), and how often each is output (n,), once `after` were output too; not to be kept."""
        if not after:
            return self._tokens, self._counts
        distinct = len(self._tokens)
        for token in after:
            self._add(token, 1)
        found = self._tokens[:], self._counts[:]
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


def held_at(places: Sequence[Place], width: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Of each token held at each of `places`, in rows of `width` numbers one after the other: where its logit is (n,),
    how often it is output (n,), and the repetition, presence and frequency that it is to be penalised by (3, n)."""
    held, counted, sizes = array("q"), array("q"), []
    for _, penalties, after in places:
        tokens, counts = penalties.held(after)
        held.extend(tokens)
        counted.extend(counts)
        sizes.append(len(tokens))
    at = np.repeat([row * width for row, _, _ in places], sizes) + np.asarray(held)
    values = [(penalties.repetition, penalties.presence, penalties.frequency) for _, penalties, _ in places]
    return at, np.asarray(counted), np.repeat(np.array(values, dtype=np.float64).T, sizes, axis=1)


def penalise(logits: torch.Tensor, places: Sequence[Place]) -> torch.Tensor:
    """A copy of logits (n, vocabulary) with the penalties of `places` taken, in float32 if they were in less. Each
    value is worked out in float64 and rounded once."""
    out = (logits.float() if logits.dtype.itemsize < 4 else logits.clone()).contiguous()
    at, counted, by = held_at(places, out.shape[1])
    index, count = torch.from_numpy(at).to(out.device), torch.from_numpy(counted).to(out.device)
    repetition, presence, frequency = torch.from_numpy(by).to(out.device)
    flat = out.view(-1)  # indexing it by one number is several times faster than by two
    x = flat[index].double()
    x = torch.where(x > 0, x / repetition, x * repetition) - presence * (count > 0) - frequency * count
    flat[index] = x.to(out.dtype)
    return out
