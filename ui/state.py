"""One moment of the engine: pool, tables, sequences, queues, settings. Numpy, no Qt.

`apply` is exact: a state made from a keyframe plus the records after it equals the next keyframe. Live and
rebuilt states are the same class. Knows nothing of history; what a record did beyond the state (first tokens,
gaps between tokens, ends of sequences) is handed back as `Applied` for whoever keeps that.
"""

from __future__ import annotations

import struct
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.config import LiveSettings
from engine.records import (
    ROW,
    SAMPLED,
    TABLE,
    TOKEN,
    Aborted,
    Admitted,
    Between,
    Dropped,
    Event,
    Finished,
    Forked,
    Keyframe,
    Memory,
    Preempted,
    Searched,
    ShadowState,
    StepBudget,
    StepRecord,
    Submitted,
    unpack,
)
from ui.blocks import ARRAYS, Blocks
from ui.changes import Kinds
from ui.host_blocks import HostBlocks
from ui.prefixes import Prefixes
from ui.sequences import SequenceInfo
from ui.tables import Tables

_ROW = struct.Struct("<IBIIIHHH")  # records.ROW: faster than numpy's tolist of all its columns
assert _ROW.size == ROW.itemsize
Pool = dict[str, NDArray]  # by attribute: one entry a block
RECENT = 64  # finished sequences that stay visible: more than a screen of the longest list shows


@dataclass(slots=True)
class Applied:
    """What a record did beyond the state. Clocks are engine clock, ns. Of a shadow nothing is told: nobody waits for
    it, and its times are no request's."""

    kinds: Kinds = Kinds.NONE
    rows: NDArray | None = None  # records.ROW
    admitted: list[SequenceInfo] = field(default_factory=list)  # for the first time
    first: list[SequenceInfo] = field(default_factory=list)  # got their first token
    gaps: list[int] = field(default_factory=list)  # ns between two emissions of one sequence
    gap_seqs: list[int] = field(default_factory=list)
    ended: list[SequenceInfo] = field(default_factory=list)
    settings: tuple[LiveSettings, LiveSettings] | None = None  # old, new


class EngineState(Blocks):
    """One moment; the pool's arrays and counts are `Blocks`.

    Attributes:
        sequences: unfinished ones. `recent`: the last RECENT that ended, oldest first.
        shadows: requests that were run again without drafts, by their own sequence; the oldest first.
        host: the host pool. prefixes: what of the pool a prompt can find.
        gaps: blocks that nobody uses, in rows too short for the reservation that waits next; of the last step.
        running, waiting: both by priority, then arrival, as they are scheduled and admitted.
    """

    def __init__(self, num_blocks: int = 0, block_size: int = 16, settings: LiveSettings | None = None):
        super().__init__(num_blocks)
        self.step = 0
        self.clock = 0
        self.block_size = block_size
        self.settings = settings
        self.budget: StepBudget | None = None  # of the last step; between two, of the one that would be next
        self.memory: Memory | None = None
        self.gaps = 0
        self.tables = Tables()
        self.host = HostBlocks(settings.swap_blocks if settings else 0)
        self.prefixes = Prefixes(num_blocks)
        self.sequences: dict[int, SequenceInfo] = {}
        self.recent: dict[int, SequenceInfo] = {}
        self.shadows: dict[int, ShadowState] = {}
        self.running: list[int] = []
        self.waiting: list[int] = []

    def table(self, seq: int) -> NDArray[np.uint32]:
        """The sequence's block ids in logical order; a view, empty where it holds none."""
        return self.tables.get(seq)

    @property
    def table_seqs(self) -> list[int]:
        return self.tables.seqs

    def info(self, seq: int) -> SequenceInfo | None:
        """A live sequence, or one that ended not long ago."""
        return self.sequences.get(seq) or self.recent.get(seq)

    def sharers(self, block: int) -> list[tuple[int, int]]:
        """(sequence, logical index) of every table entry that is this block. Searches all tables."""
        return self.tables.find(block)

    # --- records ---

    def apply(self, record: StepRecord | Between) -> Applied:
        done = Applied()
        stepped = isinstance(record, StepRecord)
        if stepped:
            self.step = record.step
        self.clock = end = record.end_clock if stepped else record.clock
        for event in record.events:
            if not isinstance(event, Searched | Finished | Aborted):
                self._begin(event, record.clock, done)
        self._settings(record.settings, done)
        self.budget = record.budget
        if record.blocks:
            self.change_blocks(record.blocks, self.step)
            done.kinds |= Kinds.BLOCKS
        if record.copies:
            self.take_copies(record.copies, self.step)
        if stepped:
            self.gaps = record.gaps
            if record.cache:
                self.take_hits(record.cache, self.step)
        if record.host:
            self.host.change(record.host)
            done.kinds |= Kinds.BLOCKS
        if record.sealed:
            self.prefixes.change(record.sealed, record.sealed_text)
            done.kinds |= Kinds.BLOCKS
        self._tables(record.tables, done)
        if stepped:
            self._rows(record, end, done)
        for event in record.events:
            if isinstance(event, Finished | Aborted):
                self._end(event, end, done)
            elif isinstance(event, Searched) and (info := self.sequences.get(event.seq)) is not None:
                # what it found takes the place of what its lane came to
                info.pieces, info.one_each_from = [(event.found[0].text, SAMPLED, self.step)], 1
                info.known = info.prompt_tokens + len(event.found[0].token_ids)
                done.kinds |= Kinds.TOKENS
        if record.shadows:
            self._compare(record.shadows)
            done.kinds |= Kinds.TOKENS
        if record.memory is not None:
            self.memory = record.memory
            done.kinds |= Kinds.MEMORY
        self.used, self.cached, self.free = record.used, record.cached, record.free
        if record.events:
            done.kinds |= Kinds.QUEUE
        return done

    def _settings(self, settings: LiveSettings, done: Applied) -> None:
        if settings != self.settings:
            if self.settings is not None:
                done.settings = (self.settings, settings)
            self.settings = settings
            self.block_size = settings.block_size
            done.kinds |= Kinds.SETTINGS
        if settings.kv_blocks != self.num_blocks:
            self.resize_blocks(settings.kv_blocks, self.step)
            self.prefixes.resize(settings.kv_blocks)
            done.kinds |= Kinds.BLOCKS
        if settings.swap_blocks != self.host.num_blocks:
            self.host.resize(settings.swap_blocks)
            done.kinds |= Kinds.BLOCKS

    def _tables(self, buffer: bytes, done: Applied) -> None:
        if buffer:
            for seq, held in self.tables.apply(unpack(buffer, TABLE)):
                if info := self.info(seq):
                    info.held = held
            done.kinds |= Kinds.TABLES

    def _rows(self, record: StepRecord, end: int, done: Applied) -> None:
        # the window's hottest loop: plain tuples out of the buffers, few attributes a row
        done.kinds |= Kinds.STEPS
        step, get, gaps, gap_seqs = record.step, self.sequences.get, done.gaps, done.gap_seqs
        done.rows = unpack(record.rows, ROW)
        info = None
        for row in _ROW.iter_unpack(record.rows):
            seq, _, _, computed, known, drafted, accepted, emitted = row
            info = get(seq)
            if info is None:
                continue
            info.row = row
            info.row_step = step
            info.computed = computed
            info.known = known
            if drafted:
                info.drafted += drafted
                info.accepted += accepted
            if emitted:
                if info.first_token:
                    gaps.append(end - info.last_token)
                    gap_seqs.append(seq)
                else:
                    info.first_token = end
                    done.first.append(info)
                info.last_token = end
        if len(done.rows) == 1 and info is not None and info.shadow:  # which always runs alone
            done.first, done.gaps, done.gap_seqs = [], [], []
        if record.emitted:
            tokens, last, append = unpack(record.emitted, TOKEN), -1, None
            for seq, origin, text in zip(tokens["seq"].tolist(), tokens["origin"].tolist(), record.text, strict=False):
                if seq != last:
                    info, last = get(seq), seq
                    append = info.pieces.append if info is not None else None
                if append is not None:
                    append((text, origin, step))
            done.kinds |= Kinds.TOKENS
        if record.drafts:
            done.kinds |= Kinds.DRAFTS

    # --- events ---

    def _begin(self, event: Event, clock: int, done: Applied) -> None:
        if isinstance(event, Submitted):
            self.sequences[event.seq] = SequenceInfo.submitted(event)
            self._enqueue(self.waiting, event.seq)
            return
        info = self.sequences.get(event.seq)
        if info is None:
            return
        if isinstance(event, Admitted):
            self.prefixes.ask(event)
            info.status, info.preempted = "running", False
            info.cached_tokens, info.swapped = event.cached_tokens, 0
            info.computed = event.cached_tokens + event.returned
            info.limit, info.reserved = event.limit, event.reserved
            if not info.admitted:
                info.admitted = clock
            if not event.again and not info.shadow:
                done.admitted.append(info)
            _discard(self.waiting, event.seq)
            self._enqueue(self.running, event.seq)
        elif isinstance(event, Forked):
            self._fork(info, event, clock, done)
        elif isinstance(event, Preempted):
            info.status, info.preempted = "waiting", True
            info.computed, info.lost, info.reserved = 0, event.lost, False
            info.swapped, info.fate = event.swapped, event
            info.preemptions += 1
            _discard(self.running, event.seq)
            self._enqueue(self.waiting, event.seq)
        elif isinstance(event, Dropped):
            info.lost, info.swapped = event.lost, 0
            if info.fate is not None:
                why = "the host pool was made smaller" if event.cause == "swap_blocks" else "blocks of another size"
                info.fate = msgspec.structs.replace(info.fate, lost=event.lost, swapped=0, bytes=0, note=why)

    def _fork(self, info: SequenceInfo, event: Forked, clock: int, done: Applied) -> None:
        """It has its parent's text so far and goes on from there; this step's tokens are still to come."""
        info.computed, info.known, info.limit = event.computed, event.known, event.limit
        if event.running and info.status == "waiting":
            info.status, info.admitted = "running", clock
            done.admitted.append(info)
            _discard(self.waiting, event.seq)
            self._enqueue(self.running, event.seq)
        if (parent := self.sequences.get(event.parent)) is not None:
            info.pieces, info.one_each_from = parent.pieces.copy(), parent.one_each_from

    def _enqueue(self, queue: list[int], seq: int) -> None:
        """Both queues are in order of priority, then arrival; sequence numbers are given in order of arrival."""
        if seq not in queue:
            insort(queue, seq, key=lambda s: (self.sequences[s].priority, s))

    def _end(self, event: Finished | Aborted, clock: int, done: Applied) -> None:
        info = self.sequences.pop(event.seq, None)
        _discard(self.running, event.seq)
        _discard(self.waiting, event.seq)
        if info is None:
            return
        if isinstance(event, Finished):
            info.end("finished", event.reason, self.step, clock, event.tail)
        else:
            info.end("aborted", event.reason or "aborted", self.step, clock)
        done.kinds |= Kinds.TOKENS
        if not info.shadow:
            done.ended.append(info)
        self.recent[event.seq] = info
        while len(self.recent) > RECENT:
            del self.recent[next(iter(self.recent))]

    def _compare(self, told: list[ShadowState]) -> None:
        for shadow in told:
            if shadow.seq in self.shadows and self.shadows[shadow.seq].shadow != shadow.shadow:
                del self.shadows[shadow.seq]  # run once more: the newest stand last
            self.shadows[shadow.seq] = shadow
        while len(self.shadows) > RECENT:
            del self.shadows[next(iter(self.shadows))]

    # --- keyframes and copies ---

    @classmethod
    def from_keyframe(cls, frame: Keyframe) -> EngineState:
        state = cls(len(frame.state), frame.block_size, frame.settings)
        state.take(frame)
        return state

    def take(self, frame: Keyframe) -> int:
        """Become what the keyframe says; returns how many blocks differed from it. Times of blocks that agree,
        texts known in finer pieces and recently ended sequences are kept."""
        self.step, self.clock, self.block_size = frame.step, frame.clock, frame.block_size
        self.settings, self.budget = frame.settings, frame.budget
        differing = self.take_blocks(frame)
        self.tables.take(
            np.frombuffer(frame.table_seqs, "<u4"),
            np.frombuffer(frame.table_lengths, "<u4"),
            np.frombuffer(frame.table_blocks, "<u4"),
        )
        self.host.take(frame)
        self.prefixes.take(frame)
        self._take_sequences(frame)
        self.memory = frame.memory or self.memory
        self.shadows = {shadow.seq: shadow for shadow in frame.shadows}
        return differing

    def _take_sequences(self, frame: Keyframe) -> None:
        old, self.sequences = self.sequences, {}
        for told in frame.sequences:
            info = old.get(told.seq) or SequenceInfo(told.seq)
            info.take(told, frame.step)
            self.sequences[told.seq] = info
        self.running, self.waiting = list(frame.running), list(frame.waiting)

    def copy(self) -> EngineState:
        """An independent copy."""
        return self.copy_with(lambda info: info.copy(), copied_pool(self.pool))

    def copy_with(self, copied: Callable[[SequenceInfo], SequenceInfo], pool: Pool) -> EngineState:
        """A copy whose sequences are made by `copied`, and to which these arrays belong."""
        twin = EngineState.__new__(EngineState)
        twin.__dict__.update(self.__dict__)
        twin.__dict__.update({name: pool[name] for name in ARRAYS})
        twin.prefixes = self.prefixes.copy_with(pool["entries"])
        twin.tables = self.tables.copy()
        twin.host = self.host.copy()
        twin.sequences = {seq: copied(info) for seq, info in self.sequences.items()}
        twin.recent = {seq: copied(info) for seq, info in self.recent.items()}
        twin.shadows = self.shadows.copy()
        twin.running, twin.waiting = self.running.copy(), self.waiting.copy()
        return twin

    @property
    def pool(self) -> Pool:
        """All arrays with an entry a block; not copied."""
        return {name: getattr(self, name) for name in ARRAYS} | {"entries": self.prefixes.entries}

    @property
    def pool_nbytes(self) -> int:
        """Bytes of these arrays."""
        return self.blocks_nbytes + self.prefixes.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of what a copy holds beside them, about."""
        infos = len(self.sequences) + len(self.recent)
        return self.tables.nbytes + self.host.nbytes + infos * 600  # an info's slots and its share of numbers


def copied_pool(pool: Pool) -> Pool:
    return {name: array.copy() for name, array in pool.items()}


def _discard(queue: list[int], seq: int) -> None:
    if seq in queue:
        queue.remove(seq)
