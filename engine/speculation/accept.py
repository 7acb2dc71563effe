"""The rule that makes speculation exact: which drafted tokens stay, and what is drawn when one does not.

Glossary, used so everywhere:
  draft       the γ tokens proposed for a sequence's next positions, before the target model saw them
  p, q        at one position, the target's and the draft's probability of a token, given everything before it
  examined    a drafted token that came to its test: all before it in its draft were accepted
  accepted    it passed, with probability min(1, p/q): it is output
  rejected    it failed: it is not output, and it ends the pass
  resampled   the token output in a rejected one's place, drawn from max(0, p − q) renormalised
  discarded   drafted after a rejected token: never examined, because what it continued is gone
  bonus       the token drawn from p after a draft that was accepted whole
A pass outputs its accepted tokens and one more, resampled or bonus. Without a draft that one is just *sampled*.

Why the output has exactly the target's distribution (Leviathan et al. 2211.17192, Chen et al. 2302.01318): token x
comes out accepted with q(x)·min(1, p(x)/q(x)) = min(p, q), and resampled with max(0, p − q)(x), since the chance
of a rejection is just what renormalises that. Together p(x), whatever q is; a bad draft only costs time.

A deterministic drafter (prompt lookup) proposes x with q(x) = 1 and every other token with 0: x is accepted with
p(x), and the residual is p without x. Knows probabilities only: no models, no logits, no sequences.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray


class ExactRule:
    """The rule as published. A class, so that a test can hand the sampler a wrong one and see that it is caught."""

    def accepts(
        self, p: NDArray[np.float64], q: NDArray[np.float64], draws: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Which drafted tokens pass, all arguments of one shape; draws are uniform in [0, 1).

        draw < p/q, written without the division: q is 0 only for a token that the draft could not have proposed.
        """
        return draws * q < p

    def residual(self, p: torch.Tensor, drafted: torch.Tensor, q: torch.Tensor | None) -> torch.Tensor:
        """max(0, p − q), not renormalised: (n, vocabulary) for p (n, vocabulary) and the rejected tokens (n,).

        `q` (n, vocabulary) of a draft model; None: the draft was deterministic, one-hot at the drafted token.
        """
        if q is not None:
            return (p - q).clamp_(min=0)
        return p.scatter(1, drafted[:, None], 0.0)


def leading(passed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Accepted tokens of each draft (rows,), from its tests (rows, γ): those before the first that failed.

    Drafts of mixed lengths are padded with False.
    """
    return np.logical_and.accumulate(passed, axis=1).sum(axis=1)
