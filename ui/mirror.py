"""The window's model of the engine. The single writer is `Mirror.apply(message)`. Numpy, no Qt.

Live state, history, and the past rebuilt on demand. A reader that lost records is told so (`gaps`); an engine
that was started again goes on after the last step of the one before, so that one axis carries both.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from engine.config import LiveSettings
from engine.records import (
    Ack,
    Between,
    Compiled,
    Died,
    Ended,
    Gap,
    Keyframe,
    Loading,
    Message,
    Notice,
    Ready,
    Refused,
    Status,
    StepRecord,
)
from ui import explain
from ui.alternation import Alternation
from ui.branches import Branches
from ui.changes import Kinds
from ui.history import History, Mark
from ui.roofline import Roofs
from ui.snapshots import BUDGET, Snapshots
from ui.state import EngineState
from ui.verification import Told, read

DRAFT_KEYS = ("draft_method", "draft_model", "draft_layers")  # say which draft it is
KEPT_ACKS = 256
KEPT_NOTICES = 100
KEPT_GAPS = 1_000
_RUNNING = Status(paused=False, delay=0.0, idle=True)
_STATE = Kinds.BLOCKS | Kinds.TABLES | Kinds.QUEUE | Kinds.TOKENS | Kinds.MEMORY | Kinds.SETTINGS


class Mirror:
    """All that the window knows.

    Attributes:
        live: the latest moment. history: what led to it. branches: requests with several lanes. roofs: over its steps.
        ready: what the engine said when it was up; None while it starts.
        loading: the latest progress before that.
        died: why the engine is gone; None while it lives. ended: it ended in good order.
        notices: Notice and Refused messages, oldest first, and the notices of Ready.
        acks: answers to commands by id, the last KEPT_ACKS.
        draft_refused: the last refusal of a draft, until another one is in force.
        alternation: γ that goes to 0 and back so that what drafting gains can be measured.
        gaps: (first, last) steps whose records were lost, the last KEPT_GAPS times.
        verification: the last one of the sequence that is watched.
        drift: blocks in which a keyframe contradicted the records before it; 0 unless something is broken.
    """

    def __init__(self, capacity: int = 50_000, budget: int = BUDGET):
        self.live = EngineState()
        self.alternation = Alternation()
        self.history = History(capacity, self.alternation.hides)
        self.branches = Branches()
        self.roofs = Roofs()
        self.ready: Ready | None = None
        self.status = _RUNNING
        self.loading: Loading | None = None
        self.died: Died | None = None
        self.ended = False
        self.notices: list[Notice | Refused] = []
        self.acks: dict[int, Ack] = {}
        self.draft_refused: Ack | None = None
        self.gaps: list[tuple[int, int]] = []
        self.verification: Told | None = None
        self.drift = 0
        self._snapshots = Snapshots(budget)
        self._offset = 0  # added to the engine's step numbers, see _rebase
        self._rebase_due = False
        self._whole = False  # the live state is complete: a keyframe came, and no gap since

    # --- reading ---

    @property
    def settings(self) -> LiveSettings | None:
        """In force now."""
        return self.live.settings or (self.ready.settings if self.ready else None)

    @property
    def first_step(self) -> int:
        """The oldest step whose state can be shown, and what led to it."""
        kept = self._snapshots.first_step
        return max(kept, self.history.first) if self.history.full else kept

    @property
    def last_step(self) -> int:
        return self.live.step

    @property
    def nbytes(self) -> int:
        """Bytes held for time travel."""
        return self._snapshots.nbytes

    def state_at(self, step: int) -> EngineState:
        """The moment after `step`, exact; inside a gap the last one known before it. `state.step` tells which.
        A step older than all that is kept gives the oldest."""
        if step >= self.live.step:
            return self.live
        return self._snapshots.at(max(step, self.first_step)) or self.live

    @property
    def full(self) -> dict[str, bool]:
        """Whether each history holds all that it ever will, so that what comes pushes the oldest out."""
        history = self.history
        return {"steps": history.full, "requests": history.latency.full, "past": self._snapshots.full}

    # --- writing ---

    def keep(self, share: float) -> None:
        """Hold only this share of what is usually kept, 0 to 1. Before anything came."""
        assert not len(self.history)
        self.history.keep(share)
        self._snapshots.keep(share)

    def apply_all(self, messages: Iterable[Message]) -> Kinds:
        kinds = Kinds.NONE
        for message in messages:
            kinds |= self.apply(message)
        return kinds

    def apply(self, message: Message) -> Kinds:
        """Take one message; returns what it changed."""
        if isinstance(message, StepRecord):
            return self._step(message)
        if isinstance(message, Between):
            return self._between(message)
        if isinstance(message, Keyframe):
            return self._keyframe(message)
        if isinstance(message, Ready):
            return self._ready(message)
        if isinstance(message, Ack):
            self.acks[message.id] = msgspec.structs.replace(message, step=message.step + self._offset)
            while len(self.acks) > KEPT_ACKS:
                del self.acks[next(iter(self.acks))]
            if not message.ok and message.key in DRAFT_KEYS:
                self.draft_refused = message
            if message.limits is not None and self.ready is not None:
                self.ready = msgspec.structs.replace(self.ready, limits=message.limits)
            # that a request was taken changes nothing that is shown: its event does
            quiet = message.ok and message.settings is None and message.limits is None
            return Kinds.NONE if quiet else Kinds.SOURCE | Kinds.SETTINGS
        if isinstance(message, Gap):
            self.gaps.append((message.first + self._offset, message.last + self._offset))
            del self.gaps[:-KEPT_GAPS]
            self._whole = False
            return Kinds.SOURCE
        return self._word(message)

    def _word(self, message: Message) -> Kinds:
        if isinstance(message, Status):
            self.status = message
        elif isinstance(message, Loading):
            self.loading = message
        elif isinstance(message, Notice | Refused):
            self.notices.append(message)
            del self.notices[:-KEPT_NOTICES]
        elif isinstance(message, Compiled):
            self._compiled(message)
        elif isinstance(message, Died):
            self.died = message
        elif isinstance(message, Ended):
            self.ended = True
        return Kinds.SOURCE

    def _compiled(self, told: Compiled) -> None:
        """Leaves a mark, as it explains a slow step."""
        words = explain.compiled(told)
        self.history.note(Mark(told.step + self._offset, told.clock, "compiled", None, words))
        self.notices.append(Notice(message=f"Step {told.step + self._offset:,} waited: {words}.", level="info"))
        del self.notices[:-KEPT_NOTICES]

    def _ready(self, ready: Ready) -> Kinds:
        again, known = self.live.step > 0 or self.ready is not None, self.ready
        self.ready, self.loading, self.died, self.ended = ready, None, None, False
        self.draft_refused = None
        if known is not None and known.model != ready.model:
            self.history.crossover.reset()
        self.status = msgspec.structs.replace(_RUNNING, paused=ready.config.start_paused)
        self.notices += [Notice(message=text) for text in ready.notices]
        del self.notices[:-KEPT_NOTICES]
        before = self.live
        self.live = EngineState(ready.settings.kv_blocks, ready.block_size, ready.settings)
        self.live.step, self.live.clock = before.step, before.clock
        self.history.lives.start(self.live.num_blocks)
        self.branches.restart()
        self.roofs.start(before.step + 1, ready.roof)
        self.verification = None
        self._rebase_due, self._whole = again, False
        if again:
            self.history.note(Mark(before.step + 1, before.clock, *_again(known, ready)))
            self._snapshots.start(self.live)
        return Kinds.ALL

    def _rebase(self, step: int) -> None:
        """An engine that was started again may count from 1: go on after the last step shown."""
        if self._rebase_due:
            self._offset = 0 if step >= self.live.step else self.live.step
            self._rebase_due = False

    def _step(self, record: StepRecord) -> Kinds:
        self._rebase(record.step - 1)
        if self._offset:
            record = msgspec.structs.replace(record, step=record.step + self._offset)
        done = self.live.apply(record)
        if done.settings:
            self.history.mark(record.step, record.clock, *done.settings)
            self._follow_settings(*done.settings)
        self.history.add(record, self.live, done)
        self.branches.step(record)
        if record.verification is not None:
            self.verification = read(record)
        if self.history.full:
            self._snapshots.forget(before=self.history.first)
        self._snapshots.add(record, self.live)
        return done.kinds

    def _between(self, record: Between) -> Kinds:
        self._rebase(record.after)
        if self._offset:
            record = msgspec.structs.replace(record, after=record.after + self._offset)
        done = self.live.apply(record)
        if done.settings:
            self.history.mark(record.after + 1, record.clock, *done.settings)
            self._follow_settings(*done.settings)
        self.history.latency.add(done, record.clock, record.clock)
        self.history.lives.between(record)
        self.branches.events(record.events, record.after)
        self._snapshots.add(record, self.live)
        return done.kinds

    def _follow_settings(self, old: LiveSettings, new: LiveSettings) -> None:
        self._follow_block_size()
        if any(getattr(old, key) != getattr(new, key) for key in DRAFT_KEYS):
            self.draft_refused = None

    def _follow_block_size(self) -> None:
        if self.ready is not None and self.ready.block_size != self.live.block_size:
            self.ready = msgspec.structs.replace(self.ready, block_size=self.live.block_size)

    def _keyframe(self, frame: Keyframe) -> Kinds:
        self._rebase(frame.step)
        if self._offset:
            frame = msgspec.structs.replace(frame, step=frame.step + self._offset)
        old = self.live.settings
        differing = self.live.take(frame)
        self._follow_block_size()
        if self._whole:
            self.drift += differing
        elif old is not None and old != frame.settings:
            self.history.mark(frame.step, frame.clock, old, frame.settings)
        if not self._whole or differing:
            self._snapshots.start(self.live)
            self.history.lives.follow(frame)
        self._whole = True
        return _STATE


def _again(known: Ready | None, ready: Ready) -> tuple[str, object, object]:
    """What the mark of another start says: key, old, new."""
    old, new = known.model.dtype if known else ready.model.dtype, ready.model.dtype
    return ("engine", None, "restarted") if old == new else ("weights", old, new)
