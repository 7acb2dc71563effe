"""One sequence as the window knows it: counters, text so far, and what happened to it last.

A plain mutable value; `ui.state` is its only writer. Knows nothing of drawing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.records import SAMPLED, Preempted, SequenceState, Submitted

Piece = tuple[str, int, int]  # text, origin (records.ORIGINS), step

_NO_BLOCKS: NDArray[np.uint32] = np.empty(0, np.uint32)


class LastRow(NamedTuple):
    """What the sequence did in the latest step that it ran in."""

    kind: int  # records.PREFILL or records.DECODE
    scheduled: int
    drafted: int
    accepted: int
    step: int


class SequenceInfo:
    """All of records.SequenceState, and beside it:

    Attributes:
        status: "waiting", "running", "finished" or "aborted".
        admitted: engine clock of the first admission, 0 = not yet.
        pieces: output text, one piece a token, but the piece that a keyframe brought covers many.
        one_each_from: index of the first piece from which on each stands for one token.
        preempted: waits after having run.
        lost: computed tokens that its latest preemption threw away.
        fate: that preemption, whole; None where only a keyframe told of it.
        swapped: tokens that wait in the host pool.
        shadow: it runs again what another came to, without drafts.
        reserved: its table was made for its limit at admission.
        held: the blocks of its table when it last let go of them.
        finish_reason: "" while it lives.
    """

    __slots__ = (
        "accepted", "admitted", "arrival", "beams", "cached_tokens", "computed", "drafted", "fate", "finish_clock",
        "finish_reason", "finish_step", "first_token", "held", "index", "known", "label", "last_token", "limit", "lost",
        "max_tokens", "number", "of", "one_each_from", "pieces", "preempted", "preemptions", "priority", "prompt",
        "prompt_tokens", "reserved", "row", "row_step", "seq", "shadow", "status", "swapped",
    )  # fmt: skip

    def __init__(self, seq: int, number: int = 0, prompt_tokens: int = 0):
        self.seq = seq
        self.number = number
        self.status = "waiting"
        self.prompt_tokens = prompt_tokens
        self.known = prompt_tokens
        self.computed = 0
        self.max_tokens = 0
        self.limit = 0
        self.priority = 0
        self.arrival = 0
        self.admitted = 0
        self.first_token = 0
        self.last_token = 0
        self.cached_tokens = 0
        self.preemptions = 0
        self.drafted = 0
        self.accepted = 0
        self.prompt = ""
        self.label = ""
        self.index = 0
        self.of = 1
        self.beams = 0
        self.shadow = False
        self.pieces: list[Piece] = []
        self.one_each_from = 0
        self.preempted = False
        self.lost = 0
        self.fate: Preempted | None = None
        self.reserved = False
        self.swapped = 0
        self.held = _NO_BLOCKS
        self.finish_reason = ""
        self.finish_step = 0
        self.finish_clock = 0
        self.row: tuple[int, ...] = ()  # the last records.ROW, as a tuple
        self.row_step = 0

    @classmethod
    def submitted(cls, event: Submitted) -> SequenceInfo:
        info = cls(event.seq, event.number, event.prompt_tokens)
        info.max_tokens = event.max_tokens
        info.priority = event.priority
        info.arrival = event.arrival
        info.prompt = event.prompt
        info.label = event.label
        info.index, info.of, info.beams = event.index, event.of, event.beams
        info.shadow = event.shadow
        return info

    def take(self, state: SequenceState, step: int) -> None:
        """Become what a keyframe says, keeping the finer text that is already known."""
        for name in ("number", "status", "prompt_tokens", "known", "computed", "max_tokens", "limit", "priority",
                     "arrival", "first_token", "last_token", "cached_tokens", "preemptions", "drafted", "accepted",
                     "reserved", "swapped", "prompt", "label", "index", "of", "beams", "shadow"):  # fmt: skip
            setattr(self, name, getattr(state, name))
        self.preempted = state.status == "waiting" and state.preemptions > 0
        text = self.text
        if state.output == text:
            return
        rest = state.output.removeprefix(text) if state.output.startswith(text) else state.output
        kept = self.pieces if state.output.startswith(text) else []
        # a new list: snapshots hold on to the old one
        self.pieces = [*kept, (rest, SAMPLED, step)]
        self.one_each_from = len(self.pieces)

    @property
    def text(self) -> str:
        """The output so far."""
        return "".join([piece[0] for piece in self.pieces])

    @property
    def output_tokens(self) -> int:
        return self.known - self.prompt_tokens

    @property
    def last_row(self) -> LastRow | None:
        if not self.row:
            return None
        _, kind, scheduled, _, _, drafted, accepted, _ = self.row
        return LastRow(kind, scheduled, drafted, accepted, self.row_step)

    def text_between(self, low: int, high: int) -> str | None:
        """The text of token positions low..high-1; None where their text is not known token by token.

        The prompt's text is known as a whole only, so positions inside it have none.
        """
        first = self.known - (len(self.pieces) - self.one_each_from)  # position of the first told piece
        if high <= first or low >= self.known:
            return None
        start = self.one_each_from + max(low, first) - first
        stop = self.one_each_from + min(high, self.known) - first
        return "".join([piece[0] for piece in self.pieces[start:stop]])

    def end(self, status: str, reason: str, step: int, clock: int, tail: str = "") -> None:
        """Finished or aborted; `tail` is text that was held back until now and belongs to the last token."""
        self.status, self.finish_reason, self.finish_step, self.finish_clock = status, reason, step, clock
        self.preempted = False
        if tail:
            text, origin, at = self.pieces[-1] if self.pieces else ("", SAMPLED, step)
            self.pieces = [*self.pieces[:-1], (text + tail, origin, at)]  # new: snapshots hold on to the old one

    def copy(self, pieces: list[Piece] | None = None) -> SequenceInfo:
        """A copy that shares nothing that changes; `pieces` is taken as it is when given."""
        twin = SequenceInfo.__new__(SequenceInfo)
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.pieces = self.pieces.copy() if pieces is None else pieces
        return twin
