"""What a drafter is to the engine: tokens in, a guess at the next few out.

The engine checks every guess against the target model, so a proposer may be wrong in any way and at any time; it
can only cost time. It knows nothing of blocks, batches or sampling.
"""

from __future__ import annotations

from typing import Protocol


class Proposer(Protocol):
    """A deterministic drafter: the same tokens give the same draft, so q is 1 for each drafted token."""

    def propose(self, seq: int, tokens: list[int], limit: int) -> list[int]:
        """At most `limit` tokens that may follow `tokens`, the prompt and output of sequence `seq` so far.

        `tokens` is the sequence's own list: it must be neither kept nor changed. Between two calls for one
        sequence it only grows, at its end.
        """
        ...

    def forget(self, seq: int) -> None:
        """The sequence is finished or was preempted; drop what is kept for it. Unknown numbers are fine."""
        ...
