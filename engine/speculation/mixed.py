"""Suffix matches where they are long, the trained head everywhere else.

A long match is text being copied, which the head can't know; elsewhere the head guesses better than a short match does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.sampler import Outcome
from engine.speculation.proposer import Ask, Drafts, Proposer
from engine.speculation.suffix import SuffixProposer

LEAST = 4  # tokens that must match


class MixedProposer:
    watches = True
    looks_up = True

    def __init__(self, suffix: SuffixProposer, head: Proposer, least: int = LEAST):
        self._suffix, self._head, self._least = suffix, head, least
        self.bytes = getattr(head, "bytes", 0)

    def propose(self, asks: list[Ask]) -> Drafts:
        found = self._suffix.propose(asks)
        tokens, q = list(found.tokens), dict(found.q)
        rest = [i for i, ask in enumerate(asks) if found.matched.get(i, 0) < self._least and ask.limit]
        if rest:
            guessed = self._head.propose([asks[i] for i in rest])
            for place, i in enumerate(rest):
                if guessed.tokens[place]:
                    tokens[i] = guessed.tokens[place]
                    if place in guessed.q:
                        q[i] = guessed.q[place]
        matched = {i: n for i, n in found.matched.items() if tokens[i] is found.tokens[i]}  # short ones if nothing else
        return Drafts(tokens, q, matched)

    def see(self, seqs: Sequence[int], outcomes: Sequence[Outcome], hidden: torch.Tensor) -> None:
        self._head.see(seqs, outcomes, hidden)

    def forget(self, seq: int) -> None:
        self._suffix.forget(seq)
        self._head.forget(seq)
