"""Drafting with a trained head: each sequence's state from the last pass, and a few steps of the head from there.

The head sees every pass, drafts or not, and keeps of each sequence the hidden state that its newest token was chosen
from. So a sequence drafts from its first decode on; one that is new to the head (drafting was just switched on, a
sample just forked) from its second. What a head computes is in `head_model`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from engine.sampler import Outcome
from engine.speculation.drawn import draw
from engine.speculation.head_model import Steps
from engine.speculation.proposer import Ask, Drafts

_GROW = 64  # sequences that room is made for at a time


class HeadProposer:
    """`vocabulary`: of the target; `kept`: the tokens that the head knows, ascending. `probabilistic`: drafts of
    sampled requests are drawn."""

    watches = True

    def __init__(
        self, steps: Steps, kept: NDArray[np.int64], vocabulary: int, width: int, probabilistic: bool
    ):
        self._steps, self._vocabulary, self._probabilistic = steps, vocabulary, probabilistic
        self._kept = torch.from_numpy(kept)
        self._states = np.zeros((_GROW, width), np.float32)
        self._places: dict[int, int] = {}  # by sequence: its row of the states
        self._spare = list(range(_GROW))[::-1]
        self.bytes = steps.bytes

    def propose(self, asks: list[Ask]) -> Drafts:
        drafts = Drafts([[] for _ in asks])
        known = [i for i, ask in enumerate(asks) if ask.seq in self._places]
        drawn = [i for i in known if self._probabilistic and not asks[i].params.greedy]
        certain = [i for i in known if i not in drawn] if drawn else known
        if certain:
            found = self._steps.greedy(*self._begin(asks, certain), max(asks[i].limit for i in certain))
            for i, tokens in zip(certain, found.T.tolist(), strict=True):
                drafts.tokens[i] = tokens[: asks[i].limit]
        if drawn:
            self._draw(asks, drawn, drafts)
        return drafts

    def see(self, seqs: Sequence[int], outcomes: Sequence[Outcome], hidden: torch.Tensor) -> None:
        places = [self._place(seq) for seq in seqs]
        # a draft is told with the token that ended it
        rows = np.array([len(outcome.drafts) or 1 for outcome in outcomes])
        ends = np.cumsum(rows) - rows + [outcome.accepted for outcome in outcomes]
        self._states[places] = hidden[torch.from_numpy(ends)].cpu().numpy()

    def forget(self, seq: int) -> None:
        place = self._places.pop(seq, None)
        if place is not None:
            self._spare.append(place)

    def _place(self, seq: int) -> int:
        place = self._places.get(seq)
        if place is None:
            if not self._spare:
                held = len(self._states)
                self._states = np.concatenate((self._states, np.zeros((_GROW, self._states.shape[1]), np.float32)))
                self._spare = list(range(held, held + _GROW))[::-1]
            place = self._places[seq] = self._spare.pop()
        return place

    def _begin(self, asks: list[Ask], which: list[int]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """States and last tokens."""
        places = [self._places[asks[i].seq] for i in which]
        return self._states[places], np.array([asks[i].tokens[-1] for i in which], np.int64)

    def _draw(self, asks: list[Ask], which: list[int], drafts: Drafts) -> None:
        states, tokens = self._begin(asks, which)
        self._steps.start(states)
        limits = [asks[i].limit for i in which]
        q = [torch.zeros((limit, self._vocabulary)) for limit in limits]
        for step in range(max(limits)):
            positions = np.array([len(asks[i].tokens) + step for i in which])
            shares, chosen = draw(self._steps.logits(tokens), [asks[i].params for i in which], positions)
            tokens = self._kept[torch.from_numpy(chosen)].numpy()
            for row, (i, limit) in enumerate(zip(which, limits, strict=True)):
                if step < limit:
                    drafts.tokens[i].append(int(tokens[row]))
                    q[row][step, self._kept] = shares[row]
        drafts.q = {i: q[row] for row, i in enumerate(which)}
