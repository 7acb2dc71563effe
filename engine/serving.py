"""What is asked of the engine between its steps: requests come and are aborted, settings change, a sequence is watched.

It owns the sequences and hands each part its own: the pool and the queues to the scheduler, the model and its K/V to
the runner, choosing tokens to the sampler, text to `texts`. A request or a change that is refused leaves no trace. What
a step makes of all this is `core`'s business.
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
from engine.budget import AutoBudget
from engine.config import Limit, LiveSettings, SettingRefused
from engine.drafting import Drafting
from engine.formulas import blocks_for
from engine.group import Group
from engine.heap import give_back
from engine.host_pool import HostPool
from engine.overlap import Flight
from engine.pool_memory import Copier, acquire, release
from engine.records import (
    Aborted,
    Event,
    Request,
    Submitted,
)
from engine.requests import RequestRefused, check_request, resolve_sampling
from engine.sampler import Sampler
from engine.scheduler import Scheduler
from engine.sequence import Sequence, sequences_of
from engine.shadow import Shadows
from engine.speculation.proposer import Factory
from engine.texts import NullTexts, Texts
from engine.watch import Watch

if TYPE_CHECKING:
    from engine.runner.base import Runner


class Serving:
    """Owns all parts of an engine. `clock` gives monotonic ns; the engine's own clock leaves out what `hold` was told
    of."""

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
        self._live: dict[int, list[Sequence]] = {}  # unfinished ones, by request number
        self._last_seq = 0
        self._seed = seed
        self._auto = AutoBudget() if budget is None else budget
        self._drafting = Drafting(proposers, settings, lambda: self._auto.cost.line)
        self._monotonic = clock
        self._held = 0  # ns paused or held back
        self._watch = Watch(sampler, self.texts)
        self._shadows = Shadows(self.texts)
        self._copier = Copier(self.pool, self.host, clock)
        self._flight: Flight | None = None  # the step that runs between two calls
        self._memory_at = 0  # monotonic ns of the last sample of memory; 0: it is taken at once

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
            give_back()
            self._memory_at = 0  # told at once: there may be no step for long
        return new

    def watch(self, seq: int | None, k: int = 10) -> None:
        """Put the k likeliest tokens of one sequence, and how its drafts are decided, into the records from now on."""
        self._watch.seq, self._watch.k = seq, max(1, min(k, self.runner.model.vocabulary))

    # --- what steps ask of it ---

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
