"""Sequences that fork from one another when a step is committed: samples from their prompt, beams from other beams.

Who forks refers to its parent's blocks from then on and copies none before it writes (`BlockPool.copy`). It refuses to
know how tokens were chosen, and what ends a sequence that isn't a beam.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Rows

from engine.beam_search import IDLE, BeamStep
from engine.commit import Commit
from engine.group import Group
from engine.records import Event, Hypothesis, Searched
from engine.runner.batch import ScheduledRow
from engine.sampler import Outcome
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.texts import Texts


class Forking:
    """Events go to `events`, a list shared with the engine."""

    def __init__(self, scheduler: Scheduler, texts: Texts, events: list[Event]):
        self._scheduler = scheduler
        self._texts = texts
        self._events = events

    def samples(self, group: Group, outcomes: Mapping[int, Outcome], done: Commit) -> None:
        """The first has computed the prompt and still holds it: the others join it, each with a token of its own."""
        parent, *others = group.lanes
        parent.group = None
        for sample in others:
            sample.group = None
            self._scheduler.fork(sample, parent, parent.prompt_tokens)
            done.put_forked(sample, outcomes[sample.seq])

    def beams(
        self, group: Group, step: BeamStep, rows: Rows[ScheduledRow], outcomes: Mapping[int, Outcome], done: Commit
    ) -> None:
        """Beams that go on stay where they are and come first, for others may continue them."""
        lanes, row_of = group.lanes, {row.sequence.seq: row for row in rows}
        known, living = len(lanes[0].tokens), len(group.living)
        for lane in sorted(range(len(lanes)), key=lambda lane: (step.parents[lane] != lane, lane)):
            sequence, parent, row = lanes[lane], step.parents[lane], row_of.get(lanes[lane].seq)
            if lane < living:
                assert row is not None
                reach = sequence.computed + row.own
                done.count(sequence, reach)
                self._scheduler.settle([(sequence, sequence.computed + row.stored, reach)])
            if parent not in (lane, IDLE):
                self._beam(sequence, lanes[parent], known)
            if row is not None:
                done.put_lane(row, outcomes[sequence.seq])
            elif parent != IDLE:
                done.put_forked(sequence, outcomes[sequence.seq])
        group.forked = sum(parent != IDLE for parent in step.parents)
        if step.over:
            self._end(group, done)

    def _beam(self, lane: Sequence, parent: Sequence, known: int) -> None:
        self._scheduler.fork(lane, parent, known)
        self._texts.finish(lane.seq)
        self._texts.start(lane.seq, [])
        lane.pieces = [self._texts.append(lane.seq, token)[0] for token in lane.tokens[lane.prompt_tokens :]]

    def _end(self, group: Group, done: Commit) -> None:
        first, search = group.lanes[0], group.search
        assert search is not None
        longest = "length" if first.limit == first.prompt_tokens + first.request.max_tokens else "context"
        found = [
            Hypothesis(
                token_ids=list(h.tokens),
                text=self._texts.whole(h.tokens[: -1 if h.stopped else None]),
                log_probability=h.logprob,
                score=h.score,
                reason="stop" if h.stopped else longest,
            )
            for h in search.hypotheses()
        ]
        self._events.append(Searched(seq=first.seq, number=first.number, found=found))
        done.ended |= dict.fromkeys(group.lanes, "beams")
