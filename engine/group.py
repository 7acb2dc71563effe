"""Sequences that serve one request together.

Samples of one prompt (n > 1) are a group until the first of them has computed it: then the others fork from it and each
goes its own way. Lanes of a beam search stay one to the end: a step decides for all of them which beam each continues.
It refuses to know of queues and blocks, and of how tokens are chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.sequence import Sequence

if TYPE_CHECKING:
    from engine.beam_search import BeamSearch


@dataclass(slots=True, eq=False)
class Group:
    """`lanes`: the first of them computes the prompt. `search`: None for samples. `forked`: lanes that others have
    joined, the first included; 0 while the prompt is being computed."""

    lanes: list[Sequence]
    search: BeamSearch | None = None
    forked: int = 0

    @property
    def together(self) -> bool:
        """They decode in the same steps or not at all."""
        return self.forked > 0

    @property
    def living(self) -> list[Sequence]:
        return self.lanes[: max(1, self.forked)]

    @property
    def ready(self) -> bool:
        """Nobody has to catch up."""
        return all(lane.status == "running" and lane.decoding for lane in self.living) if self.forked else True
