"""Follows an engine as the window does and judges what the window would show by keyframes, read from the engine's
own structures.

The mirror under test is fed by step records and what came between them alone: a keyframe is compared and thrown
away, so that it can heal nothing.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from engine.records import (
    CACHED,
    FREE,
    NONE,
    USED,
    Aborted,
    Admitted,
    Between,
    Finished,
    Keyframe,
    Message,
    Preempted,
    StepRecord,
    Submitted,
)
from tests.ui.test_mirror import assert_is
from ui.mirror import Mirror


class Follower:
    """Attributes:
        mirror: fed without keyframes, but for the first.
        compared: keyframes that it was compared with.
        frames: the keyframe of every step that nothing followed before the next step.
        seen: how often things happened, by name: the proof that a run was eventful.
    """

    def __init__(self) -> None:
        self.mirror = Mirror()
        self.compared = 0
        self.frames: dict[int, Keyframe] = {}
        self.seen: Counter[str] = Counter()
        self._latest: StepRecord | Between | None = None
        self._begun = False

    def take(self, message: Message) -> None:
        """Apply one message, or compare with it. AssertionError where the mirror is wrong."""
        if isinstance(message, Keyframe) and self._begun:
            self.compare(message)
            return
        self._begun |= isinstance(message, Keyframe)
        self.mirror.apply(message)
        if isinstance(message, StepRecord | Between):
            self._latest = message
            self._count(message)
            if isinstance(message, Between):
                self.frames.pop(message.after, None)

    def compare(self, frame: Keyframe) -> None:
        assert_is(self.mirror.live, frame)
        if self._latest is not None:
            last = self._latest
            counts = np.bincount(np.frombuffer(frame.state, np.uint8), minlength=3)[[USED, CACHED, FREE]].tolist()
            assert (last.running, last.waiting) == (len(frame.running), len(frame.waiting))
            assert [last.used, last.cached, last.free] == counts
        self.compared += 1
        self.frames[frame.step] = frame

    def _count(self, record: StepRecord | Between) -> None:
        for event in record.events:
            self.seen[type(event).__name__] += 1
            if isinstance(event, Admitted):
                self.seen["cache hits"] += event.cached_tokens > 0
            elif isinstance(event, Preempted):
                self.seen[f"preempted by {event.cause}"] += 1
            elif isinstance(event, Finished):
                self.seen[f"finished by {event.reason}"] += 1
            else:
                assert isinstance(event, Submitted | Aborted)
        live = self.mirror.live
        # taken out of the cache for somebody else: an eviction
        now = (live.since == live.step) & (live.blocks_state == USED) & (live.before != NONE)
        self.seen["evictions"] += int(np.count_nonzero(now & (live.before != live.owner)))
        self.seen["shared"] += live.shared > 0
        if isinstance(record, StepRecord):
            self.seen["steps"] += 1
            self.seen[f"bound by {record.bound}"] += 1
            self.seen["verifications"] += bool(record.drafts)
