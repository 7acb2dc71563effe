"""Which tokens of which sequences run in the coming step.

One rule: every sequence has tokens known and tokens computed, and the step's token budget lets computed catch up.
Decodes, prefill chunks, prefix hits and verifications all follow from it. Served in this order, oldest first by
(priority, arrival) within each: decode rows' own tokens, running prefills, admissions, and drafts with whatever is
left, so that a draft never takes a token or a block from anything that is certain. Without chunked prefill the
prompts come first, whole or not at all, and decodes get the rest.

Sequences of one request may depend on each other (`group`): those that will fork from a prompt aren't queued before it
is computed, and the beams of a search decode together or not at all, and are preempted together.

A running row that finds no block takes one by preemption: the sequence served last gives up all of its blocks and
returns to the queue, whose order puts it at the head of its priority. Whether the head of the queue may come in is
`admission`'s to say.

Shadows (engine.shadow) stand beside all this: one of them is in the queue while nobody else has work, and out of it,
its blocks given back, from the step on in which anybody does. So no rule here needs to know of them.

Models, sampling, text and clocks are others' business; the clock is not read here.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.admission import Admission, Offer, limit_of
from engine.block_pool import BlockPool, Span
from engine.config import LiveSettings
from engine.formulas import blocks_for
from engine.host_pool import HostPool
from engine.records import NONE, Admitted, Bound, Dropped, Event, Forked, Preempted
from engine.runner.batch import ScheduledRow
from engine.sequence import Sequence


@dataclass(slots=True)
class Plan:
    """One step's work. `admitted`: for the first time, even if preempted again before the step ran;
    `turned_away`: waiting sequences whose prompt no longer fits the context, or whose beams don't fit the pool."""

    rows: list[ScheduledRow] = field(default_factory=list)
    bound: Bound = "no_work"
    admitted: list[Sequence] = field(default_factory=list)
    turned_away: list[Sequence] = field(default_factory=list)


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


class Scheduler:
    """Owns the two queues, both kept in order. Events go to `events`, a list shared with the engine."""

    def __init__(self, pool: BlockPool, host: HostPool, settings: LiveSettings, events: list[Event]):
        self.pool = pool
        self.host = host
        self.settings = settings
        self.events = events
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.unborn: list[Sequence] = []  # waiting too, but for the prompt of the one that they will fork from
        self.shadows: list[Sequence] = []  # those that wait for nobody else to have work
        self.shadow: Sequence | None = None  # the one that waits or runs like anybody, and alone
        self.admission = Admission(pool)
        # of the step being planned
        self._rows: dict[int, ScheduledRow] = {}  # by seq, in plan order
        self._budget = 0
        self._preempted = False
        self._behind: list[Sequence] = []  # running ones that no decode row is planned for; at first, all of them
        self._wished = 0  # drafts of decode rows
        self._beyond: list[tuple[Sequence, int]] = []  # decode rows whose drafts need blocks more, and how many

    # --- queues ---

    @property
    def waiting_count(self) -> int:
        return len(self.waiting) + len(self.unborn) + len(self.shadows)

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        """Finished or aborted: out of its queue, its blocks back to the pool."""
        if sequence.status == "running":
            self.running.remove(sequence)
        elif sequence in self.unborn:
            self.unborn.remove(sequence)
        elif sequence in self.shadows:
            self.shadows.remove(sequence)
        else:
            self.waiting.remove(sequence)
        if sequence is self.shadow:
            self.shadow = None
        sequence.status = "finished"
        sequence.drafts, sequence.reserved = [], False
        self.host.drop(sequence)
        self.pool.truncate(sequence, 0)

    def fork(self, child: Sequence, parent: Sequence, known: int) -> None:
        """The child continues the first `known` tokens of the parent, whose K/V is all there. Where both are paged it
        shares the parent's blocks. A reservation is never shared: what it has in common with the parent stays, the
        rest is computed again. One that never ran and finds no room waits."""
        first = child in self.unborn
        if first:
            self.unborn.remove(child)
            child.limit = parent.limit
            if len(self.running) < self.settings.max_batch and not parent.reserved:
                child.status = "running"
                insort(self.running, child, key=_order)
            else:
                self.add(child)
        shared = 0
        if child.status == "running" and not child.reserved:
            self.pool.truncate(child, 0)
            child.computed = 0
            if not parent.reserved:
                shared = self.pool.share(child, parent)
                child.shares = parent.shares = True
                child.computed = known
        elif child.reserved:
            common = 0
            while common < known and child.tokens[common] == parent.tokens[common]:
                common += 1
            self.pool.unfill(child, min(common, child.computed))
            child.computed = min(common, child.computed)
        if not shared:
            child.hashes = parent.hashes[: known // self.pool.block_size]
        child.tokens = parent.tokens[:known]
        self.events.append(
            Forked(
                seq=child.seq,
                parent=parent.seq,
                known=known,
                computed=child.computed,
                shared=shared,
                running=child.status == "running",
                limit=child.limit,
            )
        )

    def preempt(self, sequence: Sequence, cause: str, by: int = NONE, needed: int = 0) -> None:
        """Back to the queue, with all beams of its search. What was computed moves to the host pool, or is computed
        again."""
        if sequence.group is None or not sequence.group.together:
            self._preempt(sequence, cause, by, needed)
            return
        for lane in reversed(sequence.group.living):
            if lane.status == "running":
                self._preempt(lane, cause, by, needed)

    def _preempt(self, sequence: Sequence, cause: str, by: int, needed: int) -> None:
        moves = cause != "block_size" and not sequence.shadow
        moved, note = self._move_out(sequence) if moves else (0, "")
        self.events.append(
            Preempted(
                seq=sequence.seq,
                cause=cause,
                by=by,
                needed=needed,
                lost=sequence.computed - sequence.swapped,
                swapped=sequence.swapped,
                bytes=moved * self.host.block_bytes,
                note=note,
            )
        )
        sequence.reached = max(sequence.reached, sequence.computed)
        self.running.remove(sequence)
        self.pool.truncate(sequence, 0)
        sequence.reserved = sequence.shares = False
        sequence.computed = 0
        sequence.drafts = []
        sequence.preemptions += 1
        sequence.status = "waiting"
        self.add(sequence)

    def _move_out(self, sequence: Sequence) -> tuple[int, str]:
        """Blocks that will be copied to the host pool, and why none are although they should be."""
        if self.host.stay(sequence) or self.settings.preemption == "recompute" or not sequence.computed:
            return 0, ""
        if self.host.move_out(sequence, self.pool.block_size, self.pool.copies):
            return len(sequence.host), ""
        needed, host = blocks_for(sequence.computed, self.pool.block_size), self.host
        return 0, f"the host pool has {host.free_count:,} free blocks of {host.num_blocks:,}, {needed:,} needed"

    def _drop(self, sequence: Sequence, cause: str) -> None:
        self.events.append(Dropped(seq=sequence.seq, cause=cause, lost=sequence.swapped))
        self.host.drop(sequence)

    # --- settings ---

    def apply(self, settings: LiveSettings) -> None:
        """Obey valid settings from the next step on. The pools are resized here; their K/V is the runner's, which must
        still have all of it, for what is preempted by swap."""
        old, self.settings = self.settings, settings
        if settings.block_size != old.block_size:
            self._rebuild(settings)
        while len(self.running) > settings.max_batch:
            self.preempt(self.running[-1], "max_batch")
        if settings.kv_blocks != self.pool.num_blocks:
            for sequence in reversed(self.running[:]):
                if any(block >= settings.kv_blocks for block in sequence.table):  # none once it was preempted
                    self.preempt(sequence, "resize")
            self.pool.resize(settings.kv_blocks)
        if settings.swap_blocks != self.host.num_blocks:
            for sequence in self.waiting:
                if any(block >= settings.swap_blocks for block in sequence.host):
                    self._drop(sequence, "swap_blocks")
            self.host.resize(settings.swap_blocks)
        if not settings.prefix_cache:
            self.pool.drop_cache()
            for sequence in self.running:
                sequence.sealed = 0

    def _rebuild(self, settings: LiveSettings) -> None:
        """Blocks of another size: nothing that any pool holds is of use, and everybody starts again."""
        while self.running:
            self.preempt(self.running[-1], "block_size")
        for sequence in self.waiting:
            sequence.hashes.clear()
            if sequence.swapped:
                self._drop(sequence, "block_size")
        self.pool.drop_cache()
        self.pool.rebuild(settings.kv_blocks, settings.block_size)

    # --- a step ---

    def step_aside(self) -> None:
        """Before a step: the first shadow queues when nobody else has work, and leaves as soon as anybody has."""
        if self.shadow is None and not self.shadows:
            return
        others = len(self.running) + len(self.waiting) - (self.shadow is not None)
        if self.shadow is None and not others:
            self.shadow = self.shadows.pop(0)
            self.waiting.append(self.shadow)
        elif self.shadow is not None and others:
            if self.shadow.status == "running":
                self._preempt(self.shadow, "shadow", NONE, 0)
            self.waiting.remove(self.shadow)
            self.shadows.insert(0, self.shadow)
            self.shadow = None

    def schedule(self, budget: int) -> Plan:
        """Plan a step of at most `budget` tokens: tables hold every block that its rows write to."""
        self._rows, self._budget, self._preempted = {}, budget, False
        self._behind, self._wished, self._beyond = self.running, 0, []
        self.admission.begin(self.running)
        plan = Plan()
        if self.settings.chunked_prefill:
            short = self._decodes()
            short |= self._prefills(whole=False)
            stopped = self._admit(plan, whole=False)
        else:
            short = self._prefills(whole=True)
            stopped = self._admit(plan, whole=True)
            short |= self._decodes()
        if not self._rows and self.running:
            short |= self._decodes()  # beams that came in with all of their K/V there
            if not self._rows and self.waiting:
                self._break_up()
        trimmed = self._drafts()
        plan.rows = list(self._rows.values())
        if self._preempted:
            plan.bound = "kv_blocks"
        elif short:
            plan.bound = "token_budget"
        else:
            plan.bound = stopped or trimmed or "no_work"
        return plan

    def _decodes(self) -> bool:
        """One own token of each decode row. True if the budget ran out. Its drafts come along: whether they can stay,
        `_drafts` says when all else is planned. This loop is most of what a step costs, and a second one over the rows
        would be as much."""
        rows, size, budget, again = self._rows, self.pool.block_size, self._budget, bool(self._rows)
        running, behind, beyond, wished, short = self.running[:], [], self._beyond, 0, False
        for place, sequence in enumerate(running):
            # as `Sequence.decoding`; not so of one that was preempted meanwhile
            computed, known = sequence.computed, len(sequence.tokens)
            if computed != known - 1 or known == sequence.prompt_tokens:
                behind.append(sequence)
                continue
            if again and sequence.seq in rows:
                continue  # it has come with all but its last token cached
            group, room = sequence.group, len(sequence.table) * size
            if group is not None and not group.ready:
                behind.append(sequence)
                continue
            if budget < (1 if group is None else self._at_once(sequence)):
                behind += running[place:]
                short = True
                break
            drafts = sequence.drafts
            if computed < room and not sequence.shares:
                # in a last block of its own, as mostly
                rows[sequence.seq] = ScheduledRow(sequence, 1, drafts, True)
                budget -= 1
            else:
                self._budget = budget
                self._run(sequence, 1)
                budget, room = self._budget, len(sequence.table) * size
                if sequence.status != "running":
                    continue
                rows[sequence.seq].drafts = drafts
            if drafts:
                sequence.drafts = []
                count = len(drafts)
                wished += count
                if computed + count >= room:
                    beyond.append((sequence, (computed + count - room) // size + 1))
        for sequence in behind:
            sequence.drafts = []  # a proposal is for one step
        self._budget, self._behind, self._wished = budget, behind, wished
        return short

    def _at_once(self, sequence: Sequence) -> int:
        """Tokens that must run together, of which those of the sequence are the first."""
        group = sequence.group
        return 1 if group is None or group.lanes[0] is not sequence else len(group.living)

    def _break_up(self) -> None:
        """Nobody runs, for all wait for beams that find no room beside them: those served last make it."""
        self._preempted = True
        self.preempt(self.running[-1], "beams")

    def _prefills(self, whole: bool) -> bool:
        """The next chunk, or all the rest, of each running prefill. True if the budget cut one short."""
        short = False
        for sequence in self._behind[:]:
            if sequence.decoding or sequence.status != "running":
                continue
            rest = sequence.due - sequence.computed
            if self._budget == 0 or (whole and rest > self._budget):
                return True
            own = min(rest, self._budget)
            self._run(sequence, own)
            short |= own < rest
        return short

    def _run(self, sequence: Sequence, own: int) -> None:
        """Plan a running row, preempting others, or at last the row itself, until its blocks are there."""
        pool = self.pool
        missing = -(-(sequence.computed + own) // pool.block_size) - len(sequence.table)
        copies = sequence.shares and pool.must_copy(sequence)
        if missing > 0 or copies:
            while missing + copies > pool.available:
                self._make_room(self.running[-1], sequence.seq, missing + copies)
                if sequence.status != "running":
                    return
                copies = pool.must_copy(sequence)  # not when who shared it had to go
            if copies:
                pool.copy(sequence)
            pool.grow(sequence, missing)
        self._plan(sequence, own)

    def _make_room(self, victim: Sequence, needy: int, missing: int) -> None:
        self._preempted = True
        self.preempt(victim, "kv_blocks", needy, missing)
        for gone in victim.group.lanes if victim.group else (victim,):
            row = self._rows.pop(gone.seq, None)
            if row is not None:
                self._budget += row.own

    def _plan(self, sequence: Sequence, own: int) -> None:
        reach = sequence.computed + own
        stored = sequence.shares and self.pool.holds(sequence)
        sequence.shares = stored  # until it is computed; what it writes to otherwise is its own by now
        self._rows[sequence.seq] = ScheduledRow(sequence, own, [], reach == len(sequence.tokens), int(stored))
        self._budget -= own

    def _admit(self, plan: Plan, whole: bool) -> Bound | None:
        """Let in who may come; what stopped that, None when the queue ran empty."""
        stopped = self._admit_all(plan, whole)
        self.admission.end(stopped)
        return stopped

    def _admit_all(self, plan: Plan, whole: bool) -> Bound | None:
        settings = self.settings
        cut = False
        while self.waiting:
            sequence = self.waiting[0]
            if not sequence.limit and not self._fits(sequence):
                sequence.status = "finished"
                plan.turned_away.append(self.waiting.pop(0))
                continue
            if self.admission.closed(settings):
                return "static"
            if self._preempted:
                return "kv_blocks"  # room was made for a running row, not for this one
            if len(self.running) >= settings.max_batch:
                return "batch_cap"
            if self._budget == 0:
                return "token_budget"
            offer = self.admission.offer(sequence, settings, self.running, self._behind, self._budget, whole)
            if not isinstance(offer, Offer):
                return offer
            if not sequence.limit:
                plan.admitted.append(sequence)
            self._start(sequence, offer)
            if offer.own:
                self._plan(sequence, offer.own)
            cut = sequence.computed + offer.own < sequence.due
        return "token_budget" if cut else None

    def _fits(self, sequence: Sequence) -> bool:
        """What was changed since it came has left room for it, if it were alone."""
        settings, beams = self.settings, sequence.request.beams
        if sequence.prompt_tokens >= settings.max_context or beams > settings.max_batch:
            return False
        return beams * blocks_for(limit_of(sequence, settings), self.pool.block_size) <= self.pool.num_blocks

    def _start(self, sequence: Sequence, offer: Offer) -> None:
        self.waiting.pop(0)
        again = sequence.limit > 0
        sequence.limit = limit_of(sequence, self.settings)
        sequence.status = "running"
        insort(self.running, sequence, key=_order)
        self.pool.attach(sequence, offer.hits)
        sequence.cached_tokens = min(len(offer.hits) * self.pool.block_size, sequence.known - 1)
        sequence.sealed = sequence.cached_tokens // self.pool.block_size
        sequence.computed = offer.computed
        sequence.shares = len(offer.hits) * self.pool.block_size == sequence.known
        sequence.reserved = offer.first >= 0
        if sequence.reserved:
            self.pool.reserve(sequence, offer.first, offer.blocks)
        else:
            self.pool.grow(sequence, offer.blocks)
        if sequence.swapped:
            self.host.move_in(sequence, len(offer.hits))
            self.pool.fill(sequence, sequence.cached_tokens, sequence.computed)
        self.events.append(
            Admitted(
                seq=sequence.seq,
                cached_tokens=sequence.cached_tokens,
                limit=sequence.limit,
                looked_up=offer.looked_up,
                returned=sequence.computed - sequence.cached_tokens,
                again=again,
                reserved=sequence.reserved,
            )
        )

    def _drafts(self) -> Bound | None:
        """Leave drafts what budget is left, and blocks that cost nobody anything. What trimmed them, if anything."""
        pool, wanted = self.pool, self._beyond
        if self._wished > self._budget or self._preempted or sum([blocks for _, blocks in wanted]) > pool.available:
            wanted, trimmed = self._trim()
        else:
            trimmed = None
        pool.grow_each(wanted)
        return trimmed

    def _trim(self) -> tuple[list[tuple[Sequence, int]], Bound | None]:
        """Drafts cut to what there is, the oldest row's served first: blocks that rows need for them, what trimmed."""
        trimmed: Bound | None = None
        wanted: list[tuple[Sequence, int]] = []
        size, budget, available = self.pool.block_size, self._budget, self.pool.available
        for row in self._rows.values():
            if not row.drafts:
                continue
            count, held = len(row.drafts), len(row.sequence.table)
            reach = row.sequence.computed + row.own
            kept = min(count, budget)
            missing = max(0, blocks_for(reach + kept, size) - held)
            if missing > available:
                missing = available
                kept = (held + missing) * size - reach
            available -= missing
            budget -= kept
            if missing:
                wanted.append((row.sequence, missing))
            if kept < count:
                row.drafts = row.drafts[:kept]
                trimmed = trimmed or ("kv_blocks" if budget else "token_budget")
        return wanted, trimmed

    def settle(self, reached: list[Span], ahead: bool = False) -> None:
        """A pass is done. Of its sequences, in plan order, the tokens that have K/V since: what lies beyond is of
        drafts that were not kept, or else of the next step's, planned `ahead`."""
        seals = self.settings.prefix_cache and self.shadow is None
        size, truncate = self.pool.block_size, self.pool.truncate
        for sequence in self.pool.advance(reached, seals=seals):
            if not sequence.reserved and not ahead:
                truncate(sequence, sequence.computed // size + 1)

    def end(self, ended: Iterable[Sequence]) -> None:
        """Those of a pass that are done, in plan order: their blocks go back to the pool."""
        for sequence in ended:
            self.remove(sequence)

    def tidy(self, sequence: Sequence) -> None:
        """After a pass, or one that failed: back go the blocks beyond the next token's, which drafts had taken."""
        keep = sequence.computed // self.pool.block_size + 1
        if len(sequence.table) > keep and not sequence.reserved:
            self.pool.truncate(sequence, keep)

    def check(self, ahead: Iterable[ScheduledRow] = ()) -> None:
        """Assert the queues' order and the sequences' own counters, between steps. `ahead`: rows of a step that runs
        already."""
        own = {row.sequence.seq: row.own for row in ahead}
        assert len(self.running) <= self.settings.max_batch
        assert self.pool.num_blocks == self.settings.kv_blocks
        assert self.host.num_blocks == self.settings.swap_blocks
        assert all(s.group is not None and s.group.lanes[0] is not s for s in self.unborn)
        assert all(s.shadow and not s.table for s in self.shadows)
        if self.shadow is not None:
            assert [self.shadow] == self.running + self.waiting or len(self.running) + len(self.waiting) > 1
        unordered = (self.unborn, self.shadows)
        for queue, status in ((self.running, "running"), *((q, "waiting") for q in (self.waiting, *unordered))):
            if not any(queue is each for each in unordered):
                assert queue == sorted(queue, key=_order) and len(set(map(_order, queue))) == len(queue)
            for sequence in queue:
                assert sequence.status == status
                sequence.check(self.pool.block_size, own.get(sequence.seq, 0))
        self.pool.check(self.running)
        self.host.check(self.waiting, self.pool.block_size)
