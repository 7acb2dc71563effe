"""What one phase of a story did, added up from records: columns over its steps, and what became of each request.

Times are seconds on the engine's clock since the phase's first request arrived, so that pauses and slow motion are in
none of them. Only the story's own requests count as requests and tokens; running, waste and blocks are the engine's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from app.headless import Answer, Answers
from engine import records as r
from engine.formulas import Waste, waste_parts

SECOND = 1_000_000_000  # ns
BINS = 48  # of a rate over a phase, at most
_WIDTHS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)  # s of a bin


class Measured:
    """One phase.

    Attributes:
        answers: one a request, by number. groups: the numbers that go by a name.
        foreign: requests of others that came while it ran.
        times, running, used: one entry a step. wastes: of each step. emitted: tokens of the story's own.
        gaps: (time, seconds, number) between two tokens of one request.
        recomputed: tokens computed again. swapped: bytes moved to the host and back. copies: blocks copied on write.
    """

    def __init__(self, groups: dict[str, Collection[int]]):
        self.groups = groups
        self.answers = Answers(number for name, numbers in groups.items() if not name for number in numbers)
        self.foreign = 0
        self.start = 0  # engine clock, ns; 0 = nothing arrived yet
        self.clock = 0  # engine clock of the last record
        self.times: list[float] = []
        self.running: list[int] = []
        self.used: list[int] = []
        self.wastes: list[Waste] = []
        self.emitted: list[int] = []
        self.gaps: list[tuple[float, float, int]] = []
        self.recomputed = 0
        self.swapped = 0
        self.copies = 0
        self._number: dict[int, int] = {}  # by sequence, of the story's own
        self._last: dict[int, int] = {}  # engine clock of a sequence's latest token

    # --- reading ---

    @property
    def ended(self) -> bool:
        return self.answers.left == 0

    @property
    def seconds(self) -> float:
        """Until the last token."""
        last = max((answer.last_token for answer in self.answers.by_number.values()), default=0)
        return max(0, last - self.start) / SECOND

    @property
    def tokens(self) -> int:
        return sum(self.emitted)

    def of(self, group: str) -> list[Answer]:
        """The requests that go by a name; "" = all."""
        return [self.answers.by_number[number] for number in self.groups.get(group, ())]

    def waste(self) -> Waste:
        """Summed over the steps that hold anything."""
        return Waste(*(sum(part) for part in zip(*self.wastes, strict=True))) if self.wastes else Waste(0, 0, 0, 0)

    def rate(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Tokens/s in even bins: (left edges, values)."""
        times = np.array(self.times)
        if not len(times):
            return times, times
        end = float(times[-1])
        width = next((w for w in _WIDTHS if end / w <= BINS), _WIDTHS[-1])
        bins = max(1, int(np.ceil(end / width)))
        place = np.minimum((times / width).astype(int), bins - 1)
        sums = np.bincount(place, weights=np.array(self.emitted, float), minlength=bins)
        spans = np.full(bins, width)
        spans[-1] = max(end - (bins - 1) * width, width / 4)  # the last one is cut off by the end
        return np.arange(bins) * width, sums / spans

    # --- writing ---

    def apply(self, message: r.Message) -> None:
        self.answers.apply(message)
        match message:
            case r.StepRecord():
                self._events(message.events)
                self._step(message)
            case r.Between():
                self._events(message.events)
                self.swapped += message.swapped.bytes if message.swapped else 0
        if isinstance(message, r.StepRecord | r.Between):
            self.clock = message.clock if isinstance(message, r.Between) else message.end_clock

    def _events(self, events: Iterable[r.Event]) -> None:
        for event in events:
            if not isinstance(event, r.Submitted):
                continue
            if event.number in self.answers.by_number:
                self._number[event.seq] = event.number
                self.start = self.start or event.arrival
            else:
                self.foreign += 1

    def _step(self, record: r.StepRecord) -> None:
        if not self.start:
            return
        time = (record.end_clock - self.start) / SECOND
        self.times.append(time)
        self.running.append(max(record.running, len(np.unique(r.unpack(record.rows, r.ROW)["seq"]))))
        self.used.append(record.used)
        size = record.settings.block_size
        self.wastes.append(waste_parts(record.stored, record.used, record.empty, record.gaps, size))
        self.recomputed += record.recomputed
        self.copies += len(r.unpack(record.copies, r.COPY))
        self.swapped += record.swapped.bytes if record.swapped else 0
        seqs = r.unpack(record.emitted, r.TOKEN)["seq"].tolist()
        own = [seq for seq in seqs if seq in self._number]
        self.emitted.append(len(own))
        for seq in set(own):
            if before := self._last.get(seq):
                self.gaps.append((time, (record.end_clock - before) / SECOND, self._number[seq]))
            self._last[seq] = record.end_clock
