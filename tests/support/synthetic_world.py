"""A seeded stream of contract-valid records at any scale, without an engine: for tests and for building views.

It keeps the books that a record must agree with (pool, tables, queues) and invents the rest. It is no model of
serving speed: times, tokens and probabilities are drawn at random. Whatever shows it says 'simulated'.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

import numpy as np

from engine.config import AUTO, EngineConfig, Limit, LiveSettings, Model, change, limits
from engine.records import (
    BLOCK,
    CACHED,
    DECODE,
    FREE,
    NONE,
    PREFILL,
    ROW,
    SCHEMA,
    TABLE,
    USED,
    Admitted,
    Event,
    Finished,
    Keyframe,
    Memory,
    Preempted,
    PrefixUse,
    Ready,
    SequenceState,
    StepBudget,
    StepRecord,
    Submitted,
    Timing,
    pack,
)
from tests.support import synthetic_drafts
from tests.support.synthetic_pool import SyntheticPool
from tests.support.synthetic_prefixes import SyntheticPrefixes

GROUPS = 6  # families of prompts that share their first blocks, like a common system prompt
SHARED_BLOCKS = 6  # how many


@dataclass(slots=True, eq=False)
class _Seq:
    seq: int
    group: int  # −1: shares nothing
    prompt: int
    limit: int
    arrival: int
    known: int = 0
    computed: int = 0
    cached: int = 0
    preemptions: int = 0
    admitted: bool = False
    running: bool = False
    first: int = 0
    last: int = 0
    drafted: int = 0
    accepted: int = 0
    drafts: bool = True
    table: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)


class Synthetic:
    """The world behind the stream.

    Attributes:
        settings: in force; change them with `change`, the next step obeys.
        step, clock: of the last step.
    """

    def __init__(self, blocks: int = 512, sequences: int = 16, seed: int = 7, block_size: int = 16, fill: float = 0.6):
        self._rng = np.random.default_rng(seed)
        self._mean_blocks = max(3, int(blocks * fill / sequences))
        budget = max(256, 4 * sequences * 6, self._mean_blocks * block_size // 4)
        self.settings = LiveSettings(
            max_batch=sequences, kv_blocks=blocks, token_budget=min(budget, 16_384),
            max_context=max(64, min(blocks * block_size // 2, 131_072)), block_size=block_size,
        )  # fmt: skip
        self.block_size, self.step, self.clock = block_size, 0, 1_000_000_000
        self._sequences, self._next = sequences, 1
        self.pool = SyntheticPool(blocks, block_size, self._rng)
        self._prefix: dict[int, list[int]] = {}
        self._prefixes = SyntheticPrefixes(block_size)
        self._use = PrefixUse()
        self.running: list[_Seq] = []
        self.waiting: list[_Seq] = []
        self._tables: list[tuple[int, int, int]] = []
        self._events: list[Event] = []
        self._settle()

    # --- the contract's other messages ---

    def ready(self) -> Ready:
        model = Model(
            name="synthetic", architecture="llama", layers=30, heads=9, kv_heads=3, head_dim=64, hidden=576,
            vocabulary=49_152, max_positions=131_072, parameters=134_515_008, weight_bytes=269_030_016,
            dtype="bfloat16", kv_bytes_per_token=23_040,
        )  # fmt: skip
        return Ready(
            v=SCHEMA, pid=0, device="no device, a synthetic stream", runner="synthetic",
            config=EngineConfig(block_size=self.block_size, settings=self.settings), settings=self.settings,
            model=model, block_size=self.block_size, limits=self.limits(model),
        )  # fmt: skip

    def limits(self, model: Model) -> dict[str, Limit]:
        return limits(model, self.block_size, max(2 * self.settings.kv_blocks, 1024))

    def keyframe(self) -> Keyframe:
        held = [s for s in self.running + self.waiting if s.table]
        sealed, sealed_text = self._prefixes.whole()
        return Keyframe(
            v=SCHEMA, step=self.step, clock=self.clock, block_size=self.block_size, settings=self.settings,
            budget=self._budget(), state=self.pool.state.tobytes(), refcount=self.pool.refcount.tobytes(),
            filled=self.pool.filled.tobytes(), owner=self.pool.owner.tobytes(),
            table_seqs=np.array([s.seq for s in held], "<u4").tobytes(),
            table_lengths=np.array([len(s.table) for s in held], "<u4").tobytes(),
            table_blocks=np.array([b for s in held for b in s.table], "<u4").tobytes(),
            sequences=[self._told(s) for s in self.running + self.waiting],
            running=[s.seq for s in self.running], waiting=[s.seq for s in self.waiting], memory=self._memory(),
            sealed=sealed, sealed_text=sealed_text, prefix_use=self._use,
        )  # fmt: skip

    def _budget(self) -> StepBudget:
        """In place of the engine's own, which needs times of real steps: at a made-up cost of a step and a token."""
        if self.settings.token_budget != AUTO:
            return StepBudget(tokens=self.settings.token_budget)
        return StepBudget(tokens=160, goal=0.8 * self.settings.max_gap, fixed=4.0, each=0.475)

    def change(self, **changes: object) -> None:
        """Change settings; the pool only grows or gives back blocks that no table holds."""
        blocks = int(changes.pop("kv_blocks", len(self.pool)))  # type: ignore[call-overload]
        if blocks != len(self.pool):
            self.pool.resize(blocks)
            self._prefixes.resize(blocks)
        if changes.get("prefix_cache") is False:
            self._prefixes.clear()
            self._prefix = {}
        self._prefix = {g: p for g, p in self._prefix.items() if max(p, default=0) < blocks}
        self.settings = change(self.settings, {**changes, "kv_blocks": blocks})

    # --- a step ---

    def next(self) -> StepRecord:
        """One step, whole."""
        self.step += 1
        start = self.clock
        parts = self._rng.integers((100_000, 20_000, 3_000_000, 200_000, 100_000), 4_000_000).tolist()
        end = self.clock = start + sum(parts)
        self._arrive(start)
        self._admit()
        rows, owing, bound = self._schedule()
        spoken = synthetic_drafts.speak(self._rng, owing)
        row_tuples = [self._commit(*row, spoken.kept, end) for row in rows]
        self._finish()
        counts = self.pool.counts
        sealed, sealed_text = self._prefixes.settle()
        record = StepRecord(
            v=SCHEMA, step=self.step, start=start, clock=start, end_clock=end,
            timing=Timing(**dict(zip(("schedule", "draft", "forward", "sample", "commit"), parts, strict=True))),
            rows=pack(row_tuples, ROW), blocks=pack(self.pool.settle(), BLOCK),
            tables=pack(self._tables, TABLE), events=self._events, bound=bound, running=len(self.running),
            waiting=len(self.waiting), used=counts[USED], cached=counts[CACHED], free=counts[FREE],
            emitted=spoken.emitted, text=spoken.text, drafts=spoken.drafts, draft_text=spoken.draft_text,
            settings=self.settings, budget=self._budget(), memory=self._memory() if self.step % 50 == 0 else None,
            sealed=sealed, sealed_text=sealed_text,
        )  # fmt: skip
        self._tables, self._events = [], []
        return record

    def _settle(self) -> None:
        """A pool that has been at work for a while, before the first keyframe."""
        self._prefixes.warm(self.pool.warm(0.2))
        self._next = 40
        for _ in range(self._sequences):
            s = self._new(0)
            if not self._take(s, s.prompt):
                break
            s.computed = s.prompt
            s.known = s.prompt + 1
            self._fill(s)
            s.first = s.last = s.arrival = self.clock
            s.text, s.admitted, s.running = [" …"], True, True
            if s.group >= 0:
                self._publish(s)
            self.running.append(s)
        self.pool.settle()
        self._prefixes.settle()
        self._tables, self._events = [], []

    def _new(self, arrival: int) -> _Seq:
        rng, mean = self._rng, self._mean_blocks * self.block_size
        prompt = max(2, int(mean * rng.uniform(0.3, 1.2)))
        output = int(max(8, min(mean * 0.4, 400) * rng.uniform(0.4, 1.6)))
        limit = min(prompt + output, self.settings.max_context, len(self.pool) * self.block_size // 2)
        prompt = min(prompt, limit - 1)
        group = int(rng.integers(0, GROUPS)) if rng.random() < 0.5 else -1
        s = _Seq(self._next, group, prompt, limit, arrival, known=prompt, drafts=bool(rng.random() < 0.75))
        self._next += 1
        return s

    def _arrive(self, clock: int) -> None:
        room = self._sequences + 4 - len(self.running) - len(self.waiting)
        for _ in range(room if self._rng.random() < 0.3 else 0):
            s = self._new(clock)
            self.waiting.append(s)
            self._events.append(
                Submitted(
                    seq=s.seq, number=s.seq, prompt_tokens=s.prompt, max_tokens=s.limit - s.prompt, priority=0,
                    arrival=clock, prompt=synthetic_drafts.sentence(s.seq), label="synthetic",
                )
            )

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.settings.max_batch:
            s = self.waiting[0]
            if self.pool.idle < s.known // self.block_size + 2:
                return
            del self.waiting[0]
            s.cached = s.computed = self._share(s)
            s.admitted = s.running = True
            insort(self.running, s, key=lambda r: r.seq)
            self._ask(s)

    def _ask(self, s: _Seq) -> None:
        asked = (s.known - 1) // self.block_size * self.block_size if self.settings.prefix_cache else 0
        again, use = s.preemptions > 0, self._use
        if asked and not again:
            self._use = PrefixUse(requests=use.requests + 1, hits=use.hits + (s.cached > 0),
                                  looked_up=use.looked_up + asked, hit=use.hit + s.cached)  # fmt: skip
        self._events.append(
            Admitted(seq=s.seq, cached_tokens=s.cached, limit=s.limit, again=again, looked_up=asked)
        )

    def _share(self, s: _Seq) -> int:
        """Take the blocks that the group's last sequence left; returns the tokens they hold."""
        shared = self._prefix.get(s.group, []) if self.settings.prefix_cache else []
        shared = shared[: (s.known - 1) // self.block_size]
        for index, block in enumerate(shared):
            self.pool.share(block, s.seq)
            self._tables.append((s.seq, index, block))
        s.table = list(shared)
        return len(shared) * self.block_size

    def _schedule(self) -> tuple[list[tuple[_Seq, int, int, int]], list[tuple[int, int, int]], str]:
        """Rows (sequence, kind, scheduled, drafted) and what speaks: (seq, known, drafted), −1 = only its own."""
        budget, rows, owing = self._budget().tokens, [], []
        gamma = self.settings.draft_length if self.settings.draft_method != "off" else 0
        for s in list(self.running):
            if not s.running or not budget:
                continue
            if s.computed >= s.known - 1:
                drafted = min(gamma, budget - 1, s.limit - s.known - 1) if s.drafts and s.seq % 7 else 0
                kind, scheduled = DECODE, 1 + max(0, drafted)
                drafted = scheduled - 1
            else:
                kind, scheduled, drafted = PREFILL, min(s.known - s.computed, budget), 0
            if not self._take(s, s.computed + scheduled):
                continue
            budget -= scheduled
            rows.append((s, kind, scheduled, drafted))
        rows = [row for row in rows if row[0].table]  # a later row may have preempted an earlier one
        for s, kind, scheduled, drafted in rows:
            if kind == DECODE or s.computed + scheduled == s.known:
                owing.append((s.seq, s.known, drafted))
        full = len(self.running) >= self.settings.max_batch
        bound = "token_budget" if not budget else "batch_cap" if full else "kv_blocks" if self.waiting else "no_work"
        return rows, owing, bound

    def _commit(self, s: _Seq, kind: int, scheduled: int, drafted: int, kept: dict[int, list[str]], end: int) -> tuple:
        pieces = kept.get(s.seq, [])
        s.text += pieces
        accepted = max(0, len(pieces) - 1) if drafted else 0
        before = s.computed
        s.computed += scheduled - drafted + accepted
        s.known += len(pieces)
        if pieces:
            s.first, s.last = s.first or end, end
        s.drafted, s.accepted = s.drafted + drafted, s.accepted + accepted
        self._fill(s, before // self.block_size)
        if s.group >= 0 and s.group not in self._prefix:
            self._publish(s)
        return (s.seq, kind, scheduled, s.computed, s.known, drafted, accepted, len(pieces))

    def _publish(self, s: _Seq) -> None:
        """From now on the group's sequences share this one's first blocks."""
        count = min(SHARED_BLOCKS, s.prompt // self.block_size, s.computed // self.block_size)
        if count and all(self.pool.get(block)[2] == self.block_size for block in s.table[:count]):
            self._prefix[s.group] = s.table[:count]

    def _finish(self) -> None:
        for s in [s for s in self.running if s.known >= s.limit]:
            self.running.remove(s)
            self._release(s)
            self._events.append(
                Finished(seq=s.seq, number=s.seq, reason="length", output_tokens=s.known - s.prompt)
            )

    # --- blocks ---

    def _take(self, s: _Seq, tokens: int) -> bool:
        """Grow the table to hold `tokens`; preempts the latest arrival when there are no blocks."""
        need = -(-tokens // self.block_size) - len(s.table)
        while need > self.pool.idle:
            victim = self.running[-1] if self.running else s
            if not self.running or victim is s:
                return False
            lost = victim.computed
            self.running.remove(victim)
            victim.running = False
            self._release(victim)
            victim.computed, victim.preemptions = 0, victim.preemptions + 1
            insort(self.waiting, victim, key=lambda w: w.seq)
            self._events.append(Preempted(seq=victim.seq, cause="kv_blocks", by=s.seq, needed=need, lost=lost))
        for _ in range(need):
            block, evicted = self.pool.take(s.seq)
            if evicted:
                self._prefixes.forget(block)
                self._prefix = {g: p for g, p in self._prefix.items() if block not in p}
            self._tables.append((s.seq, len(s.table), block))
            s.table.append(block)
        return True

    def _fill(self, s: _Seq, first: int = 0) -> None:
        size = self.block_size
        for index in range(first, len(s.table)):
            block = s.table[index]
            _, refs, filled, owner = self.pool.get(block)
            now = max(0, min(size, s.computed - index * size))
            if now != filled and refs == 1:
                self.pool.set(block, (USED, refs, now, owner))
            if now == size and self.settings.prefix_cache:
                self._prefixes.seal(block, index, s.seq, s.table[index - 1] if index else None)

    def _release(self, s: _Seq) -> None:
        full = s.computed // self.block_size
        for index in range(len(s.table) - 1, -1, -1):
            block = s.table[index]
            if not self.pool.give_back(block, s.seq, index < full and block in self._prefixes):
                self._prefixes.forget(block)
        self._tables.append((s.seq, 0, NONE))
        s.table = []

    # --- words about it ---

    def _told(self, s: _Seq) -> SequenceState:
        return SequenceState(
            seq=s.seq, number=s.seq, status="running" if s.running else "waiting", prompt_tokens=s.prompt,
            known=s.known, computed=s.computed, max_tokens=s.limit - s.prompt,
            limit=s.limit if s.admitted else 0, priority=0,
            arrival=s.arrival, first_token=s.first, last_token=s.last, cached_tokens=s.cached,
            preemptions=s.preemptions, drafted=s.drafted, accepted=s.accepted,
            prompt=synthetic_drafts.sentence(s.seq), output="".join(s.text), label="synthetic",
        )  # fmt: skip

    def _memory(self) -> Memory:
        pool = len(self.pool) * self.block_size * 23_040
        rest = int(self._rng.integers(40 << 20, 44 << 20))
        return Memory(
            weights=269_030_016, kv_pool=pool, baseline=180 << 20, resident=269_030_016 + pool + (180 << 20) + rest
        )
