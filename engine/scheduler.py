"""Which tokens of which sequences run in the coming step.

One rule: every sequence has tokens known and tokens computed, and the step's token budget lets computed catch up.
Decodes, prefill chunks, prefix hits and verifications all follow from it. Served in this order, oldest first by
(priority, arrival) within each: decode rows' own tokens, running prefills, admissions, and drafts with whatever is
left, so that a draft never takes a token or a block from anything that is certain. Without chunked prefill the
prompts come first, whole or not at all, and decodes get the rest.

A running row that finds no block takes one by preemption: the sequence served last gives up all of its blocks and
returns to the queue, whose order puts it at the head of its priority. Whether the head of the queue may come in is
`admission`'s to say.

Models, sampling, text and clocks are others' business; the clock is not read here.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Container
from dataclasses import dataclass, field

from engine.admission import Admission, Offer, limit_of
from engine.block_pool import BlockPool, Span
from engine.config import LiveSettings
from engine.formulas import blocks_for
from engine.host_pool import HostPool
from engine.records import NONE, Admitted, Bound, Dropped, Event, Preempted
from engine.runner.batch import ScheduledRow
from engine.sequence import Sequence


@dataclass(slots=True)
class Plan:
    """One step's work. `admitted`: for the first time, even if preempted again before the step ran;
    `turned_away`: waiting sequences whose prompt no longer fits the context."""

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
        self.admission = Admission(pool)
        # of the step being planned
        self._rows: dict[int, ScheduledRow] = {}  # by seq, in plan order
        self._budget = 0
        self._preempted = False

    # --- queues ---

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        """Finished or aborted: out of its queue, its blocks back to the pool."""
        (self.running if sequence.status == "running" else self.waiting).remove(sequence)
        sequence.status = "finished"
        sequence.drafts, sequence.reserved = [], False
        self.host.drop(sequence)
        self.pool.truncate(sequence, 0)

    def preempt(self, sequence: Sequence, cause: str, by: int = NONE, needed: int = 0) -> None:
        """Back to the queue. What was computed moves to the host pool, or is computed again."""
        moved, note = self._move_out(sequence) if cause != "block_size" else (0, "")
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
        sequence.reserved = False
        sequence.computed = 0
        sequence.drafts = []
        sequence.preemptions += 1
        sequence.status = "waiting"
        self.add(sequence)

    def _move_out(self, sequence: Sequence) -> tuple[int, str]:
        """Blocks that will be copied to the host pool, and why none are although they should be."""
        if self.host.stay(sequence) or self.settings.preemption == "recompute" or not sequence.computed:
            return 0, ""
        if self.host.move_out(sequence, self.pool.block_size):
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
                if any(block >= settings.kv_blocks for block in sequence.table):
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
        for sequence in reversed(self.running[:]):
            self.preempt(sequence, "block_size")
        for sequence in self.waiting:
            sequence.hashes.clear()
            if sequence.swapped:
                self._drop(sequence, "block_size")
        self.pool.drop_cache()
        self.pool.rebuild(settings.kv_blocks, settings.block_size)

    # --- a step ---

    def schedule(self, budget: int) -> Plan:
        """Plan a step of at most `budget` tokens: tables hold every block that its rows write to."""
        self._rows, self._budget, self._preempted = {}, budget, False
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
        """One own token of each decode row. True if the budget ran out."""
        rows, size = self._rows, self.pool.block_size
        for sequence in self.running[:]:
            # as `Sequence.decoding`; this loop is most of what a step costs
            computed, known = sequence.computed, len(sequence.tokens)
            if computed != known - 1 or known == sequence.prompt_tokens:
                continue
            # one of them may have been preempted meanwhile, or have come with all but its last token cached
            if sequence.status != "running" or sequence.seq in rows:
                continue
            if self._budget == 0:
                return True
            if computed < len(sequence.table) * size:  # there is room in its last block, as mostly
                rows[sequence.seq] = ScheduledRow(sequence, 1, [], True)
                self._budget -= 1
            else:
                self._run(sequence, 1)
        return False

    def _prefills(self, whole: bool) -> bool:
        """The next chunk, or all the rest, of each running prefill. True if the budget cut one short."""
        short = False
        for sequence in self.running[:]:
            # one that is planned decodes; asking for that first is cheaper
            if sequence.seq in self._rows or sequence.decoding or sequence.status != "running":
                continue
            rest = sequence.known - sequence.computed
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
        if missing > 0:
            while missing > pool.available:
                victim = self.running[-1]
                self._make_room(victim, sequence.seq, missing)
                if victim is sequence:
                    return
            pool.grow(sequence, missing)
        self._plan(sequence, own)

    def _make_room(self, victim: Sequence, needy: int, missing: int) -> None:
        self._preempted = True
        self.preempt(victim, "kv_blocks", needy, missing)
        row = self._rows.pop(victim.seq, None)
        if row is not None:
            self._budget += row.own

    def _plan(self, sequence: Sequence, own: int) -> None:
        reach = sequence.computed + own
        self._rows[sequence.seq] = ScheduledRow(sequence, own, [], reach == len(sequence.tokens))
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
            if not sequence.limit and sequence.prompt_tokens >= settings.max_context:
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
            offer = self.admission.offer(sequence, settings, self.running, self._budget, whole)
            if not isinstance(offer, Offer):
                return offer
            if not sequence.limit:
                plan.admitted.append(sequence)
            self._start(sequence, offer)
            self._plan(sequence, offer.own)
            cut = sequence.computed + offer.own < sequence.known
        return "token_budget" if cut else None

    def _start(self, sequence: Sequence, offer: Offer) -> None:
        self.waiting.pop(0)
        again = sequence.limit > 0
        sequence.limit = limit_of(sequence, self.settings)
        sequence.status = "running"
        insort(self.running, sequence, key=_order)
        self.pool.attach(sequence, offer.hits)
        sequence.sealed = len(offer.hits)
        sequence.cached_tokens = len(offer.hits) * self.pool.block_size
        sequence.computed = offer.computed
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
        """Give drafts what budget is left, into blocks that cost nobody anything. What trimmed them, if anything."""
        trimmed: Bound | None = None
        rows, size = self._rows, self.pool.block_size
        for sequence in self.running:
            drafts = sequence.drafts
            if not drafts:
                continue
            sequence.drafts = []  # of a row that is not planned, too: a proposal is for one step
            row = rows.get(sequence.seq)
            if row is None:
                continue
            reach, count = sequence.computed + row.own, len(drafts)
            if count > self._budget or reach + count > len(sequence.table) * size:
                drafts = self._fit(sequence, reach, drafts)
                if len(drafts) < count:
                    trimmed = trimmed or ("kv_blocks" if self._budget > len(drafts) else "token_budget")
            row.drafts = drafts
            self._budget -= len(drafts)
        return trimmed

    def _fit(self, sequence: Sequence, reach: int, drafts: list[int]) -> list[int]:
        """As many of the drafts as budget and blocks have room for, beyond `reach` computed tokens."""
        pool = self.pool
        if len(drafts) > self._budget:
            drafts = drafts[: self._budget]
        missing = blocks_for(reach + len(drafts), pool.block_size) - len(sequence.table)
        if missing > 0:
            if missing > pool.available:
                missing = pool.available
                drafts = drafts[: (len(sequence.table) + missing) * pool.block_size - reach]
            pool.grow(sequence, missing)
        return drafts

    def settle(self, reached: list[Span], ended: Container[Sequence]) -> None:
        """A pass is done. Of its sequences, in plan order, the tokens that have K/V since, and who ends: what lies
        beyond is of drafts that were not kept."""
        pool, size, seals = self.pool, self.pool.block_size, self.settings.prefix_cache
        pool.fill_all(reached)
        for sequence, _, reach in reached:
            sequence.computed = reach
            full = reach // size
            if seals and sequence.sealed < full:
                pool.seal(sequence)
            if sequence in ended:
                self.remove(sequence)
            elif len(sequence.table) > full + 1:
                self.tidy(sequence)

    def tidy(self, sequence: Sequence) -> None:
        """After a pass, or one that failed: back go the blocks beyond the next token's, which drafts had taken."""
        keep = sequence.computed // self.pool.block_size + 1
        if len(sequence.table) > keep and not sequence.reserved:
            self.pool.truncate(sequence, keep)

    def check(self) -> None:
        """Assert the queues' order and the sequences' own counters, between steps."""
        assert len(self.running) <= self.settings.max_batch
        assert self.pool.num_blocks == self.settings.kv_blocks
        assert self.host.num_blocks == self.settings.swap_blocks
        for queue, status in ((self.running, "running"), (self.waiting, "waiting")):
            assert queue == sorted(queue, key=_order) and len(set(map(_order, queue))) == len(queue)
            for sequence in queue:
                assert sequence.status == status
                sequence.check(self.pool.block_size)
        self.pool.check(self.running)
        self.host.check(self.waiting, self.pool.block_size)
