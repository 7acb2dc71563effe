"""The engine's heart: one step = propose drafts, schedule, run the model, sample, commit, and say what changed.

What is asked between steps is `serving`'s business. Single-threaded, without I/O, waiting for nobody: the same calls in
the same order give the same tokens. Records are a by-product of the mutations, never a second computation of the state;
`keyframe` and `check` alone read the structures themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine import records
from engine.branching import Decided, decide, sample_row
from engine.budget import work_of
from engine.commit import Commit
from engine.forking import Forking
from engine.keyframe import take_keyframe
from engine.overlap import Flight, as_if_done, could_preempt, could_run, needs_host, sources
from engine.prefix_log import PrefixLog
from engine.records import (
    Between,
    Event,
    Finished,
    Keyframe,
    Memory,
    Serial,
    StepBudget,
    StepRecord,
    Timing,
)
from engine.requests import RequestRefused
from engine.runner.batch import ScheduledRow, pack
from engine.scheduler import Plan
from engine.sequence import Sequence
from engine.serving import Serving
from engine.watch import Seen

if TYPE_CHECKING:
    from engine.runner.launch import Launcher

__all__ = ["Engine", "RequestRefused"]

_MEMORY_EVERY = 250_000_000  # ns; reading the process's memory costs a system call


class Engine(Serving):
    """`launcher`: of passes of the runner, so that a step is begun while the one before it runs; None: each ends before
    the next begins."""

    def __init__(self, *args, launcher: Launcher | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self._prefixes = PrefixLog(self.pool, self.texts)
        self._forking = Forking(self.scheduler, self.texts, self._events)
        self._launcher = launcher
        self._why: Serial = "idle" if launcher is not None else ""  # the coming step doesn't overlap
        self._told = self.settings, self._budget()  # as the last record said
        self._memory: Memory | None = None  # the last sample

    @property
    def has_work(self) -> bool:
        queued = self.scheduler.running or self.scheduler.waiting or self.scheduler.shadows
        return bool(queued) or self._flight is not None

    # --- a step ---

    def step(self, alone: bool = False) -> StepRecord:
        """End one step: the one that runs already, or one begun now. Where steps overlap, the step after it is begun
        before, unless this one shall be `alone`. If the runner or the sampler fails, neither was: their rows can run
        again."""
        started = self._monotonic()
        flight, self._flight = self._flight, None
        if flight is None:
            flight = self._begin(started)
        if self._launcher is not None:
            began = self._monotonic()
            self._why = "stepping" if alone else self._follow(flight)
            flight.schedule += self._monotonic() - began
        return self._end(flight, started)

    def drain(self) -> StepRecord | None:
        """End the step that runs, if any, and begin none."""
        if self._flight is None:
            return None
        record, self._why = self.step(alone=True), "command"
        return record

    def _begin(self, started: int) -> Flight:
        self.pool.at(self.last_step + 1, started - self._held)
        self.scheduler.step_aside()
        self._drafting.propose(self.scheduler.running)
        proposed = self._monotonic()
        flight = self._plan()
        flight.serial = self._why
        scheduled = swapped = self._monotonic()
        try:
            if self._copier.run(self.runner):
                swapped = self._monotonic()
            if self._launcher is not None:
                flight.needs = self._needs_host([row.sequence for row in flight.plan.rows])
            if self._launcher is None or flight.needs or not flight.plan.rows:
                flight.batch = pack(flight.plan.rows, self.pool.block_size) if flight.plan.rows else None
                flight.logits = self.runner.execute(flight.batch) if flight.batch else None
            else:
                self._launch(flight, [])
            flight.forwarded = self._monotonic()
        except BaseException:
            self._give_up(flight)
            raise
        flight.draft, flight.schedule, flight.swap = proposed - started, scheduled - proposed, swapped - scheduled
        return flight

    def _plan(self) -> Flight:
        budget = self._budget()
        plan = self.scheduler.schedule(budget.tokens)
        for sequence in plan.admitted:
            self._resolve(sequence)
        for sequence in plan.turned_away:
            self._turn_away(sequence)
        return Flight(plan, budget)

    def _follow(self, flight: Flight) -> Serial:
        """Begin the step after `flight`, whose tokens aren't known yet, or say why not."""
        if flight.pending is None:
            return flight.needs or "idle"
        if needs := self._needs_host(could_run(self.scheduler)):
            return needs
        self.pool.at(self.last_step + 2, self.now())
        with as_if_done(self.scheduler, flight.plan.rows):
            if trouble := could_preempt(self.scheduler):
                return trouble
            following = self._plan()
            if not following.plan.rows:
                return "blocks" if self.scheduler.waiting else "idle"
            try:
                self._copier.run(self.runner)
                self._launch(following, flight.asked)
            except Exception:  # what doesn't fit beside the step that runs is tried again after it
                for row in following.plan.rows:
                    self.scheduler.tidy(row.sequence)
                return "failure"
        following.overlapped = True
        self._flight = following
        self.pool.at(self.last_step + 1, self.now())
        return ""

    def _launch(self, flight: Flight, before: list[ScheduledRow]) -> None:
        """`before`: rows of the step that runs which will have chosen a token."""
        assert self._launcher is not None
        rows = flight.plan.rows
        flight.batch = pack(rows, self.pool.block_size)
        if before:
            flight.batch.sources = sources(flight.batch, rows, before)
        params = [sample_row(row.sequence, []) for row in flight.asked]
        flight.pending = self._launcher.launch(flight.batch, params)

    def _needs_host(self, sequences: list[Sequence]) -> Serial:
        """Why the tokens before a step with these sequences have to be on the host; "" if they needn't."""
        proposer = self._drafting.proposer
        if proposer is not None and (self.settings.draft_length or proposer.watches):
            return "drafts"
        if self._watch.seq is not None:
            return "watch"
        return "shadow" if self.scheduler.shadow is not None else needs_host(sequences, self.settings)

    def _give_up(self, *flights: Flight) -> None:
        """They were not: their blocks go back, but for what their sequences can run again with."""
        for flight in flights:
            for row in flight.plan.rows:
                self.scheduler.tidy(row.sequence)
        while len(self.scheduler.running) > self.settings.max_batch:  # places of sequences that didn't end after all
            self.scheduler.preempt(self.scheduler.running[-1], "max_batch")

    def _end(self, flight: Flight, started: int) -> StepRecord:
        plan, batch, logits, asked = flight.plan, flight.batch, flight.logits, flight.asked
        try:
            if flight.pending is None:
                decided = decide(self.sampler, logits, asked, self._drafting.q, self._drafting.rule)
            else:
                decided = flight.landed()
                flight.forwarded = self._monotonic()
        except BaseException:
            following, self._flight = self._flight, None
            self._give_up(*(each for each in (following, flight) if each is not None))
            raise
        sampled = self._monotonic()
        self.last_step += 1
        wasted = flight.drop_stopped() if flight.pending is not None else 0
        self._drafting.see(asked, decided.outcomes, self.runner)
        looked_at = asked if flight.pending is None else []
        seen = self._watch.look(looked_at, [decided.outcomes[row.sequence.seq] for row in looked_at], logits)
        done = self._commit(plan, decided, sampled - self._held)
        self._shadows.see(done.rows, started - self._held, done.now)
        record = self._record(flight, done, seen, wasted, started, sampled)
        if batch:
            timing = record.timing
            self._auto.learn(work_of(batch), timing.total - timing.swap)  # copies say nothing of tokens
            self._drafting.took(timing, len(batch.tokens), len(batch.logit_index))
        return record

    def _record(self, flight: Flight, done: Commit, seen: Seen, wasted: int, started: int, sampled: int) -> StepRecord:
        """What the step changed, handed out once. `started`, `sampled`: monotonic ns, when it began and when its tokens
        were decided."""
        plan, batch, budget = flight.plan, flight.batch, flight.budget
        memory = self._sample_memory()
        blocks, tables, copies, host, events = self._drain(budget)
        sealed, sealed_text = self._prefixes.drain(events)
        rows = records.pack(done.rows, records.ROW)
        emitted = records.pack(done.emitted, records.TOKEN)
        drafts = records.pack(done.drafts, records.DRAFT)
        timing = Timing(
            draft=flight.draft,
            schedule=flight.schedule,
            swap=flight.swap,
            forward=flight.forwarded - started - flight.draft - flight.schedule - flight.swap,
            sample=sampled - flight.forwarded,
            commit=self._monotonic() - sampled,
        )
        return StepRecord(
            v=records.SCHEMA,
            step=self.last_step,
            start=started,
            clock=started - self._held,
            end_clock=done.now,
            timing=timing,
            rows=rows,
            blocks=blocks,
            tables=tables,
            events=events,
            bound=plan.bound,
            running=len(self.scheduler.running),
            waiting=self.scheduler.waiting_count,
            used=self.pool.used_count,
            cached=self.pool.cached_count,
            free=self.pool.free_count,
            emitted=emitted,
            text=done.text,
            drafts=drafts,
            draft_text=done.draft_text,
            settings=self.settings,
            stored=self.pool.stored,
            empty=self.pool.empty,
            gaps=self.scheduler.admission.gaps,
            cache=records.pack(self.pool.take_cache_notes(), records.CACHE),
            copies=copies,
            sealed=sealed,
            sealed_text=sealed_text,
            recomputed=done.recomputed,
            swapped=self._copier.take(),
            host=host,
            budget=budget,
            memory=memory,
            shadows=self._shadows.take(),
            top=seen.top,
            verification=seen.verification,
            overlapped=flight.overlapped,
            serial="" if flight.overlapped else flight.serial,
            wasted=wasted,
            graph=batch is not None and batch.graph,
            padded=batch.padded if batch is not None else 0,
        )

    # --- the state, told ---

    def between(self) -> Between | None:
        """What changed since the last record, while no step runs; None if nothing did."""
        changed = self._events or self.pool.changed or self.host.changed or self._shadows.changed
        if not (changed or self.settings != self._told[0]):
            return None
        memory = self._sample_memory()
        blocks, tables, copies, host, events = self._drain(budget := self._budget())
        sealed, sealed_text = self._prefixes.drain(events)
        return Between(
            v=records.SCHEMA,
            after=self.last_step,
            clock=self.now(),
            blocks=blocks,
            tables=tables,
            events=events,
            running=len(self.scheduler.running),
            waiting=self.scheduler.waiting_count,
            used=self.pool.used_count,
            cached=self.pool.cached_count,
            free=self.pool.free_count,
            settings=self.settings,
            copies=copies,
            swapped=self._copier.take(),
            host=host,
            sealed=sealed,
            sealed_text=sealed_text,
            budget=budget,
            memory=memory,
            shadows=self._shadows.take(),
        )

    def keyframe(self) -> Keyframe:
        """The whole state, read from the structures themselves. It doesn't stand in for records not yet taken."""
        told = self.settings, self._told[1]
        shadows = self._shadows.all()
        return take_keyframe(self.last_step, self.now(), *told, self.scheduler, self._prefixes, self._memory, shadows)

    def check(self) -> None:
        """Assert every invariant, between steps, by counting everything again."""
        self.scheduler.check(self._flight.plan.rows if self._flight is not None else ())
        self._prefixes.check()
        queued = (*self.scheduler.running, *self.scheduler.waiting, *self.scheduler.unborn, *self.scheduler.shadows)
        assert {s.seq for s in queued} == {s.seq for lanes in self._live.values() for s in lanes}
        assert all(self._live.values()) and all(s in self._live[s.number] for s in queued)
        assert self.runner.num_blocks == self.pool.num_blocks
        assert self.runner.block_size == self.pool.block_size == self.settings.block_size
        assert self.runner.host_blocks == self.host.num_blocks
        assert self.scheduler.settings is self.settings

    # --- within ---

    def _budget(self) -> StepBudget:
        """Of a step that would begin now."""
        high = int(self.bounds["token_budget"].high)
        return self._auto.of(self.settings, high, self.scheduler.running, self.scheduler.waiting)

    def _commit(self, plan: Plan, decided: Decided, now: int) -> Commit:
        done, outcomes = Commit(self.texts, self.eos_ids, now), decided.outcomes
        for row in plan.rows:
            sequence = row.sequence
            if not row.wants_logits:
                done.put(row, None)
            elif sequence.group is None or not sequence.request.beams:
                done.put(row, outcomes[sequence.seq])
        self.scheduler.settle(done.reached, self._flight is not None)
        for group in decided.samples:
            self._forking.samples(group, outcomes, done)
        for group, step in decided.searches:
            self._forking.beams(group, step, plan.rows, outcomes, done)
        self.scheduler.end(done.ended)
        for sequence, reason in done.ended.items():
            self._shadows.finished(sequence)
            self._events.append(
                Finished(
                    seq=sequence.seq,
                    number=sequence.number,
                    reason=reason,
                    output_tokens=sequence.output_tokens,
                    tail=self._forget(sequence),
                )
            )
        return done

    def _sample_memory(self) -> Memory | None:
        """A new sample when the last one is old enough, else None."""
        now = self._monotonic()
        if self._memory is not None and now - self._memory_at < _MEMORY_EVERY:
            return None
        self._memory, self._memory_at = replace(self.runner.memory(), draft=self._drafting.bytes), now
        return self._memory

    def _drain(self, budget: StepBudget) -> tuple[bytes, bytes, bytes, bytes, list[Event]]:
        blocks, tables = self.pool.drain()
        events = self._events[:]
        self._events.clear()
        self._told = self.settings, budget
        host = self.host.drain().tobytes() if self.host.changed else b""
        copies = records.pack(self.pool.take_copy_notes(), records.COPY)
        return blocks.tobytes(), records.pack(tables, records.TABLE), copies, host, events
