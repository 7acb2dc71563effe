"""How a step's pass ran, in words: whether it was begun while the step before it ran, or why not; whether it was
replayed from a graph, and how much of that was padding; what was computed for nothing.

Nothing is said where steps don't overlap and nothing is replayed, as on a CPU. No Qt.
"""

from __future__ import annotations

from typing import NamedTuple

from ui import pressure
from ui.explain import count
from ui.history import OVERLAPPED, OVERLAPS, Columns

# records.Serial: why a step had to wait for the one before, briefly and in full
WHY = {
    "drafts": ("drafts", "drafts are proposed from tokens on the host"),
    "beams": ("beams", "beams fork on tokens on the host"),
    "samples": ("samples", "samples of one request fork on tokens on the host"),
    "penalties": ("penalties", "penalties count tokens on the host"),
    "watch": ("a watched sequence", "a watched sequence is looked at through its logits"),
    "shadow": ("a second run", "a request's second run is compared with its first"),
    "blocks": ("pool nearly full", "the KV pool was too full to plan ahead without preempting"),
    "prompts": ("whole prompts", "prompts waited that are computed whole, and could preempt"),
    "sharing": ("shared blocks", "sequences share blocks that may have to be copied"),
    "idle": ("idle before", "no step was running when its work came"),
    "command": ("a command", "a command was obeyed before it"),
    "stepping": ("stepping", "paused or in slow motion, steps run one by one"),
    "failure": ("tried again", "it could not be begun beside the step before, and was tried again"),
}


class How(NamedTuple):
    """`overlap`: of OVERLAPS. Tokens: `computed` for rows, `wasted` and `padded` besides."""

    overlap: str = ""
    graph: bool = False
    computed: int = 0
    wasted: int = 0
    padded: int = 0

    @property
    def lines(self) -> list[str]:
        """A sentence each: 'overlapped with the step before', 'replayed from a graph of 8 tokens, 3 of them padding',
        '2 tokens wasted: …'."""
        found = []
        if self.overlap == OVERLAPPED:
            found.append("overlapped with the step before")
        elif self.overlap:
            found.append(f"not overlapped: {WHY[self.overlap][1]}")
        if self.graph:
            padding = f", {self.padded:,} of them padding" if self.padded else ""
            found.append(f"replayed from a graph of {count(self._replayed, 'token')}{padding}")
        if self.wasted:
            whose = "its sequence" if self.wasted == 1 else "their sequences"
            found.append(f"{count(self.wasted, 'token')} wasted: {whose} had stopped")
        return found

    @property
    def brief(self) -> str:
        """In one line with others: 'overlapped · graph, 3 of 8 padding · 2 wasted'."""
        found = []
        if self.overlap:
            found.append(self.overlap if self.overlap == OVERLAPPED else f"not overlapped: {WHY[self.overlap][0]}")
        if self.graph:
            found.append(f"graph, {self.padded:,} of {self._replayed:,} padding" if self.padded else "graph")
        if self.wasted:
            found.append(f"{self.wasted:,} wasted")
        return " · ".join(found)

    @property
    def _replayed(self) -> int:
        """The graph's shape: rows of stopped sequences were in the pass too."""
        return self.computed + self.wasted + self.padded


def how(columns: Columns, at: int) -> How:
    """Of the step at that place."""
    return How(
        OVERLAPS[int(columns.overlap[at])],
        bool(columns.graph[at]),
        int(pressure.tokens_of(columns)[at]),
        int(columns.wasted[at]),
        int(columns.padded[at]),
    )
