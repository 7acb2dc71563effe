"""What a drafter is to the engine: tokens of a batch in, a guess at the next few of each out.

The engine checks every guess against the target model, so a proposer may be wrong in any way and at any time; it
can only cost time. It knows nothing of blocks and batches of the target. Glossary in `accept.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import torch

from engine.config import LiveSettings
from engine.sampler import Outcome, SampleRow


class Ask(msgspec.Struct, gc=False):
    """A draft of at most `limit` tokens, at least 1, that may follow `tokens`: prompt and output of sequence `seq` so
    far. The list is the sequence's own: neither kept nor changed. Between two asks for one sequence it only grows, at
    its end. `params`: how its tokens are drawn from the target. `most`: tokens of a draft that is looked up and costs
    nothing; `limit` can be less, and 0, where each token of a model's draft must pay. 0: as `limit`."""

    seq: int
    tokens: list[int]
    limit: int
    params: SampleRow
    most: int = 0


@dataclass(slots=True)
class Drafts:
    """One draft for each ask, in order; a draft may be shorter than asked for, or empty.

    `q`: by place among the asks, the distributions (len(draft), vocabulary) that the tokens were drawn from, on the
    device of the target's logits; a draft that isn't named was deterministic, q = 1 at each of its tokens. A token that
    was drawn is left out only with a reason from before it was drawn: what is kept for what it is wasn't drawn from q.
    `matched`: by place, of a draft that was looked up how many tokens matched before it. How often such drafts are
    right is measured apart.
    """

    tokens: list[list[int]]
    q: Mapping[int, torch.Tensor] = field(default_factory=dict)
    matched: Mapping[int, int] = field(default_factory=dict)


class Proposer(Protocol):
    """`watches`: it wants to `see` every pass, drafts or no drafts. One that holds much in memory, beyond what is the
    target's, says how much: `bytes`. One that looks a part of its drafts up says so, `looks_up`: it is
    asked with limits of 0 too, for what it finds."""

    watches: bool

    def propose(self, asks: list[Ask]) -> Drafts: ...

    def see(self, seqs: Sequence[int], outcomes: Sequence[Outcome], hidden: torch.Tensor) -> None:
        """A pass came to `outcomes` for the sequences `seqs`, tokens not yet theirs. hidden (N, width) float32: what
        the logits were made from, len(drafts) + 1 rows for each of them in order. It lasts until the next pass."""
        ...

    def forget(self, seq: int) -> None:
        """The sequence is finished; drop what is kept for it. Unknown numbers are fine."""
        ...


Factory = Callable[[LiveSettings], Proposer]
"""Makes the proposer of a draft method as the settings have it. Raises SettingRefused, which says what is wrong with
the draft; nothing has changed then."""


class Lookup(ABC):
    """A deterministic proposer that looks at each sequence by itself and at no model."""

    watches = False
    looks_up = True

    def propose(self, asks: list[Ask]) -> Drafts:
        follow, matched = self.follow, self.matched
        tokens = [follow(ask.seq, ask.tokens, ask.most or ask.limit) for ask in asks]
        return Drafts(tokens, matched={i: n for i, ask in enumerate(asks) if tokens[i] and (n := matched(ask.seq))})

    @abstractmethod
    def follow(self, seq: int, tokens: list[int], limit: int) -> list[int]:
        """At most `limit` tokens that may follow `tokens`; see Ask."""

    def matched(self, seq: int) -> int:
        """When it was last asked to follow `seq`: tokens that matched before the draft. 0: none, or not known."""
        return 0

    def see(self, seqs: Sequence[int], outcomes: Sequence[Outcome], hidden: torch.Tensor) -> None:
        raise NotImplementedError  # it doesn't watch

    @abstractmethod
    def forget(self, seq: int) -> None: ...
