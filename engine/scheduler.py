"""Which tokens of which sequences run in the coming step.

One rule: every sequence has tokens known and tokens computed, and the step's token budget lets computed catch up.
Decodes, prefill chunks, prefix hits and verifications all follow from it. Served in this order, oldest first by
(priority, arrival) within each: decode rows' own tokens, running prefills, admissions, and drafts with whatever is
left, so that a draft never takes a token or a block from anything that is certain. Without chunked prefill the
prompts come first, whole or not at all, and decodes get the rest.

A running row that finds no block takes one by preemption: the sequence served last gives up all of its blocks and
returns to the queue, whose order puts it at the head of its priority. Admission asks for room for the whole prompt,
beyond what running prefills still need and a watermark, so that it doesn't cause preemptions by itself.

Models, sampling, text and clocks are others' business; the clock is not read here.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from engine.block_pool import BlockPool
from engine.config import LiveSettings
from engine.formulas import blocks_for
from engine.records import NONE, Admitted, Bound, Event, Preempted
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

    def __init__(self, pool: BlockPool, settings: LiveSettings, events: list[Event]):
        self.pool = pool
        self.settings = settings
        self.events = events
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
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
        sequence.drafts = []
        self.pool.truncate(sequence, 0)

    def preempt(self, sequence: Sequence, cause: str, by: int = NONE, needed: int = 0) -> None:
        """Back to the queue; all that was computed is computed again."""
        self.events.append(
            Preempted(seq=sequence.seq, cause=cause, by=by, needed=needed, lost=sequence.computed)
        )
        self.running.remove(sequence)
        self.pool.truncate(sequence, 0)
        sequence.computed = 0
        sequence.drafts = []
        sequence.preemptions += 1
        sequence.status = "waiting"
        self.add(sequence)

    # --- settings ---

    def apply(self, settings: LiveSettings) -> None:
        """Obey valid settings from the next step on. The pool is resized here; its K/V is the runner's."""
        old, self.settings = self.settings, settings
        while len(self.running) > settings.max_batch:
            self.preempt(self.running[-1], "max_batch")
        if settings.kv_blocks != old.kv_blocks:
            for sequence in reversed(self.running[:]):
                if any(block >= settings.kv_blocks for block in sequence.table):
                    self.preempt(sequence, "resize")
            self.pool.resize(settings.kv_blocks)
        if not settings.prefix_cache:
            self.pool.drop_cache()
            for sequence in self.running:
                sequence.sealed = 0

    # --- a step ---

    def schedule(self, budget: int) -> Plan:
        """Plan a step of at most `budget` tokens: tables hold every block that its rows write to."""
        self._rows, self._budget, self._preempted = {}, budget, False
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
        for sequence in self.running[:]:
            # one of them may have been preempted meanwhile, or have come with all but its last token cached
            if sequence.decoding and sequence.status == "running" and sequence.seq not in self._rows:
                if self._budget == 0:
                    return True
                self._run(sequence, 1)
        return False

    def _prefills(self, whole: bool) -> bool:
        """The next chunk, or all the rest, of each running prefill. True if the budget cut one short."""
        short = False
        for sequence in self.running[:]:
            if sequence.status != "running" or sequence.decoding:
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
        """Admit from the head of the queue; what stopped it, None when the queue ran empty."""
        settings, pool = self.settings, self.pool
        promised: int | None = None
        cut = False
        while self.waiting:
            sequence = self.waiting[0]
            if not sequence.limit and sequence.prompt_tokens >= settings.max_context:
                sequence.status = "finished"
                plan.turned_away.append(self.waiting.pop(0))
                continue
            if self._preempted:
                return "kv_blocks"  # room was made for a running row, not for this one
            if len(self.running) >= settings.max_batch:
                return "batch_cap"
            if self._budget == 0:
                return "token_budget"
            hits = pool.lookup(sequence) if settings.prefix_cache else []
            rest = sequence.known - len(hits) * pool.block_size
            if whole and rest > self._budget:
                return "token_budget"
            if promised is None:
                promised = self._promised()
            need = blocks_for(sequence.known, pool.block_size) - len(hits)
            spare = pool.available - sum(map(pool.is_cached, hits)) - promised
            if self.running:
                spare -= int(settings.watermark * pool.num_blocks)
            if need > spare:
                return "kv_blocks"
            if not sequence.limit:
                plan.admitted.append(sequence)
            self._start(sequence, hits)
            own = min(rest, self._budget)
            pool.grow(sequence, blocks_for(sequence.computed + own, pool.block_size) - len(hits))
            self._plan(sequence, own)
            promised += need + len(hits) - len(sequence.table)
            cut = own < rest
        return "token_budget" if cut else None

    def _promised(self) -> int:
        """Blocks that running sequences will still ask for, to compute what they know now."""
        size = self.pool.block_size
        return sum(max(0, blocks_for(s.known, size) - len(s.table)) for s in self.running)

    def _start(self, sequence: Sequence, hits: list[int]) -> None:
        self.waiting.remove(sequence)
        again = sequence.limit > 0
        if not again:
            most = sequence.prompt_tokens + sequence.request.max_tokens
            sequence.limit = min(most, self.settings.max_context)
        sequence.status = "running"
        insort(self.running, sequence, key=_order)
        self.pool.attach(sequence, hits)
        sequence.sealed = len(hits)
        sequence.computed = sequence.cached_tokens = len(hits) * self.pool.block_size
        self.events.append(
            Admitted(seq=sequence.seq, cached_tokens=sequence.cached_tokens, limit=sequence.limit, again=again)
        )

    def _drafts(self) -> Bound | None:
        """Give drafts what budget is left, into blocks that cost nobody anything. What trimmed them, if anything."""
        trimmed: Bound | None = None
        for sequence in self.running:
            drafts = sequence.drafts
            if not drafts:
                continue
            sequence.drafts = []  # of a row that is not planned, too: a proposal is for one step
            row = self._rows.get(sequence.seq)
            if row is not None:
                row.drafts = self._fit(sequence, sequence.computed + row.own, drafts)
                if len(row.drafts) < len(drafts):
                    trimmed = trimmed or ("kv_blocks" if self._budget else "token_budget")
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
        self._budget -= len(drafts)
        return drafts

    def tidy(self, sequence: Sequence) -> None:
        """After a step, or one that failed: back go the blocks beyond the next token's, which drafts had taken."""
        keep = sequence.computed // self.pool.block_size + 1
        if len(sequence.table) > keep:
            self.pool.truncate(sequence, keep)

    def check(self) -> None:
        """Assert the queues' order and the sequences' own counters, between steps."""
        assert len(self.running) <= self.settings.max_batch
        assert self.pool.num_blocks == self.settings.kv_blocks
        for queue, status in ((self.running, "running"), (self.waiting, "waiting")):
            assert queue == sorted(queue, key=_order) and len(set(map(_order, queue))) == len(queue)
            for sequence in queue:
                assert sequence.status == status
                sequence.check(self.pool.block_size)
        self.pool.check(self.running)
