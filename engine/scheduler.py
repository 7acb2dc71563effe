"""Which tokens of which sequences run in the coming step.

One rule: every sequence has tokens known and tokens computed, and the step's token budget lets computed catch up.
Decodes, prefill chunks, prefix hits and verifications all follow from it. Served in this order, oldest first by
(priority, arrival) within each: decode rows' own tokens, running prefills, admissions, and drafts with whatever is
left, so that a draft never takes a token or a block from anything that is certain. Without chunked prefill the
prompts come first, whole or not at all, and decodes get the rest.

The beams of a search decode together or not at all. A running row that finds no block takes one by preemption, from the
sequence served last (`queues`). Whether the head of the queue may come in is `admission`'s to say.

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
from engine.queues import Queues, in_order
from engine.records import Admitted, Bound, Event
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


class Scheduler(Queues):
    """Plans steps over the queues."""

    def __init__(self, pool: BlockPool, host: HostPool, settings: LiveSettings, events: list[Event]):
        super().__init__(pool, host, settings, events)
        self.admission = Admission(pool)
        # of the step being planned
        self._rows: dict[int, ScheduledRow] = {}  # by seq, in plan order
        self._budget = 0
        self._preempted = False
        self._behind: list[Sequence] = []  # running ones that no decode row is planned for; at first, all of them
        self._wished = 0  # drafts of decode rows
        self._beyond: list[tuple[Sequence, int]] = []  # decode rows whose drafts need blocks more, and how many

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
        insort(self.running, sequence, key=in_order)
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
