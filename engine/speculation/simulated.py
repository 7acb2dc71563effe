"""A what-if: drafted tokens are accepted at given rates, by their place in the draft, whatever they are.

What it costs to draft and to verify is real, and so are the p and q that are told; which tokens pass is not, so the
text is meaningless. Every draft is as long as was asked for: what the drafter left out is filled up. Knows
probabilities and tokens only.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from engine.speculation.accept import ExactRule
from engine.speculation.proposer import Ask, Drafts


class SimulatedRule(ExactRule):
    """`rates`: share of examined tokens to accept, by place in the draft; the last one for all that follow."""

    def __init__(self, rates: tuple[float, ...]):
        self._rates = np.array(rates)

    def accepts(
        self, p: NDArray[np.float64], q: NDArray[np.float64], draws: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """As of the exact rule; the last axis is the place in the draft."""
        return draws < self._rates[np.minimum(np.arange(draws.shape[-1]), len(self._rates) - 1)]


def lengthened(asks: list[Ask], drafts: Drafts) -> Drafts:
    """Every draft with as many tokens as its ask's limit: filled up with the sequence's own last token, which can't be
    one that would end it, drawn with certainty."""
    tokens, q = [], dict(drafts.q)
    for i, (ask, draft) in enumerate(zip(asks, drafts.tokens, strict=True)):
        missing = max(0, ask.limit - len(draft))
        tokens.append([*draft, *ask.tokens[-1:] * missing])
        if missing and i in q:
            filled = torch.zeros(missing, q[i].shape[1], dtype=q[i].dtype, device=q[i].device)
            filled[:, ask.tokens[-1]] = 1
            q[i] = torch.cat((q[i], filled))
    return Drafts(tokens, q, drafts.matched)
