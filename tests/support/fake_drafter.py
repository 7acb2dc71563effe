"""A drafter that draws: its distribution is the table model's, blurred, so that drafts are rejected now and then."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.sampler import Outcome
from engine.speculation.proposer import Ask, Drafts
from tests.support.fake_runner import TableModel


class BlurredDrafter:
    """Implements the proposer protocol. `heat`: temperature of its distribution over the model's; its draws come from
    `seed`, not from the requests'."""

    watches = False

    def __init__(self, model: TableModel, heat: float = 2.5, seed: int = 0):
        self.model, self.heat = model, heat
        self._random = np.random.default_rng(seed)

    def propose(self, asks: list[Ask]) -> Drafts:
        drafts, q = [], {}
        for place, ask in enumerate(asks):
            tokens, rows = list(ask.tokens), []
            for _ in range(ask.limit):
                rows.append(self.model.probabilities(tokens, self.heat))
                tokens.append(int(self._random.choice(self.model.vocabulary, p=rows[-1])))
            drafts.append(tokens[len(ask.tokens) :])
            q[place] = torch.from_numpy(np.array(rows))
        return Drafts(drafts, q)

    def see(self, seqs: Sequence[int], outcomes: Sequence[Outcome], hidden: torch.Tensor) -> None:
        raise NotImplementedError  # it doesn't watch

    def forget(self, seq: int) -> None: ...
