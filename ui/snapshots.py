"""The past, rebuilt exactly: a copy of the state now and then, and the records in between. Bounded, no Qt.

A record is kept as its bytes: they are a third of the size of its Python objects and cost the collector nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

from engine.records import Between, Keyframe, StepRecord, decode, encode
from ui.sequences import Piece, SequenceInfo
from ui.state import EngineState

BUDGET = 192 << 20  # bytes, for snapshots and records together
# A snapshot is due when the records since the last weigh as much as it does (so copies take half the budget at
# most), yet not sooner than 64 steps (copying would show) nor later than 512 (a jump in time stays under 0.3 s).
SOONEST, LATEST = 64, 512
# Beside a record's bytes: the objects that hold them; and, of each token that it emitted, the piece of text that copies
# refer to: a tuple and a short string.
_HOLDING, _PIECE = 96, 128  # bytes


@dataclass(slots=True)
class _Stretch:
    """A copy of the state and the records after it."""

    state: EngineState
    pieces: dict[int, tuple[list[Piece], int]]  # the live lists, which only grow, and how much of them counts
    weight: int  # bytes of the copy
    steps: list[int] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    size: int = 0  # bytes of the records, and of the pieces that came with them


class Snapshots:
    """Everything needed to see a past step again.

    Attributes:
        nbytes: what it holds, about. full: some of the past was dropped for what came.
    """

    def __init__(self, budget: int = BUDGET):
        self._budget = budget
        self._stretches: deque[_Stretch] = deque()
        self._starts: list[int] = []  # the step of each copy
        self.nbytes = 0
        self.full = False

    @property
    def first_step(self) -> int:
        return self._starts[0] if self._starts else 0

    def keep(self, share: float) -> None:
        """Hold only this share of the budget."""
        self._budget = int(share * self._budget)

    def forget(self, before: int) -> None:
        """Steps before that needn't be shown again."""
        while len(self._starts) > 1 and self._starts[1] <= before:
            self._drop(0)
            self.full = True

    def start(self, state: EngineState) -> None:
        """Copy `state` now: at the beginning, and whenever it changed by more than a record."""
        pieces: dict[int, tuple[list[Piece], int]] = {}

        def shared(info: SequenceInfo) -> SequenceInfo:
            twin = info.copy(pieces=[])
            pieces[id(twin)] = (info.pieces, len(info.pieces))
            return twin

        copy = state.copy_with(shared)
        if self._starts and self._starts[-1] == state.step and not self._stretches[-1].records:
            self._drop(-1)
        stretch = _Stretch(copy, pieces, copy.nbytes)
        self._stretches.append(stretch)
        self._starts.append(state.step)
        self.nbytes += stretch.weight
        self._trim()

    def add(self, record: StepRecord | Between, state: EngineState) -> None:
        """Keep `record`, which led to `state`."""
        if not self._stretches:
            self.start(state)
            return
        stretch = self._stretches[-1]
        data = encode(record)
        stretch.records.append(data)
        stretch.steps.append(state.step)
        size = len(data) + _HOLDING + _PIECE * (len(record.text) if isinstance(record, StepRecord) else 0)
        stretch.size += size
        self.nbytes += size
        since = state.step - self._starts[-1]
        if since >= LATEST or (since >= SOONEST and stretch.size >= stretch.weight):
            self.start(state)
        else:
            self._trim()

    def at(self, step: int) -> EngineState | None:
        """The state after the last kept record of a step ≤ `step`; None when nothing kept is that old.

        Records that came between two steps belong to the earlier one."""
        place = bisect_right(self._starts, step) - 1
        if place < 0:
            return None
        stretch = self._stretches[place]
        state = self._restored(stretch)
        for data in stretch.records[: bisect_right(stretch.steps, step)]:
            record = decode(data)
            assert not isinstance(record, Keyframe)
            state.apply(record)
        return state

    @staticmethod
    def _restored(stretch: _Stretch) -> EngineState:
        def own(info: SequenceInfo) -> SequenceInfo:
            live, length = stretch.pieces[id(info)]
            return info.copy(pieces=live[:length])

        return stretch.state.copy_with(own)

    def _trim(self) -> None:
        while self.nbytes > self._budget and len(self._stretches) > 1:
            self._drop(0)
            self.full = True

    def _drop(self, place: int) -> None:
        stretch = self._stretches[place]
        self.nbytes -= stretch.weight + stretch.size
        del self._stretches[place], self._starts[place]
