"""What a pass came to, put into its sequences: tokens, counters, ends; and noted for the record.

Of a row's new tokens those after an end (end of sequence, stop string, max tokens, context, looked at in this
order) are dropped, and their drafts count as discarded, for nobody will ever see them accepted. It refuses to know
how tokens were chosen, which blocks hold them and which rows come next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from engine.block_pool import Span
from engine.records import ACCEPTED, DECODE, DISCARDED, PREFILL, REJECTED
from engine.runner.batch import ScheduledRow
from engine.sampler import Outcome
from engine.sequence import Sequence
from engine.texts import Texts

Draft = tuple[int, int, int, float, float, float]  # position, token, verdict, p, q, draw


@dataclass(slots=True)
class Commit:
    """One step's results, collected row by row in the form the record wants."""

    texts: Texts
    eos_ids: frozenset[int]
    now: int  # engine clock when the tokens were there
    rows: list[tuple[int, ...]] = field(default_factory=list)  # records.ROW
    emitted: list[tuple[int, int, int, int]] = field(default_factory=list)  # records.TOKEN
    text: list[str] = field(default_factory=list)
    drafts: list[tuple[int, ...] | tuple[float, ...]] = field(default_factory=list)  # records.DRAFT
    draft_text: list[str] = field(default_factory=list)
    recomputed: int = 0  # tokens that a preemption had cost
    reached: list[Span] = field(default_factory=list)  # tokens of each row that have K/V now
    ended: dict[Sequence, str] = field(default_factory=dict)  # and why

    def put(self, row: ScheduledRow, outcome: Outcome | None) -> None:
        """Take one row's outcome (None: it reached no logits)."""
        sequence, drafted = row.sequence, len(row.drafts)
        before = len(sequence.tokens)
        kind = DECODE if sequence.decoding else PREFILL
        kept, accepted, reason = 0, 0, ""
        if outcome is not None:
            reason = self._take(sequence, outcome)
            kept = len(sequence.tokens) - before
            if drafted:
                accepted = min(outcome.accepted, kept)
                self._note_drafts(sequence.seq, outcome.drafts, before + kept)
                sequence.drafted += drafted
                sequence.accepted += accepted
        reach = sequence.computed + row.own + accepted  # what lies beyond is K/V of drafts that were not kept
        assert reach <= len(sequence.tokens)
        self.count(sequence, reach)
        self.reached.append((sequence, sequence.computed + row.stored, reach))
        if reason:
            self.ended[sequence] = reason
        self.rows.append((sequence.seq, kind, row.own + drafted, reach, before + kept, drafted, accepted, kept))

    def put_forked(self, sequence: Sequence, outcome: Outcome) -> None:
        """Take a token whose logits were those of the sequence that it was forked from just now."""
        self._add(sequence, PREFILL, 0, outcome)

    def put_lane(self, row: ScheduledRow, outcome: Outcome) -> None:
        """As `put`, of a beam whose K/V is settled: its lane may continue another beam since."""
        sequence = row.sequence
        kind = DECODE if len(sequence.tokens) > sequence.prompt_tokens else PREFILL
        self._add(sequence, kind, row.own, outcome)

    def _add(self, sequence: Sequence, kind: int, scheduled: int, outcome: Outcome) -> None:
        if outcome.tokens and (reason := self._take(sequence, outcome)):
            self.ended[sequence] = reason
        known, emitted = len(sequence.tokens), len(outcome.tokens)
        self.rows.append((sequence.seq, kind, scheduled, sequence.computed, known, 0, 0, emitted))

    def count(self, sequence: Sequence, reach: int) -> None:
        """Its K/V comes to `reach` tokens: how many of them had been computed before."""
        if sequence.computed < sequence.reached:
            self.recomputed += min(reach, sequence.reached) - sequence.computed

    def _take(self, sequence: Sequence, outcome: Outcome) -> str:
        seq, tokens, request = sequence.seq, sequence.tokens, sequence.request
        sequence.first_token = sequence.first_token or self.now
        sequence.last_token = self.now
        most = sequence.prompt_tokens + request.max_tokens
        eos_ids = () if request.ignore_eos else self.eos_ids
        for token, origin in zip(outcome.tokens, outcome.origins, strict=True):
            self.emitted.append((seq, len(tokens), token, origin))
            tokens.append(token)
            piece, ended = ("", True) if token in eos_ids else self.texts.append(seq, token)
            self.text.append(piece)
            if piece:
                sequence.pieces.append(piece)
            if request.beams:  # which beams end is their search's to say
                continue
            if ended:
                return "stop"
            if len(tokens) >= sequence.limit:  # never above `most`
                return "length" if len(tokens) == most else "context"
        return ""

    def _note_drafts(self, seq: int, drafts: list[Draft], end: int) -> None:
        """`end`: position after the last token kept; what was decided beyond it came to nothing."""
        for position, token, verdict, p, q, draw in drafts:
            if position >= end:
                if verdict in (ACCEPTED, REJECTED):
                    verdict, draw = DISCARDED, math.nan
                elif verdict != DISCARDED:
                    continue  # a resampled or bonus token that was dropped
            self.drafts.append((seq, position, token, verdict, p, q, draw))
            self.draft_text.append(self.texts.piece(token))
