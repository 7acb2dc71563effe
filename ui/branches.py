"""Requests that run as several sequences at once: which lane continued which, token by token. No Qt.

A request asked for `n` samples or for beams is served by as many sequences, its *lanes*, which all begin with one
prompt. Lane by output position this is a grid that is written once: each cell is a token, and its parent is the cell
before it in its own lane or, where the lane was taken over, in another. Cells know their step, so any past moment is
the same grid read up to there, and nothing has to be rebuilt for it.

A cell has *died* when no lane's latest token descends from it. At the end of a search the hypotheses say which
sequences were found; each is a path through the grid, but for its last token, with which it ended and which no lane
went on from.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.records import (
    COPY,
    TOKEN,
    Aborted,
    Event,
    Finished,
    Forked,
    Hypothesis,
    Searched,
    StepRecord,
    Submitted,
    unpack,
)

KEPT = 16  # trees; the oldest goes first
SAMPLES, BEAMS = "samples", "beams"


class Cell(NamedTuple):
    """An output token of a lane."""

    token: int
    text: str
    step: int
    parent: int  # the lane of the token before it; of a first token its own


Spot = tuple[int, int]  # lane, output position


@dataclass(slots=True)
class Lane:
    """`cells` by output position; None where another lane was further when this one joined it."""

    seq: int
    cells: list[Cell | None] = field(default_factory=list)
    joined: tuple[int, int] | None = None  # parent's lane and output position of the first token since the fork
    ended: int = 0  # step; 0 while it runs
    reason: str = ""


@dataclass(slots=True)
class Fork:
    """A lane came to another's tokens and blocks."""

    step: int
    lane: int
    parent: int
    position: int  # output tokens taken over
    computed: int  # tokens, the prompt's with them
    shared: int  # blocks


class Tree:
    """One request: its lanes from the prompt on.

    Attributes:
        width: of its beam search; 0: samples.
        found: hypotheses, best first; empty before the search is over. over: the step of that; 0 before.
    """

    def __init__(self, event: Submitted, step: int):
        self.number, self.width, self.of = event.number, event.beams, event.of
        self.prompt, self.prompt_tokens, self.label = event.prompt, event.prompt_tokens, event.label
        self.begun = step
        self.lanes: dict[int, Lane] = {}
        self.forks: list[Fork] = []
        self.found: list[Hypothesis] = []
        self.over = 0
        self.paths: list[list[Spot]] = []  # of each hypothesis
        self.copies: list[int] = []  # the step of each block copied before a lane wrote into it

    @property
    def kind(self) -> str:
        return BEAMS if self.width else SAMPLES

    @property
    def seqs(self) -> list[int]:
        return [lane.seq for _, lane in sorted(self.lanes.items())]

    def cell(self, spot: Spot) -> Cell | None:
        lane = self.lanes.get(spot[0])
        return lane.cells[spot[1]] if lane is not None and 0 <= spot[1] < len(lane.cells) else None

    def before(self, spot: Spot) -> Spot | None:
        """The cell that this one continues; None: the prompt."""
        cell = self.cell(spot)
        return (cell.parent, spot[1] - 1) if cell is not None and spot[1] else None

    # --- a moment ---

    def length(self, step: int) -> int:
        """Output positions written by then."""
        return max((_length(lane, step) for lane in self.lanes.values()), default=0)

    def ends(self, step: int) -> list[Spot]:
        """The latest token of each lane that lived then. A beam that lags behind the others has died."""
        lengths = {index: _length(lane, step) for index, lane in self.lanes.items()}
        longest = max(lengths.values(), default=0)
        if not longest:
            return []
        if self.width:
            return [(index, longest - 1) for index, length in sorted(lengths.items()) if length == longest]
        return [(index, length - 1) for index, length in sorted(lengths.items()) if length]

    def alive(self, step: int) -> set[Spot]:
        """Cells that some lane's latest token descends from, itself included. Once a search is over: those of what
        it found."""
        if self.over and step >= self.over:
            return {spot for path in self.paths for spot in path}
        return set().union(*(self.path(end) for end in self.ends(step)))

    def path(self, end: Spot) -> list[Spot]:
        """From the first token to this one."""
        found = []
        spot: Spot | None = end
        while spot is not None and self.cell(spot) is not None:
            found.append(spot)
            spot = self.before(spot)
        return found[::-1]

    def text(self, path: Iterable[Spot]) -> str:
        return "".join(cell.text for spot in path if (cell := self.cell(spot)) is not None)

    def copied(self, step: int) -> int:
        """Blocks copied by then."""
        return bisect_right(self.copies, step)

    # --- what is written ---

    def fork(self, event: Forked, index: int, parent: int, step: int) -> None:
        position = max(0, event.known - self.prompt_tokens)
        lane = self.lanes[index]
        del lane.cells[position:]
        lane.cells += [None] * (position - len(lane.cells))
        lane.joined = (parent, position)
        self.forks.append(Fork(step, index, parent, position, event.computed, event.shared))

    def write(self, index: int, position: int, token: int, text: str, step: int) -> None:
        lane = self.lanes[index]
        if position != len(lane.cells):  # a token told twice, or one that a gap in the records left out
            return
        parent = lane.joined[0] if lane.joined is not None and lane.joined[1] == position and position else index
        lane.cells.append(Cell(token, text, step, parent))

    def search_over(self, found: list[Hypothesis], step: int) -> None:
        self.found, self.over = found, step
        self.paths = [self._trace(hypothesis.token_ids) for hypothesis in found]

    def _trace(self, tokens: Sequence[int]) -> list[Spot]:
        """The way through the grid that has these tokens, as far as lanes went. No two beams have the same tokens, so
        there is one at most."""
        here: set[int] = set()
        trail: list[set[int]] = []
        for position, token in enumerate(tokens):
            here = {
                index
                for index in self.lanes
                if (cell := self.cell((index, position))) and cell.token == token and (not trail or cell.parent in here)
            }
            if not here:
                break
            trail.append(here)
        return self.path((min(trail[-1]), len(trail) - 1)) if trail else []


class Branches:
    """The trees of the latest requests with several lanes; the single writer is `apply`."""

    def __init__(self, kept: int = KEPT):
        self._kept = kept
        self._trees: dict[int, Tree] = {}  # by request number, oldest first
        self._places: dict[int, tuple[Tree, int]] = {}  # tree and lane of each sequence that runs

    def __len__(self) -> int:
        return len(self._trees)

    def __iter__(self) -> Iterator[Tree]:
        """Oldest first."""
        return iter(self._trees.values())

    def of(self, seq: int | None) -> Tree | None:
        """The tree that has a sequence as a lane."""
        return next((tree for tree in self._trees.values() if seq in tree.seqs), None)

    def at(self, step: int) -> Tree | None:
        """The one that was begun last before a step."""
        return next((tree for tree in reversed(self._trees.values()) if tree.begun <= step), None)

    def restart(self) -> None:
        """The engine was started again and numbers its sequences anew: those that ran ended with it."""
        self._places.clear()

    def events(self, events: Iterable[Event], step: int) -> bool:
        """Take what happened in a step, or between two; whether it touched a tree."""
        touched = False
        for event in events:
            if isinstance(event, Submitted):
                touched |= self._submitted(event, step)
            elif isinstance(event, Forked | Searched | Finished | Aborted) and event.seq in self._places:
                self._event(event, step)
                touched = True
        return touched

    def step(self, record: StepRecord) -> bool:
        """Take a step, tokens and all."""
        before, ends = [], []
        for event in record.events:
            (ends if isinstance(event, Searched | Finished | Aborted) else before).append(event)
        touched = self.events(before, record.step)
        if self._places and record.copies:
            for seq in unpack(record.copies, COPY)["seq"].tolist():
                if place := self._places.get(seq):
                    place[0].copies.append(record.step)
        if self._places and record.emitted:
            emitted = unpack(record.emitted, TOKEN)[["seq", "position", "token"]].tolist()
            for (seq, position, token), text in zip(emitted, record.text, strict=False):
                if place := self._places.get(seq):
                    tree, index = place
                    tree.write(index, position - tree.prompt_tokens, token, text, record.step)
                    touched = True
        return self.events(ends, record.step) or touched

    def _submitted(self, event: Submitted, step: int) -> bool:
        if event.of < 2:
            return False
        tree = self._trees.get(event.number)
        if tree is None or event.index in tree.lanes:  # after a restart the same request comes again
            self._trees.pop(event.number, None)
            tree = self._trees[event.number] = Tree(event, step)
            while len(self._trees) > self._kept:
                gone = self._trees.pop(next(iter(self._trees)))
                self._places = {seq: place for seq, place in self._places.items() if place[0] is not gone}
        tree.lanes[event.index] = Lane(event.seq)
        self._places[event.seq] = (tree, event.index)
        return True

    def _event(self, event: Forked | Searched | Finished | Aborted, step: int) -> None:
        tree, index = self._places[event.seq]
        if isinstance(event, Forked):
            if parent := self._places.get(event.parent):
                tree.fork(event, index, parent[1], step)
        elif isinstance(event, Searched):
            tree.search_over(event.found, step)
        else:
            lane = tree.lanes[index]
            lane.ended, lane.reason = step, event.reason
            del self._places[event.seq]


def _length(lane: Lane, step: int) -> int:
    """Cells written by a step; those of a lane are in order of their steps, but for the missing ones before a fork."""
    length = len(lane.cells)
    while length and ((cell := lane.cells[length - 1]) is None or cell.step > step):
        length -= 1
    return length
