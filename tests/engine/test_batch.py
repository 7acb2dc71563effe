"""The packed batch against one built token by token."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from engine.records import Request
from engine.runner.batch import ScheduledRow, pack
from engine.sequence import Sequence


def row(seq: int, known: int, computed: int, own: int, drafts: list[int], table: list[int]) -> ScheduledRow:
    tokens = [100 * seq + i for i in range(known)]
    sequence = Sequence(
        seq=seq, number=seq, request=Request(number=seq), prompt_tokens=known, tokens=tokens, arrival=0, order=(0, seq)
    )
    sequence.computed, sequence.table = computed, array("q", table)
    return ScheduledRow(sequence, own, drafts, computed + own == known)


def slowly(rows: list[ScheduledRow], size: int) -> dict[str, list]:
    out: dict[str, list] = {"tokens": [], "positions": [], "slots": [], "row_starts": [0], "contexts": [], "logits": []}
    for r in rows:
        s = r.sequence
        for i, token in enumerate([*s.tokens[s.computed : s.computed + r.own], *r.drafts]):
            position = s.computed + i
            if r.wants_logits and i >= r.own - 1:
                out["logits"].append(len(out["tokens"]))
            out["tokens"].append(token)
            out["positions"].append(position)
            out["slots"].append(s.table[position // size] * size + position % size)
        out["row_starts"].append(len(out["tokens"]))
        out["contexts"].append(s.computed + r.own + len(r.drafts))
    return out


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize(
    "rows",
    [
        [row(1, 1, 0, 1, [], [5])],
        [row(1, 9, 8, 1, [], [3, 7, 1]), row(2, 5, 4, 1, [8, 9, 10], [2, 9])],
        [row(1, 9, 8, 1, [7], [3, 7, 1]), row(2, 16, 3, 6, [], [0, 4, 2, 8]), row(3, 7, 0, 7, [], [11, 10])],
        [row(1, 12, 2, 3, [], [3, 7, 1])],
    ],
)
def test_packing(rows: list[ScheduledRow], size: int) -> None:
    batch, expected = pack(rows, size), slowly(rows, size)
    for name in ("tokens", "positions", "slots", "row_starts", "contexts"):
        assert getattr(batch, name).tolist() == expected[name], name
        assert getattr(batch, name).dtype == np.int64
    assert batch.logit_index.tolist() == expected["logits"]
    longest = max(len(r.sequence.table) for r in rows)
    padded = [[*r.sequence.table, *[0] * (longest - len(r.sequence.table))] for r in rows]
    assert batch.tables.tolist() == padded


def test_a_row_beyond_its_table_is_caught() -> None:
    with pytest.raises(AssertionError):
        pack([row(1, 9, 8, 1, [7], [3, 7])], 4)


def test_tables_can_grow_after_packing() -> None:
    """No view of a table's memory may outlive packing: the array could not grow any more."""
    rows = [row(1, 3, 0, 3, [], [4])]
    batch = pack(rows, 4)
    rows[0].sequence.table.append(9)
    assert batch.tables.tolist() == [[4]]
