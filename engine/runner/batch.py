"""The packed batch: all rows' tokens one after the other, with where each token's K/V goes and is read.

Prefill chunks, decodes and verifications are the same thing here: a row of consecutive tokens at consecutive
positions. It refuses to know what a model does with them. No loop over tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import chain

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.sequence import Sequence

Ints = NDArray[np.int64]


class ScheduledRow(msgspec.Struct, gc=False):
    """What one sequence computes this step: `own` known tokens from `sequence.computed` on, then `drafts`.

    Made for every row of every step, so of a kind that is cheap to make. Nothing that it holds leads back to it.
    """

    sequence: Sequence
    own: int
    drafts: list[int]
    wants_logits: bool  # the row reaches its last known token, so its next token can be sampled
    stored: int = 0  # of its own tokens, leading ones whose K/V is in the pool already

    @property
    def scheduled(self) -> int:
        return self.own + len(self.drafts)


@dataclass(slots=True)
class PackedBatch:
    """T tokens in R rows; N of them want logits.

    A token at position i attends to positions 0..i of its own row's table.
    """

    tokens: Ints  # (T)
    positions: Ints  # (T) from the sequence's first token
    slots: Ints  # (T) block · block_size + offset: where the token's K/V is written; −1: it is there already
    row_starts: Ints  # (R + 1) row r is tokens[row_starts[r]:row_starts[r + 1]]
    contexts: Ints  # (R) tokens with K/V after this pass, drafts included
    tables: Ints  # (R, max_blocks) block ids, padded with 0
    logit_index: Ints  # (N) indices into T, rows in plan order: of a row its last own token, then each draft
    sources: Ints | None = None  # (T) see `Launcher.launch`; −1: the token is in `tokens`; None: all are
    # what the runner made of it
    graph: bool = False  # it replayed a recorded pass
    padded: int = 0  # tokens that it computed besides, to fill that pass's shape


def pack(rows: Rows[ScheduledRow], block_size: int) -> PackedBatch:
    """Lay `rows` out. Tables must already hold every block that the rows write to."""
    count = len(rows)
    parts: list[list[int]] = []  # the batch's tokens, in runs
    shape: list[int] = []  # five numbers a row
    stored: list[int] = []  # rows
    for index, row in enumerate(rows):
        sequence, own, drafts = row.sequence, row.own, row.drafts
        start = sequence.computed
        parts.append(sequence.tokens[start : start + own])
        if drafts:
            parts.append(drafts)
        shape += (start, own, len(drafts), len(sequence.table), row.wants_logits)
        if row.stored:
            stored.append(index)

    start, own, drafted, held, wants = np.array(shape, dtype=np.int64).reshape(count, 5).T  # each (R)
    lengths = own + drafted
    row_starts = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(lengths, out=row_starts[1:])
    total = int(row_starts[-1])

    tokens = np.fromiter(chain.from_iterable(parts), dtype=np.int64, count=total)
    positions = np.arange(total) + np.repeat(start - row_starts[:-1], lengths)  # (T)

    # all tables as one run of ids, put where each row has that many entries
    entries = np.frombuffer(b"".join([row.sequence.table for row in rows]), dtype=np.int64)
    tables = np.zeros((count, int(held.max(initial=0))), dtype=np.int64)
    tables[np.arange(tables.shape[1]) < held[:, None]] = entries
    assert np.all(held * block_size >= start + lengths), "a row writes beyond its table"
    row_of = np.repeat(np.arange(count), lengths)  # (T)
    slots = tables[row_of, positions // block_size] * block_size + positions % block_size
    for index in stored:
        slots[row_starts[index] : row_starts[index] + rows[index].stored] = -1

    asked = np.where(wants != 0, drafted + 1, 0)  # (R) logits wanted of each row: the last `asked` tokens of it
    ends = np.cumsum(asked)
    logit_index = np.arange(int(asked.sum())) + np.repeat(row_starts[1:] - ends, asked)  # (N)
    return PackedBatch(tokens, positions, slots, row_starts, start + lengths, tables, logit_index)
