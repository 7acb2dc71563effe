"""Drafters for tests of exactness: a table that draws, any other with drafts of uneven length, or two side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from engine.sampler import Outcome
from engine.speculation.proposer import Ask, Drafts, Proposer
from tests.support.fake_runner import TableModel


class _Drafter:
    watches = False

    def see(self, seqs: Sequence[int], outcomes: Sequence[Outcome], hidden: torch.Tensor) -> None:
        raise NotImplementedError  # it doesn't watch

    def forget(self, seq: int) -> None:
        return None


class TableDrafter(_Drafter):
    """Draws from a table of its own as a draft model does: every token from the distribution after those before it,
    which it gives as q. All asks at a time, no loop over them."""

    def __init__(self, model: TableModel, seed: int = 0):
        x = model.table.astype(np.float64)
        weights = np.exp(x - x.max(axis=2, keepdims=True))
        self._q = weights / weights.sum(axis=2, keepdims=True)  # (before last, last, next)
        self._random = np.random.default_rng(seed)

    def propose(self, asks: list[Ask]) -> Drafts:
        longest = max(ask.limit for ask in asks)
        before, last = np.array([ask.tokens[-2:] for ask in asks]).T
        tokens = np.zeros((len(asks), longest), dtype=np.int64)
        q = np.zeros((len(asks), longest, self._q.shape[2]))
        for i in range(longest):
            q[:, i] = self._q[before, last]
            drawn = self._random.random(len(asks))[:, None]
            before, last = last, (q[:, i].cumsum(axis=1) < drawn * (1 - 1e-12)).sum(axis=1)
            tokens[:, i] = last
        rows = torch.from_numpy(q)
        limits = [ask.limit for ask in asks]
        return Drafts(
            [drafts[:limit] for drafts, limit in zip(tokens.tolist(), limits, strict=True)],
            {place: rows[place, :limit] for place, limit in enumerate(limits)},
        )


class Uneven(_Drafter):
    """Another drafter's drafts, of each sequence at most `limit` tokens."""

    def __init__(self, drafter: Proposer, limit: Callable[[int], int]):
        self._drafter = drafter
        self._limit = limit

    def propose(self, asks: list[Ask]) -> Drafts:
        drafts = Drafts([[] for _ in asks])
        places, shorter = [], []
        for place, ask in enumerate(asks):
            limit = min(ask.limit, self._limit(ask.seq))
            if limit:
                places.append(place)
                shorter.append(Ask(ask.seq, ask.tokens, limit, ask.params))
        if places:
            found = self._drafter.propose(shorter)
            for place, tokens in zip(places, found.tokens, strict=True):
                drafts.tokens[place] = tokens
            drafts.q = {places[i]: q for i, q in found.q.items()}
        return drafts

    def forget(self, seq: int) -> None:
        self._drafter.forget(seq)


class SideBySide(_Drafter):
    """Sequences with even numbers are drafted for by one, the others by another."""

    def __init__(self, even: Proposer, odd: Proposer):
        self._drafters = even, odd

    def propose(self, asks: list[Ask]) -> Drafts:
        drafts = Drafts([[] for _ in asks], q := {})
        for odd, drafter in enumerate(self._drafters):
            places = [place for place, ask in enumerate(asks) if ask.seq % 2 == odd]
            if not places:
                continue
            found = drafter.propose([asks[place] for place in places])
            for place, tokens in zip(places, found.tokens, strict=True):
                drafts.tokens[place] = tokens
            q |= {places[i]: rows for i, rows in found.q.items()}
        return drafts

    def forget(self, seq: int) -> None:
        for drafter in self._drafters:
            drafter.forget(seq)
