"""A drafter that runs a model: another checkpoint, the target's own first layers, or its weights in fewer bits.

It follows each sequence at a pace of its own, in K/V of its own. Of a sequence it remembers how many of its tokens
have K/V here; whatever else is known of it when a draft is asked for, a whole prompt or the one token that a
verification ended with, is computed in the same packed pass as the first drafted token. So the target's preemptions,
swaps, prefix hits and resized pools are nothing to it. A rejected draft is found by comparing tokens: its K/V is
written over.

All sequences draft together, one pass for each token of the longest draft; a row drops out when it has its own. Where
this pool has no room for a sequence, or its context goes beyond what the draft model was trained for, it isn't drafted
for: that costs speed and nothing else.

Knows tokens and a runner; refuses to know the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec
import numpy as np
import torch

from engine.config import MAX_DRAFT
from engine.penalties import penalise
from engine.runner.base import Runner
from engine.runner.batch import Ints, PackedBatch
from engine.sampler import BadLogits, Outcome, likeliest
from engine.speculation.drawn import draw
from engine.speculation.proposer import Ask, Drafts

# Tokens of prompts caught up in one pass, over all sequences: they delay every stream's next token, by about 85 ms on
# two cores with a model of 135 million weights in 4 bits. Who needs more catches up over several steps and doesn't
# draft meanwhile.
CATCH_UP = 128
# What one verification brings at most is caught up in any case.
_BROUGHT = MAX_DRAFT + 1
# Logits put into float64 at a time, as in the sampler.
_CHUNK = 4 << 20


class _Cache(msgspec.Struct):
    """What one sequence has here. A token that was drafted has K/V, but for the last of its draft; whether it came
    true is seen when the next draft is asked for."""

    computed: int = 0  # leading tokens of the sequence with K/V
    drafts: list[int] = []  # drafted tokens with K/V, behind them
    table: list[int] = []  # block ids, logical order

    def settle(self, tokens: list[int]) -> None:
        """Drafts that came true are computed, the others are void; the last token is always computed again, because
        its logits are wanted."""
        for drafted in self.drafts:
            if self.computed >= len(tokens) or tokens[self.computed] != drafted:
                break
            self.computed += 1
        self.drafts.clear()
        self.computed = min(self.computed, len(tokens) - 1)


class _Row(msgspec.Struct):
    """One sequence's part in a round of drafting."""

    place: int  # among the asks
    ask: Ask
    cache: _Cache
    count: int  # known tokens computed in the first pass
    limit: int  # tokens to draft; 0: it is still catching up
    drafted: list[int] = []
    q: list[torch.Tensor] = []  # (vocabulary) that they were drawn from


class DraftModel:
    """See `engine.speculation.proposer.Proposer`. `bytes`: what it holds in memory and the target doesn't."""

    watches = False

    def __init__(self, runner: Runner, vocabulary: int, draws: bool, own_weights: bool):
        """`runner`: nobody else's, its pool sized. `vocabulary`: of the target's logits. `draws`: drafts of sampled
        requests are drawn, else they are the likeliest tokens. `own_weights`: they aren't the target's."""
        self.runner = runner
        memory = runner.memory()
        self.bytes = memory.kv_pool + (memory.weights if own_weights else 0)
        self._target, self._own = vocabulary, runner.model.vocabulary
        self._longest = runner.model.max_positions  # tokens
        self._draws = draws
        self._caches: dict[int, _Cache] = {}  # by sequence, whoever was asked for last stands last
        self._free = list(range(runner.num_blocks - 1, -1, -1))

    def propose(self, asks: list[Ask]) -> Drafts:
        drafts = Drafts([[] for _ in asks])
        rows = self._rows(asks)
        if not rows:
            return drafts
        drafting = [row for row in rows if row.limit]
        tables = _tables(rows)
        starts = [row.cache.computed for row in rows]
        parts = [row.ask.tokens[start : start + row.count] for row, start in zip(rows, starts, strict=True)]
        logits = self._pass(starts, parts, tables, len(drafting))
        for row in rows:
            row.cache.computed += row.count
        while drafting and self._choose(logits, drafting):
            for row in drafting:
                drafts.tokens[row.place].append(row.drafted[-1])
            done = len(drafting[0].drafted)
            drafting = [row for row in drafting if row.limit > done]  # the first ones: the longest drafts stand first
            if drafting:
                starts = [len(row.ask.tokens) + done - 1 for row in drafting]
                logits = self._pass(starts, [row.drafted[-1:] for row in drafting], tables, len(drafting))
                for row in drafting:
                    row.cache.drafts.append(row.drafted[-1])
        drafts.q = {row.place: torch.stack(row.q) for row in rows if row.q}
        return drafts

    def see(self, seqs: Sequence[int], outcomes: Sequence[Outcome], hidden: torch.Tensor) -> None:
        raise NotImplementedError  # it doesn't watch

    def forget(self, seq: int) -> None:
        cache = self._caches.pop(seq, None)
        if cache is not None:
            self._release(cache)

    def check(self) -> None:
        """Assert that every block is free or in one table, and that tables hold what they are said to."""
        held = list(chain(self._free, *(cache.table for cache in self._caches.values())))
        assert sorted(held) == list(range(self.runner.num_blocks)), "a block is lost, or held twice"
        for cache in self._caches.values():
            assert cache.computed + len(cache.drafts) <= len(cache.table) * self.runner.block_size, cache

    # --- who takes part ---

    def _rows(self, asks: list[Ask]) -> list[_Row]:
        """Longest drafts first, and behind them who only catches up."""
        waiting: list[_Row] = []
        for place, ask in enumerate(asks):
            cache = self._caches.pop(ask.seq, None) or _Cache()
            self._caches[ask.seq] = cache
            cache.settle(ask.tokens)
            known = len(ask.tokens)
            limit = min(ask.limit, self._longest - known)
            if limit > 0 and self._reads(ask.tokens[cache.computed :]):
                waiting.append(_Row(place, ask, cache, known - cache.computed, limit))
            else:
                self._release(cache)
        waiting.sort(key=lambda row: row.count)  # who has little to catch up drafts, however long the others' prompts
        rows: list[_Row] = []
        left, idle = CATCH_UP, len(self._caches) - len(asks)
        for row in waiting:
            behind = row.count > _BROUGHT
            if behind and not left:
                break
            idle = self._make_room(row, idle)
            if not row.cache.table:
                continue
            if behind:
                if row.count > left:
                    row.count, row.limit = left, 0
                left -= row.count
            rows.append(row)
        rows.sort(key=lambda row: -row.limit)
        return rows

    def _reads(self, tokens: list[int]) -> bool:
        """Whether its embedding has a row for each: a checkpoint may be padded to more ids than another."""
        return self._own >= self._target or max(tokens) < self._own

    def _make_room(self, row: _Row, idle: int) -> int:
        """Blocks for all that the row may come to compute now, or none at all: who doesn't get them gives back what
        it has, so that others draft on. `idle`: sequences that nobody asked about, whose blocks are taken first, as
        preempted ones'; how many are left."""
        cache, size = row.cache, self.runner.block_size
        need = -(-(len(row.ask.tokens) + row.limit - 1) // size) - len(cache.table)
        while need > len(self._free) and idle:
            self.forget(next(iter(self._caches)))
            idle -= 1
        if need > len(self._free):
            self._release(cache)
        else:
            cache.table += [self._free.pop() for _ in range(need)]
        return idle

    def _release(self, cache: _Cache) -> None:
        self._free += cache.table
        cache.table, cache.drafts, cache.computed = [], [], 0

    # --- a pass ---

    def _pass(self, starts: list[int], parts: list[list[int]], tables: Ints, wanted: int) -> torch.Tensor:
        """Compute each row's tokens from position `starts` on; logits after the last one of the first `wanted` rows,
        (wanted, vocabulary), of ids that the target has too."""
        size, count = self.runner.block_size, len(parts)
        lengths = np.array([len(part) for part in parts])
        first = np.array(starts)
        row_starts = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(lengths, out=row_starts[1:])
        total = int(row_starts[-1])
        tokens = np.fromiter(chain.from_iterable(parts), dtype=np.int64, count=total)
        positions = np.arange(total) + np.repeat(first - row_starts[:-1], lengths)  # (T)
        row_of = np.repeat(np.arange(count), lengths)  # (T)
        slots = tables[row_of, positions // size] * size + positions % size
        ends = row_starts[1 : wanted + 1] - 1
        batch = PackedBatch(tokens, positions, slots, row_starts, first + lengths, tables[:count], ends)
        return self.runner.execute(batch)[:, : self._target]

    def _choose(self, logits: torch.Tensor, rows: list[_Row]) -> bool:
        """A drafted token more for each row. False, and none, where the model gave no numbers: the drafts end there."""
        try:
            tokens = likeliest(logits := _penalised(logits, rows)).tolist()
        except BadLogits:
            return False
        drawn = [i for i, row in enumerate(rows) if not row.ask.params.greedy] if self._draws else []
        step = max(1, _CHUNK // logits.shape[1])
        for start in range(0, len(drawn), step):
            some = drawn[start : start + step]
            for i, token in zip(some, self._draw(logits[some], [rows[i] for i in some]), strict=True):
                tokens[i] = token
        for row, token in zip(rows, tokens, strict=True):
            row.drafted.append(token)
        return True

    def _draw(self, logits: torch.Tensor, rows: list[_Row]) -> list[int]:
        """From the distribution that each request's temperature and filters make of its logits, which is kept."""
        positions = np.array([len(row.ask.tokens) + len(row.drafted) for row in rows])
        q, tokens = draw(logits, [row.ask.params for row in rows], positions)
        if self._own < self._target:
            q = torch.nn.functional.pad(q, (0, self._target - self._own))
        for row, each in zip(rows, q, strict=True):
            row.q.append(each)
        return tokens.tolist()


def _penalised(logits: torch.Tensor, rows: list[_Row]) -> torch.Tensor:
    """As the target's will be: a draft that repeats what its request is penalised for would hardly be accepted. What
    the target counts is left as it is."""
    places = []
    for i, row in enumerate(rows):
        if (penalties := row.ask.params.penalties) is not None:
            places.append((i, penalties, [*row.ask.tokens[penalties.known :], *row.drafted]))
    return penalise(logits, places) if places else logits


def _tables(rows: list[_Row]) -> Ints:
    """(R, max_blocks) block ids, padded with 0."""
    tables = np.zeros((len(rows), max(len(row.cache.table) for row in rows)), dtype=np.int64)
    for row, cache in zip(tables, (row.cache for row in rows), strict=True):
        row[: len(cache.table)] = cache.table
    return tables
