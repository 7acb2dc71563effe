"""The engine's heart: one step = propose drafts, schedule, run the model, sample, commit, and say what changed.

It owns the sequences and hands each part its own: the pool and the queues to the scheduler, the model and its K/V to
the runner, choosing tokens to the sampler, text to `texts`. Single-threaded, without I/O, waiting for nobody: the
same calls in the same order give the same tokens. Records are a by-product of the mutations, never a second
computation of the state; `keyframe` and `check` alone read the structures themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine import config, records
from engine.admission import limit_of
from engine.beam_search import BeamSearch
from engine.block_pool import BlockPool
from engine.branching import Decided, decide, sample_row
from engine.budget import AutoBudget, work_of
from engine.commit import Commit
from engine.config import Limit, LiveSettings, SettingRefused
from engine.drafting import Drafting
from engine.forking import Forking
from engine.formulas import blocks_for
from engine.group import Group
from engine.host_pool import HostPool
from engine.keyframe import take_keyframe
from engine.overlap import Flight, as_if_done, could_preempt, could_run, needs_host, sources
from engine.pool_memory import Copier, acquire, release
from engine.prefix_log import PrefixLog
from engine.records import (
    Aborted,
    Between,
    Event,
    Finished,
    Keyframe,
    Memory,
    Request,
    Serial,
    StepBudget,
    StepRecord,
    Submitted,
    Timing,
)
from engine.requests import RequestRefused, check_request, resolve_sampling
from engine.runner.batch import ScheduledRow, pack
from engine.sampler import Sampler
from engine.scheduler import Plan, Scheduler
from engine.sequence import Sequence, sequences_of
from engine.shadow import Shadows
from engine.speculation.proposer import Factory
from engine.texts import NullTexts, Texts
from engine.watch import Watch

if TYPE_CHECKING:
    from engine.runner.base import Runner
    from engine.runner.launch import Launcher

__all__ = ["Engine", "RequestRefused"]

_MEMORY_EVERY = 250_000_000  # ns; reading the process's memory costs a system call


class Engine:
    """`clock` gives monotonic ns; the engine's own clock leaves out what `hold` was told of. `launcher`: of passes of
    the runner, so that a step is begun while the one before it runs; None: each ends before the next begins."""

    def __init__(
        self,
        runner: Runner,
        settings: LiveSettings,
        sampler: Sampler,
        *,
        bounds: dict[str, Limit],
        proposers: Mapping[str, Factory],
        texts: Texts | None = None,
        eos_ids: frozenset[int] = frozenset(),
        seed: int = 0,
        budget: AutoBudget | None = None,
        launcher: Launcher | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ):
        settings = replace(settings, block_size=runner.block_size)
        config.validate(settings, bounds, runner.block_size)
        assert runner.num_blocks == settings.kv_blocks and runner.host_blocks == settings.swap_blocks
        self.runner = runner
        self.settings = settings
        self.sampler = sampler
        self.bounds = bounds
        self.texts: Texts = NullTexts() if texts is None else texts
        self.eos_ids = eos_ids
        self.last_step = 0  # number of the last finished step; 0 = none yet
        self.pool = BlockPool(settings.kv_blocks, runner.block_size)
        self._events: list[Event] = []  # since the last record
        self.host = HostPool(settings.swap_blocks, runner.model.kv_bytes_per_token * runner.block_size)
        self.scheduler = Scheduler(self.pool, self.host, settings, self._events)
        self._prefixes = PrefixLog(self.pool, self.texts)
        self._live: dict[int, list[Sequence]] = {}  # unfinished ones, by request number
        self._last_seq = 0
        self._seed = seed
        self._auto = AutoBudget() if budget is None else budget
        self._drafting = Drafting(proposers, settings, lambda: self._auto.cost.line)
        self._monotonic = clock
        self._held = 0  # ns paused or held back
        self._watch = Watch(sampler, self.texts)
        self._shadows = Shadows(self.texts)
        self._forking = Forking(self.scheduler, self.texts, self._events)
        self._copier = Copier(self.pool, self.host, clock)
        self._launcher = launcher
        self._flight: Flight | None = None  # the step that runs between two calls
        self._why: Serial = "idle" if launcher is not None else ""  # the coming step doesn't overlap
        self._told = settings, self._budget()  # as the last record said
        self._memory: Memory | None = None
        self._memory_at = 0  # monotonic ns of the last sample

    # --- time ---

    def now(self) -> int:
        """The engine clock, ns."""
        return self._monotonic() - self._held

    def hold(self, ns: int) -> None:
        """Leave `ns` that were spent paused or in slow motion out of the engine clock."""
        self._held += ns

    # --- what is asked ---

    def submit(self, number: int, token_ids: list[int], request: Request) -> int:
        """Queue a request; the number of its first sequence, which others of it follow. Raises RequestRefused."""
        if number in self._live:
            raise RequestRefused(f"request {number} is still being served; give each request a number of its own")
        check_request(token_ids, request, self.settings, self.runner.model.vocabulary, self.pool.block_size)
        now, count = self.now(), sequences_of(request)
        lanes = [self._sequence(number, token_ids, request, index, now) for index in range(count)]
        if count > 1 or request.beams:
            group = Group(lanes)
            for lane in lanes:
                lane.group = group
        self.scheduler.add(lanes[0])
        self.scheduler.unborn += lanes[1:]
        self._live[number] = lanes[:]
        if self.settings.simulated_acceptance:
            self._shadows.simulated(lanes)
        for lane in lanes:
            self._announce(lane, count)
        return lanes[0].seq

    def shadow(self, number: int) -> int:
        """Run a request again without drafts while nobody else has work, to compare the two; the number of the
        sequence. Raises RequestRefused."""
        original = self._shadows.original(number, self._live)
        request, token_ids = self._shadows.request(original), original.tokens[: original.prompt_tokens]
        check_request(token_ids, request, self.settings, self.runner.model.vocabulary, self.pool.block_size)
        sequence = self._sequence(request.number, token_ids, request, 0, self.now())
        sequence.shadow = True
        self._shadows.begin(original, sequence)
        self.scheduler.shadows.append(sequence)
        self._live[request.number] = [sequence]
        self._announce(sequence, 1)
        return sequence.seq

    def _announce(self, lane: Sequence, count: int) -> None:
        """Of `count` sequences that serve its request."""
        request = lane.request
        self.texts.start(lane.seq, request.stop)
        self._events.append(
            Submitted(
                seq=lane.seq,
                number=lane.number,
                prompt_tokens=lane.prompt_tokens,
                max_tokens=request.max_tokens,
                priority=request.priority,
                arrival=lane.arrival,
                prompt=request.prompt[: records.PROMPT_SHOWN],
                label=request.label,
                index=lane.index,
                of=count,
                beams=request.beams,
                shadow=lane.shadow,
            )
        )

    def _sequence(self, number: int, token_ids: list[int], request: Request, index: int, now: int) -> Sequence:
        self._last_seq += 1
        return Sequence(
            seq=self._last_seq,
            number=number,
            request=request,
            prompt_tokens=len(token_ids),
            tokens=list(token_ids),
            arrival=now,
            order=(request.priority, self._last_seq),
            index=index,
        )

    def abort(self, number: int | None = None, reason: str = "") -> int:
        """Abort one request, or all; how many there were. An unknown or finished number is fine: it came too late."""
        self.pool.at(self.last_step, self.now())
        # a request's shadow goes with it
        asked = list(self._live) if number is None else (number, records.shadow_number(number))
        numbers = [each for each in asked if each in self._live]
        for each in numbers:
            for sequence in self._live[each][:]:
                self.scheduler.remove(sequence)
                self._shadows.aborted(sequence, reason)
                self._forget(sequence)
                self._events.append(Aborted(seq=sequence.seq, number=each, reason=reason))
        return len(numbers) if number is None else numbers.count(number)

    def change(self, changes: Mapping[str, object]) -> LiveSettings:
        """Make all changes, or none. Raises SettingRefused, and then nothing has changed. No step may run (`drain`)."""
        assert self._flight is None
        old = self.settings
        new = config.change(old, dict(changes))
        bounds = self.bounds
        if new.block_size != old.block_size:
            new = config.follow_block_size(old, new, changes)
            bounds = config.limits_of_size(bounds, old.block_size, new.block_size)
        config.validate(new, bounds, new.block_size, *self._largest_need(new.block_size))
        self._keep_lanes(new)
        proposer, held = self._drafting.made(new), self._drafting.bytes
        acquire(self.runner, old, new)
        self.settings, self.bounds = new, bounds
        self._drafting.apply(new, proposer)
        self.pool.at(self.last_step, self.now())
        self._keep_shadows(new)
        self.scheduler.apply(new)
        self.host.block_bytes = self.runner.model.kv_bytes_per_token * new.block_size
        self._copier.run(self.runner)  # before blocks go that it may copy from
        release(self.runner, new)
        resized = (new.kv_blocks, new.block_size, new.swap_blocks) != (old.kv_blocks, old.block_size, old.swap_blocks)
        if resized or held != self._drafting.bytes:
            self._memory_at = 0  # told at once: there may be no step for long
        return new

    def watch(self, seq: int | None, k: int = 10) -> None:
        """Put the k likeliest tokens of one sequence, and how its drafts are decided, into the records from now on."""
        self._watch.seq, self._watch.k = seq, max(1, min(k, self.runner.model.vocabulary))

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
        plan, batch, budget, logits = flight.plan, flight.batch, flight.budget, flight.logits
        asked = flight.asked
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
        if batch:
            self._auto.learn(work_of(batch), timing.total - timing.swap)  # copies say nothing of tokens
            self._drafting.took(timing, len(batch.tokens), len(batch.logit_index))
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

    def _resolve(self, sequence: Sequence) -> None:
        """What is settled when a request is first admitted."""
        request, group = sequence.request, sequence.group
        for each in group.lanes if group is not None else (sequence,):
            each.params = resolve_sampling(request, self.settings, self._seed, each.index)
        if group is not None and request.beams:
            longest = sequence.limit - sequence.prompt_tokens
            eos_ids = () if request.ignore_eos else self.eos_ids
            group.search = BeamSearch(request.beams, longest, eos_ids, request.length_penalty, request.early_stopping)

    def _turn_away(self, sequence: Sequence) -> None:
        if sequence.prompt_tokens >= self.settings.max_context:
            reason = (
                f"the prompt has {sequence.prompt_tokens:,} tokens and max_context was lowered to "
                f"{self.settings.max_context:,} while it waited; raise max_context and send it again"
            )
        else:
            reason = (
                f"settings were changed while it waited, and {sequence.request.beams} beams of it have no room with "
                f"max_batch {self.settings.max_batch:,} and {self.settings.kv_blocks:,} KV blocks; raise them, or "
                "lower max_tokens or max_context, and send it again"
            )
        for each in self._live[sequence.number][:]:
            if each is not sequence:
                self.scheduler.remove(each)
            self._shadows.aborted(each, reason)
            self._forget(each)
            self._events.append(Aborted(seq=each.seq, number=each.number, reason=reason))

    def _forget(self, sequence: Sequence) -> str:
        """Drop what is kept of a sequence that ended; the text that was held back."""
        lanes = self._live[sequence.number]
        lanes.remove(sequence)
        if not lanes:
            del self._live[sequence.number]
        self._drafting.forget(sequence.seq)
        if self._watch.seq == sequence.seq:
            self._watch.seq = None
        return self.texts.finish(sequence.seq)

    def _largest_need(self, block_size: int) -> tuple[int, str]:
        """Of all requests whose limit is settled: the others will get theirs under the settings of that day."""
        settled = [lanes[0] for lanes in self._live.values() if lanes[0].limit and not lanes[0].shadow]
        if not settled:
            return 0, ""

        def need(sequence: Sequence) -> int:
            beams = sequence.request.beams
            return beams * blocks_for(sequence.limit, block_size) * block_size if beams else sequence.limit

        largest = max(settled, key=lambda s: (need(s), -s.seq))
        beams = f", {largest.request.beams} beams" if largest.request.beams else ""
        return need(largest), f"request {largest.number} ({largest.status}, {largest.known:,} tokens so far{beams})"

    def _keep_lanes(self, settings: LiveSettings) -> None:
        """The beams of a search run together, so a batch must have room for them."""
        for number, lanes in self._live.items():
            if lanes[0].request.beams > settings.max_batch:
                raise SettingRefused(
                    "max_batch",
                    f"request {number} is a search with {lanes[0].request.beams} beams, which run together; "
                    f"max_batch {settings.max_batch} would be too few. Wait for it, or abort it",
                )

    def _keep_shadows(self, settings: LiveSettings) -> None:
        """A shadow binds nobody: one that a change leaves no room for ends."""
        for number, (sequence, *_) in list(self._live.items()):
            if settings.simulated_acceptance and not sequence.shadow:
                self._shadows.simulated([sequence])
            fits = sequence.prompt_tokens < settings.max_context or sequence.limit
            need = blocks_for(limit_of(sequence, settings), settings.block_size)
            if sequence.shadow and not (fits and need <= settings.kv_blocks):
                self.abort(number, "settings were changed, and the run without drafts has no room with them")

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
