"""What happened, step by step: columns of numbers, settings marks, speculative passes, latencies. Bounded, no Qt.

Columns are contiguous numpy slices, ready to be plotted: a buffer of twice the capacity, moved down when full.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.config import MAX_DRAFT, LiveSettings
from engine.records import ACCEPTED, DRAFT, PREFILL, REJECTED, Bound, Serial, StepRecord, unpack
from ui import roofline
from ui.block_lives import BlockLives
from ui.crossover import Crossover
from ui.latency import FinishedRequest, Latency, Samples
from ui.payoff import Verified
from ui.state import Applied, EngineState

BOUNDS: tuple[str, ...] = get_args(Bound)  # Columns.bound is an index into this
OVERLAPPED = "overlapped"
# Columns.overlap is an index into this: steps don't overlap there, it did, or why it didn't
OVERLAPS: tuple[str, ...] = ("", OVERLAPPED, *(why for why in get_args(Serial) if why))
KEPT_PASSES = 2_000
KEPT_MARKS = 2_000

_COLUMNS: dict[str, type] = dict.fromkeys(
    ("step", "start", "clock", "end", "schedule", "draft", "swap", "forward", "sample", "commit", "resident",
     "reads", "pairs"), np.int64
) | dict.fromkeys(
    ("prefill", "decode", "accepted", "rejected", "emitted", "budget", "batch_cap", "gamma", "running", "waiting",
     "used", "cached", "free", "shared", "rows", "recomputed", "wasted", "padded", "logits"), np.int32
) | {"bound": np.uint8, "overlap": np.uint8, "graph": np.bool_}  # fmt: skip


class Mark(NamedTuple):
    """A setting changed; `step` is the first that obeyed it. Keys "engine" and "weights": it was
    started again, with its weights in the same or in another form."""

    step: int
    clock: int  # engine clock, ns
    key: str
    old: object
    new: object


class Pass(NamedTuple):
    """One verification of one sequence's drafts."""

    step: int
    seq: int
    drafts: NDArray  # records.DRAFT, in position order; the resampled or bonus token last
    texts: list[str]  # one a draft


@dataclass(frozen=True, slots=True)
class Columns:
    """A stretch of the history, one entry a step. Times are ns: start monotonic, clock and end engine clock,
    schedule … commit durations. Tokens: prefill, decode (own tokens of decode rows), accepted and rejected
    (drafts kept and not kept; they sum to all that was scheduled), emitted; recomputed: of those
    scheduled, computed before; beside those: wasted, for sequences that had stopped, and padded, to fill a
    graph's shape. Blocks: used, cached, free, shared. resident: RSS of the engine, bytes. What `ui.roofline`
    makes of a step's rows: reads (tokens of context), pairs (query-key), logits (rows)."""

    step: NDArray[np.int64]
    start: NDArray[np.int64]
    clock: NDArray[np.int64]
    end: NDArray[np.int64]
    schedule: NDArray[np.int64]
    draft: NDArray[np.int64]
    swap: NDArray[np.int64]
    forward: NDArray[np.int64]
    sample: NDArray[np.int64]
    commit: NDArray[np.int64]
    resident: NDArray[np.int64]
    reads: NDArray[np.int64]
    pairs: NDArray[np.int64]
    prefill: NDArray[np.int32]
    decode: NDArray[np.int32]
    accepted: NDArray[np.int32]
    rejected: NDArray[np.int32]
    emitted: NDArray[np.int32]
    budget: NDArray[np.int32]
    batch_cap: NDArray[np.int32]
    gamma: NDArray[np.int32]
    running: NDArray[np.int32]
    waiting: NDArray[np.int32]
    used: NDArray[np.int32]
    cached: NDArray[np.int32]
    free: NDArray[np.int32]
    shared: NDArray[np.int32]
    rows: NDArray[np.int32]
    recomputed: NDArray[np.int32]
    wasted: NDArray[np.int32]
    padded: NDArray[np.int32]
    logits: NDArray[np.int32]
    bound: NDArray[np.uint8]
    overlap: NDArray[np.uint8]
    graph: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.step)


class Passes(Sequence[Pass]):
    """The last passes, oldest first. Kept a step at a time; a `Pass` is made when one is asked for."""

    def __init__(self, kept: int = KEPT_PASSES):
        self._kept = kept
        self._steps: deque[tuple[int, NDArray, NDArray, list[str]]] = deque()  # step, drafts, group bounds, texts
        self._count = 0

    def add(self, step: int, drafts: NDArray, bounds: NDArray, texts: list[str]) -> None:
        self._steps.append((step, drafts, bounds, texts))
        self._count += len(bounds) - 1
        while self._count - (oldest := len(self._steps[0][2]) - 1) >= self._kept:
            self._count -= oldest
            self._steps.popleft()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index):
        return list(self)[index]

    def __iter__(self) -> Iterator[Pass]:
        for entry in self._steps:
            yield from self._made(entry)

    def __reversed__(self) -> Iterator[Pass]:
        for entry in reversed(self._steps):
            yield from reversed(self._made(entry))

    def until(self, step: int) -> Iterator[Pass]:
        """Passes of that step and before, newest first."""
        return (p for p in reversed(self) if p.step <= step)

    def _made(self, entry: tuple[int, NDArray, NDArray, list[str]]) -> list[Pass]:
        step, drafts, bounds, texts = entry
        seqs, edges = drafts["seq"].tolist(), bounds.tolist()
        return [
            Pass(step, seqs[low], drafts[low:high], texts[low:high])
            for low, high in itertools.pairwise(edges)
        ]


class History:
    """Columns and latencies of the last `capacity` steps.

    Attributes:
        latency: where latencies are kept; ttft, itl, queue, tpot, e2e and requests are its own.
        marks: changes of settings. passes: the last verified drafts. lives: what became of blocks.
        crossover: what drafting gained, by draft length and batch.
    """

    def __init__(self, capacity: int = 50_000, hides: Callable[[object, object], bool] = lambda old, new: False):
        """`hides`: whether a change of γ is nobody's wish, and gets no mark."""
        self.capacity = capacity
        self._hides = hides
        self._unmarked: list[Mark] = []  # changes of γ that are nobody's wish
        self._buffers = {name: np.zeros(1024, kind) for name, kind in _COLUMNS.items()}
        # tokens examined and accepted at each draft position
        self._examined = np.zeros((1024, MAX_DRAFT), np.uint16)
        self._accepted = np.zeros((1024, MAX_DRAFT), np.uint16)
        self._lengths = np.zeros((1024, MAX_DRAFT + 1), np.uint16)  # passes that accepted 0, 1, … tokens
        self._low = self._high = 0
        self.latency = Latency()
        self.lives = BlockLives()
        self.marks: list[Mark] = []
        self._most_marks = KEPT_MARKS
        self.passes = Passes()
        self.crossover = Crossover()

    def __len__(self) -> int:
        return self._high - self._low

    def keep(self, share: float) -> None:
        """Hold only this share of what is usually kept."""
        self.capacity = max(1, int(share * self.capacity))
        self._most_marks = max(1, int(share * KEPT_MARKS))
        self.passes = Passes(max(1, int(share * KEPT_PASSES)))
        self.latency.keep(share)
        self.lives.keep(share)

    @property
    def full(self) -> bool:
        """The oldest step falls out for the next."""
        return len(self) >= self.capacity

    @property
    def ttft(self) -> Samples:
        return self.latency.ttft

    @property
    def itl(self) -> Samples:
        return self.latency.itl

    @property
    def queue(self) -> Samples:
        return self.latency.queue

    @property
    def tpot(self) -> Samples:
        return self.latency.tpot

    @property
    def e2e(self) -> Samples:
        return self.latency.e2e

    @property
    def requests(self) -> deque[FinishedRequest]:
        return self.latency.requests

    @property
    def first(self) -> int:
        """The oldest kept step, 0 when there is none."""
        return int(self._buffers["step"][self._low]) if len(self) else 0

    @property
    def last(self) -> int:
        return int(self._buffers["step"][self._high - 1]) if len(self) else 0

    # --- reading ---

    def slice(self, low: int | None = None, high: int | None = None) -> Columns:
        """Steps low..high, both within; None = from the first, to the last."""
        start, stop = self._places(low, high)
        return Columns(**{name: buffer[start:stop] for name, buffer in self._buffers.items()})

    def since(self, clock: int, until: int | None = None) -> Columns:
        """Steps that ended after `clock`, up to and with `until`, on the engine clock."""
        ends = self._buffers["end"][self._low : self._high]
        start = self._low + int(np.searchsorted(ends, clock, "right"))
        stop = self._high if until is None else self._low + int(np.searchsorted(ends, until, "right"))
        return Columns(**{name: buffer[start:stop] for name, buffer in self._buffers.items()})

    def acceptance(self, window: int = 200, step: int | None = None) -> tuple[NDArray, NDArray]:
        """Drafted tokens (examined, accepted) by draft position, over the `window` steps up to `step`.
        Both have MAX_DRAFT entries; examined leaves out what was discarded after a rejection."""
        _, stop = self._places(None, step)
        start = max(self._low, stop - window)
        return self._examined[start:stop].sum(0, np.int64), self._accepted[start:stop].sum(0, np.int64)

    def verified(self, low: int, high: int) -> Verified:
        """What became of drafts in the steps low..high, both within."""
        start, stop = self._places(low, high)
        kept = self._examined, self._accepted, self._lengths
        return Verified(*(buffer[start:stop].sum(0, np.int64) for buffer in kept))

    def _places(self, low: int | None, high: int | None) -> tuple[int, int]:
        steps = self._buffers["step"][self._low : self._high]
        start = 0 if low is None else int(np.searchsorted(steps, low, "left"))
        stop = len(steps) if high is None else int(np.searchsorted(steps, high, "right"))
        return self._low + start, self._low + max(start, stop)

    # --- writing ---

    def add(self, record: StepRecord, state: EngineState, done: Applied) -> None:
        """Take one step; `state` is the moment after it and `done` what applying it did."""
        if self._high == len(self._buffers["step"]):
            self._make_room()
        place, timing, settings = self._high, record.timing, record.settings
        prefill, own, drafted, accepted, emitted, rows = _totals(done.rows)
        reads, pairs, logits = roofline.sums(done.rows, prefill, drafted)
        values = (
            record.step, record.start, record.clock, record.end_clock,
            timing.schedule, timing.draft, timing.swap, timing.forward, timing.sample, timing.commit,
            state.memory.resident if state.memory else 0, reads, pairs,
            prefill, own, accepted, drafted - accepted, emitted,
            record.budget.tokens, settings.max_batch,
            settings.draft_length if settings.draft_method != "off" else 0,
            record.running, record.waiting, record.used, record.cached, record.free, state.shared, rows,
            record.recomputed, record.wasted, record.padded, logits, BOUNDS.index(record.bound),
            OVERLAPS.index(OVERLAPPED if record.overlapped else record.serial), record.graph,
        )  # fmt: skip
        for buffer, value in zip(self._buffers.values(), values, strict=True):
            buffer[place] = value
        self._examined[place] = self._accepted[place] = 0
        self._lengths[place] = 0
        if record.drafts:
            self._drafts(record, place)
        self._high += 1
        self._low = max(self._low, self._high - self.capacity)
        self.latency.add(done, record.clock, record.end_clock)
        self.lives.step(record)
        if not prefill:
            self.crossover.add(settings, own, drafted, emitted, timing.total, timing.draft)

    def _drafts(self, record: StepRecord, place: int) -> None:
        drafts = unpack(record.drafts, DRAFT)
        seqs, verdicts = drafts["seq"], drafts["verdict"]
        starts = np.flatnonzero(seqs[1:] != seqs[:-1]) + 1
        bounds = np.concatenate(([0], starts, [len(drafts)]))
        depth = np.arange(len(drafts)) - np.repeat(bounds[:-1], np.diff(bounds))
        examined = depth[(verdicts == ACCEPTED) | (verdicts == REJECTED)]
        self._examined[place] = np.bincount(examined, minlength=MAX_DRAFT)[:MAX_DRAFT]
        self._accepted[place] = np.bincount(depth[verdicts == ACCEPTED], minlength=MAX_DRAFT)[:MAX_DRAFT]
        kept = np.add.reduceat(verdicts == ACCEPTED, bounds[:-1], dtype=np.int64)
        self._lengths[place] = np.bincount(kept, minlength=MAX_DRAFT + 1)[: MAX_DRAFT + 1]
        self.passes.add(record.step, drafts, bounds, record.draft_text)

    def mark(self, step: int, clock: int, old: LiveSettings, new: LiveSettings) -> None:
        """Note each setting that differs."""
        for f in msgspec.structs.fields(LiveSettings):
            before, after = getattr(old, f.name), getattr(new, f.name)
            if f.name == "draft_length" and before != after:
                if self._hides(before, after):
                    self._unmarked.append(Mark(step, clock, f.name, before, after))
                    del self._unmarked[: -self._most_marks]
                    continue
                before = self.meant(before, step)
            if before != after:
                self.note(Mark(step, clock, f.name, before, after))

    def meant(self, length: int, step: int) -> int:
        """The γ that the user had set at a step where `length` was in force."""
        both = (self._unmarked, (mark for mark in self.marks if mark.key == "draft_length"))
        told, marked = (max((m for m in marks if m.step <= step), key=lambda m: m.step, default=None) for marks in both)
        if length or told is None or told.new or (marked is not None and marked.step >= told.step):
            return length
        return told.old

    def note(self, mark: Mark) -> None:
        self.marks.append(mark)
        del self.marks[: -self._most_marks]

    def _make_room(self) -> None:
        kept = min(len(self), self.capacity - 1)
        low = self._high - kept
        size = min(2 * len(self._buffers["step"]), 2 * self.capacity)
        for name, old in self._buffers.items():
            self._buffers[name] = _moved(old, low, self._high, size)
        self._examined = _moved(self._examined, low, self._high, size)
        self._accepted = _moved(self._accepted, low, self._high, size)
        self._lengths = _moved(self._lengths, low, self._high, size)
        self._low, self._high = 0, kept


def _moved(old: NDArray, low: int, high: int, size: int) -> NDArray:
    new = np.zeros((size, *old.shape[1:]), old.dtype)
    new[: high - low] = old[low:high]
    return new


def _totals(rows: NDArray | None) -> tuple[int, int, int, int, int, int]:
    """Prefill tokens, own decode tokens, drafted, accepted, emitted, rows."""
    if rows is None or not len(rows):
        return 0, 0, 0, 0, 0, 0
    scheduled = rows["scheduled"]
    drafted, accepted = int(rows["drafted"].sum()), int(rows["accepted"].sum())
    everything = int(scheduled.sum())
    prefill = int(scheduled[rows["kind"] == PREFILL].sum())
    return prefill, everything - prefill - drafted, drafted, accepted, int(rows["emitted"].sum()), len(rows)
