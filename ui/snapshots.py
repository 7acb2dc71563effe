"""The past, rebuilt exactly: a copy of the state now and then, and the records in between. Bounded, no Qt.

A record is kept as its bytes: they are a third of the size of its Python objects and cost the collector nothing.

Of the pool a copy mostly has only what changed since the copy before it: at 400,000 blocks a whole one takes 17 MB and
15 ms, in which no frame is drawn, and a few hundred steps change a twentieth of it. When the whole copy that the
differences go back to becomes too old to be kept, the first of them is put into it, and so it is never made again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.records import SEAL, Between, Keyframe, StepRecord, decode, encode, unpack
from ui.blocks import ARRAYS
from ui.sequences import Piece, SequenceInfo
from ui.state import EngineState, Pool, copied_pool

BUDGET = 192 << 20  # bytes, for snapshots and records together
# A snapshot is due when the records since the last weigh twice as much as a whole copy (so copies take a third of the
# budget at most), yet not sooner than 64 steps (copying would show) nor later than 512 (a jump in time stays under
# 0.3 s).
SOONEST, LATEST = 64, 512
# Beside a record's bytes: the objects that hold them; of each token that it emitted, the piece of text that copies
# refer to: a tuple and a short string. Of an entry that is new in a copy: a tuple, numbers, a text.
_HOLDING, _PIECE, _ENTRY = 96, 128, 320  # bytes


@dataclass(frozen=True, slots=True)
class _Difference:
    """What of a pool's arrays is not as in the copy before."""

    blocks: NDArray[np.intp]
    columns: list[NDArray]  # of each of `blocks.ARRAYS`
    sealed: NDArray[np.intp]
    entries: NDArray[np.object_]

    @classmethod
    def of(cls, state: EngineState, blocks: NDArray[np.intp], sealed: list[bytes]) -> _Difference:
        """`blocks` changed since; `sealed`: records.SEAL entries that came."""
        findable = np.unique(unpack(b"".join(sealed), SEAL)["block"])
        findable = findable[findable < state.num_blocks].astype(np.intp)
        columns = [getattr(state, name)[blocks] for name in ARRAYS]
        return cls(blocks, columns, findable, state.prefixes.entries[findable])

    def put_into(self, pool: Pool) -> None:
        for name, column in zip(ARRAYS, self.columns, strict=True):
            pool[name][self.blocks] = column
        pool["entries"][self.sealed] = self.entries

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self.blocks, self.sealed, self.entries, *self.columns))

    @property
    def weight(self) -> int:
        """Bytes with the entries themselves, which the live state soon lets go of."""
        return self.nbytes + _ENTRY * int(np.count_nonzero(self.entries != None))  # noqa: E711, one by one


@dataclass(slots=True)
class _Stretch:
    """A copy of the state and the records after it. Where there is a `difference`, the state's pool is that of the
    whole copy before it, and the differences up to this one make it the right one."""

    state: EngineState
    pieces: dict[int, tuple[list[Piece], int]]  # the live lists, which only grow, and how much of them counts
    weight: int  # bytes of the copy
    difference: _Difference | None = None
    steps: list[int] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    size: int = 0  # bytes of the records, and of the pieces that came with them
    sealed: list[bytes] = field(default_factory=list)  # what the next difference is made from


class Snapshots:
    """Everything needed to see a past step again.

    Attributes:
        nbytes: what it holds, about. full: some of the past was dropped for what came.
    """

    def __init__(self, budget: int = BUDGET):
        self._budget = budget
        self._stretches: deque[_Stretch] = deque()
        self._whole = 0  # bytes of the last copy, had it been whole
        self._arrays: tuple[NDArray, NDArray] | None = None  # two of the live pool's when it was copied last
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
        """Copy `state` now, whole: at the beginning, and whenever it changed by more than records."""
        self._append(state, None)

    def _append(self, state: EngineState, difference: _Difference | None) -> None:
        pieces: dict[int, tuple[list[Piece], int]] = {}

        def shared(info: SequenceInfo) -> SequenceInfo:
            twin = info.copy(pieces=[])
            pieces[id(twin)] = (info.pieces, len(info.pieces))
            return twin

        pool = copied_pool(state.pool) if difference is None else self._stretches[-1].state.pool
        copy = state.copy_with(shared, pool)
        if self._starts and self._starts[-1] == state.step and not self._stretches[-1].records:
            self._drop(-1)
        weight = copy.nbytes + (copy.pool_nbytes if difference is None else difference.weight)
        if self._stretches:
            self._stretches[-1].sealed.clear()
        self._stretches.append(_Stretch(copy, pieces, weight, difference))
        self._starts.append(state.step)
        self._whole = copy.nbytes + copy.pool_nbytes
        self._arrays = state.blocks_state, state.prefixes.entries
        self.nbytes += weight
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
        if record.sealed:
            stretch.sealed.append(record.sealed)
        pieces = len(record.text) if isinstance(record, StepRecord) else 0
        size = len(data) + _HOLDING + _PIECE * pieces
        stretch.size += size
        self.nbytes += size
        since = state.step - self._starts[-1]
        if since >= LATEST or (since >= SOONEST and stretch.size >= 2 * self._whole):
            self._append(state, self._difference(state))
        else:
            self._trim()

    def _difference(self, state: EngineState) -> _Difference | None:
        """From the last copy; None: a whole one is better."""
        if self._arrays is None or self._arrays[0] is not state.blocks_state:
            return None  # a pool of another size
        if self._arrays[1] is not state.prefixes.entries:
            return None  # the cache was emptied, or a keyframe told of it
        blocks = state.blocks_since(self._starts[-1])
        if len(blocks) > state.num_blocks // 4:  # picking so many takes longer than copying all
            return None
        difference = _Difference.of(state, blocks, self._stretches[-1].sealed)
        since_whole = sum(each.difference.nbytes for each in self._to_whole(len(self._stretches) - 1))
        return difference if since_whole + difference.nbytes < state.pool_nbytes else None

    def _to_whole(self, place: int) -> list[_Stretch]:
        """The stretches with differences that lead to the copy at `place`, oldest first."""
        low = place
        while self._stretches[low].difference is not None:
            low -= 1
        return [self._stretches[at] for at in range(low + 1, place + 1)]

    def at(self, step: int) -> EngineState | None:
        """The state after the last kept record of a step ≤ `step`; None when nothing kept is that old.

        Records that came between two steps belong to the earlier one."""
        place = bisect_right(self._starts, step) - 1
        if place < 0:
            return None
        stretch, state = self._stretches[place], self._restored(place)
        for data in stretch.records[: bisect_right(stretch.steps, step)]:
            record = decode(data)
            assert not isinstance(record, Keyframe)
            state.apply(record)
        return state

    def _restored(self, place: int) -> EngineState:
        stretch = self._stretches[place]
        pool = copied_pool(stretch.state.pool)
        for each in self._to_whole(place):
            each.difference.put_into(pool)

        def own(info: SequenceInfo) -> SequenceInfo:
            live, length = stretch.pieces[id(info)]
            return info.copy(pieces=live[:length])

        return stretch.state.copy_with(own, pool)

    def _trim(self) -> None:
        while self.nbytes > self._budget and len(self._stretches) > 1:
            self._drop(0)
            self.full = True

    def _drop(self, place: int) -> None:
        stretch = self._stretches[place]
        del self._stretches[place], self._starts[place]
        self.nbytes -= stretch.weight + stretch.size
        if place == 0 and self._stretches:
            self._make_whole(self._stretches[0])

    def _make_whole(self, stretch: _Stretch) -> None:
        """The whole copy before it isn't needed any more, but for its pool."""
        if stretch.difference is None:
            return
        stretch.difference.put_into(stretch.state.pool)
        grown = stretch.state.pool_nbytes - stretch.difference.nbytes  # its entries are still held
        stretch.difference = None
        stretch.weight += grown
        self.nbytes += grown
