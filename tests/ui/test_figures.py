"""Figures shown equal an offline recount from the records alone."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from engine.formulas import percentile
from engine.records import ACCEPTED, DRAFT, REJECTED, ROW, TOKEN, Admitted, Finished, StepRecord, Submitted, unpack
from tests.support.synthetic import SyntheticSource
from ui import figures
from ui.cursor import Cursor
from ui.figures import Targets
from ui.mirror import Mirror

S = 1_000_000_000


class Recount:
    """From records to figures, the slow and obvious way."""

    def __init__(self, records: list[StepRecord], known: dict[int, tuple[int, int, int]]):
        self.records = records
        self.arrival: dict[int, int] = {}
        self.tokens: dict[int, list[int]] = {}  # clocks of its tokens
        self.emissions: dict[int, list[int]] = {}  # instants at which it emitted
        self.ended: dict[int, tuple[int, str]] = {}
        self.admitted: dict[int, int] = {}
        for record in records:
            for event in record.events:
                if isinstance(event, Submitted):
                    self.arrival[event.seq] = event.arrival
                elif isinstance(event, Admitted):
                    self.admitted.setdefault(event.seq, record.clock)
                elif isinstance(event, Finished):
                    self.ended[event.seq] = (record.end_clock, event.reason)
            seqs = unpack(record.emitted, TOKEN)["seq"].tolist()
            for seq in seqs:
                self.tokens.setdefault(seq, []).append(record.end_clock)
            for seq in dict.fromkeys(seqs):
                self.emissions.setdefault(seq, []).append(record.end_clock)
        self.old = known  # seq → arrival, first token, output tokens of those that ran before

    def whole(self) -> list[int]:
        """Sequences seen from arrival to end."""
        return [seq for seq in self.ended if seq in self.arrival]


@pytest.fixture(scope="module")
def run() -> tuple[Mirror, Recount, SyntheticSource]:
    source, mirror = SyntheticSource(300, 12, 11), Mirror()
    mirror.apply_all(source.poll())
    known = {s.seq: (s.arrival, s.first_token, s.known - s.prompt_tokens) for s in mirror.live.sequences.values()}
    records: list[StepRecord] = []
    for step in range(900):
        if step == 400:
            source.world.change(draft_length=1)
        if step == 600:
            source.world.change(draft_length=6, token_budget=512)
        source.advance()
        messages = source.poll()
        records += messages  # type: ignore[arg-type]
        mirror.apply_all(messages)
    return mirror, Recount(records, known), source


def test_ttft_tpot_and_end_to_end(run) -> None:
    mirror, recount, _ = run
    requests = {r.seq: r for r in mirror.history.requests}
    whole = recount.whole()
    assert len(whole) > 30
    for seq in whole:
        clocks, request = recount.tokens[seq], requests[seq]
        assert request.ttft == pytest.approx((clocks[0] - recount.arrival[seq]) / S)
        assert request.e2e == pytest.approx((recount.ended[seq][0] - recount.arrival[seq]) / S)
        assert request.queue == pytest.approx((recount.admitted[seq] - recount.arrival[seq]) / S)
        assert request.output_tokens == len(clocks)
        if len(clocks) > 1:
            assert request.tpot == pytest.approx((clocks[-1] - clocks[0]) / (len(clocks) - 1) / S)
        else:
            assert request.tpot is None
        assert request.reason == "length" and not request.aborted
    ttft = sorted((t[0] - recount.arrival[s]) / S for s, t in recount.tokens.items() if s in recount.arrival)
    assert np.sort(mirror.history.ttft.value).tolist() == pytest.approx(ttft)


def test_gaps_between_tokens(run) -> None:
    mirror, recount, _ = run
    gaps = [b - a for e in recount.emissions.values() for a, b in itertools.pairwise(e)]
    gaps += [e[0] - recount.old[s][1] for s, e in recount.emissions.items() if s in recount.old]
    assert np.sort(mirror.history.itl.value).tolist() == pytest.approx(sorted(g / S for g in gaps))


def test_columns(run) -> None:
    mirror, recount, _ = run
    columns = mirror.history.slice()
    assert columns.step.tolist() == [r.step for r in recount.records]
    for index, record in enumerate(recount.records):
        rows = unpack(record.rows, ROW)
        scheduled = columns.prefill[index] + columns.decode[index] + columns.accepted[index] + columns.rejected[index]
        assert scheduled == rows["scheduled"].sum()
        assert columns.accepted[index] + columns.rejected[index] == rows["drafted"].sum()
        assert columns.emitted[index] == len(record.text) == rows["emitted"].sum()
        assert (columns.used[index], columns.free[index]) == (record.used, record.free)
        assert columns.budget[index] == record.settings.token_budget
        assert columns.gamma[index] == record.settings.draft_length
    assert all(column.flags.c_contiguous for column in (columns.step, columns.forward, columns.bound))


def test_headline_of_now_and_of_a_past_moment(run) -> None:
    mirror, recount, _ = run
    cursor = Cursor(mirror)
    for step in (None, 250, 777):
        if step is None:
            head, last = figures.headline(mirror), recount.records[-1]
        else:
            cursor.pin(step)
            head, last = figures.headline(mirror, cursor), recount.records[step - 1]
            assert head == figures.headline(mirror, step)
        now = last.end_clock
        start = max(now - 5 * S, recount.records[0].clock)
        recent = [r for r in recount.records if now - 5 * S < r.end_clock <= now]
        start = max(now - 5 * S, recent[0].clock)
        assert head.tokens_per_s == pytest.approx(sum(len(r.text) for r in recent) / ((now - start) / S))
        assert head.kv_used == last.used / last.settings.kv_blocks
        assert (head.running, head.waiting) == (last.running, last.waiting)
        latest = [r for r in recount.records if last.step - 200 < r.step <= last.step]
        verdict = np.concatenate([unpack(r.drafts, DRAFT)["verdict"] for r in latest])
        assert head.acceptance == pytest.approx((verdict == ACCEPTED).sum() / (verdict <= REJECTED).sum())
        firsts = [
            (t[0], (t[0] - recount.arrival[s]) / S) for s, t in recount.tokens.items() if s in recount.arrival
        ]
        window = [value for clock, value in firsts if now - 60 * S < clock <= now]
        assert head.ttft_p50 == pytest.approx(percentile(window, 50))


def test_goodput(run) -> None:
    mirror, recount, _ = run
    now = recount.records[-1].end_clock
    start = max(now - 60 * S, recount.records[0].clock)
    values = sorted(r.ttft for r in mirror.history.requests if r.ttft is not None)
    aim = Targets(ttft=values[len(values) // 2], tpot=10.0)
    good = [r for r in mirror.history.requests if r.finish_clock > now - 60 * S and r.ttft <= aim.ttft]
    assert figures.goodput(mirror.history, now, targets=aim) == pytest.approx(len(good) / ((now - start) / S))
    assert 0 < len(good) < len(mirror.history.requests)


def test_before_and_after_a_mark(run) -> None:
    mirror, recount, _ = run
    marks = mirror.history.marks
    assert [(m.step, m.key) for m in marks] == [(401, "draft_length"), (601, "token_budget"), (601, "draft_length")]
    first, second = marks[0], marks[1]
    both = figures.around(mirror, first)
    before = [r for r in recount.records if first.clock - 30 * S < r.end_clock <= first.clock]
    after = [r for r in recount.records if first.clock < r.end_clock <= min(second.clock, first.clock + 30 * S)]
    assert before[-1].step == 400 and after[0].step == 401 and after[-1].step == 600
    for part, records, start in ((both.before, before, before[0].clock), (both.after, after, first.clock)):
        seconds = (records[-1].end_clock - start) / S
        assert part.seconds == pytest.approx(seconds)
        assert part.tokens_per_s == pytest.approx(sum(len(r.text) for r in records) / seconds)
        assert part.goodput >= 0 and part.ttft_p50 > 0
    assert figures.around(mirror, marks[2]).before.tokens_per_s == figures.around(mirror, second).before.tokens_per_s


def test_acceptance_by_position(run) -> None:
    mirror, recount, _ = run
    examined, accepted = mirror.history.acceptance(100)
    mine = np.zeros((2, len(examined)), int)
    for record in recount.records[-100:]:
        drafts = unpack(record.drafts, DRAFT)
        for seq in np.unique(drafts["seq"]):
            for place, verdict in enumerate(drafts["verdict"][drafts["seq"] == seq].tolist()):
                mine[0][place] += verdict <= REJECTED
                mine[1][place] += verdict == ACCEPTED
    assert (examined == mine[0]).all() and (accepted == mine[1]).all()
    passes = sum(len(np.unique(unpack(r.drafts, DRAFT)["seq"])) for r in recount.records[-100:])
    assert figures.tokens_per_pass(mirror.history, window=100) == pytest.approx(mine[1].sum() / passes + 1)


def test_passes_are_the_last_ones_whole(run) -> None:
    mirror, recount, _ = run
    passes = list(mirror.history.passes)
    assert len(passes) == len(mirror.history.passes) and 2_000 <= len(passes) < 2_012
    assert [p.step for p in passes] == sorted(p.step for p in passes)
    last = recount.records[-1]
    mine = [p for p in passes if p.step == last.step]
    assert b"".join(p.drafts.tobytes() for p in mine) == last.drafts
    assert [t for p in mine for t in p.texts] == last.draft_text
    assert [p.step for p in reversed(mirror.history.passes)] == [p.step for p in reversed(passes)]
    assert next(mirror.history.passes.until(850)).step == 850
    assert passes[-1].seq == mirror.history.passes[-1].seq


def test_nothing_measured_is_nan() -> None:
    head = figures.headline(Mirror())
    assert math.isnan(head.tokens_per_s) and math.isnan(head.ttft_p50) and math.isnan(head.kv_used)


def test_until_a_request_finished_tpot_is_that_of_the_running_ones() -> None:
    source = SyntheticSource(512, 16)
    mirror = Mirror()
    source.advance(6)
    mirror.apply_all(source.poll())
    state = mirror.live
    assert not len(mirror.history.tpot)
    running = [state.sequences[seq] for seq in state.running]
    paces = [(i.last_token - i.first_token) / (i.output_tokens - 1) / S for i in running if i.output_tokens > 1]
    assert paces and figures.headline(mirror).tpot_p50 == pytest.approx(percentile([p for p in paces if p], 50))
