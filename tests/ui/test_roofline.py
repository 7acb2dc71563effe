"""Steps on the roofline: sums by hand and beside what the passes really were, points, the present batch in words."""

from __future__ import annotations

from math import isnan
from types import SimpleNamespace

import numpy as np
import pytest

from engine.cost_model import Counts
from engine.profiles import parse
from engine.records import DECODE, PREFILL, ROW
from engine.roof import Roof, unavailable
from tests.ui.roofline_scenes import Served
from ui import roofline
from ui.roofline import (
    DECODES,
    PREFILLS,
    VERIFIES,
    Axes,
    Points,
    Roofs,
    Shown,
    few,
    look,
    points,
    sentence,
    si,
    sums,
    verdict,
)

COUNTS = Counts(weights=1e9, body=4e8, head=1e8, kv=1e5, pair=1e4)
ROOF = Roof(device="d", bandwidth=1e12, flops=1e14, source="data sheet", counts=COUNTS)  # ridge 100


def rows(*each: tuple) -> np.ndarray:
    """(kind, scheduled, context, drafted, accepted, emitted)."""
    return np.array([(seq, *row[:3], row[2], *row[3:]) for seq, row in enumerate(each)], ROW)


def columns(**values) -> SimpleNamespace:
    """One step; what isn't told is 0. Times are ns."""
    names = ("step", "schedule", "draft", "swap", "forward", "sample", "commit", "prefill", "decode", "accepted",
             "rejected", "emitted", "rows", "reads", "pairs", "logits")  # fmt: skip
    return SimpleNamespace(**{name: np.array([values.get(name, 0)]) for name in names})


# --- sums over rows, by hand ---


def test_a_prompt_of_a_hundred_tokens():
    whole = rows((PREFILL, 100, 100, 0, 0, 1))
    assert sums(whole, 100, 0) == (100, 5050, 1)  # 1 + … + 100 pairs, one tile of queries, logits of the last token
    part = rows((PREFILL, 100, 100, 0, 0, 0))
    assert sums(part, 100, 0) == (100, 5050, 0)  # more of the prompt is to come
    later = rows((PREFILL, 200, 500, 0, 0, 1))
    assert sums(later, 200, 0) == (2 * 500, sum(range(301, 501)), 1)  # two tiles read the context each


def test_eight_streams_that_decode():
    contexts = [40, 41, 50, 60, 70, 80, 90, 100]
    batch = rows(*((DECODE, 1, context, 0, 0, 1) for context in contexts))
    assert sums(batch, 0, 0) == (531, 531, 8)


def test_a_verification_reads_what_its_rejected_drafts_saw():
    # three drafts of which one was kept: the pass held 52 + 2 tokens, its four saw 51, 52, 53 and 54
    assert sums(rows((DECODE, 4, 52, 3, 1, 2)), 0, 3) == (54, 51 + 52 + 53 + 54, 4)


def test_a_row_without_tokens_adds_nothing():
    batch = rows((DECODE, 1, 30, 0, 0, 1), (DECODE, 0, 30, 0, 0, 1))
    assert sums(batch, 0, 0) == (30, 30, 1) and sums(None, 0, 0) == (0, 0, 0) == sums(rows()[:0], 0, 0)


# --- beside the engine ---


@pytest.fixture(scope="module")
def served() -> Served:
    return Served()


def test_sums_are_those_of_the_real_passes(served):
    history = served.mirror.history
    kept = history.slice(history.first, history.last)
    assert len(kept) == len(served.passes) > 80
    assert (kept.accepted + kept.rejected).sum() > 40 and kept.prefill.sum() > 500
    tokens = kept.prefill + kept.decode + kept.accepted + kept.rejected
    found = np.stack([tokens, kept.reads, kept.pairs, kept.logits], axis=1)
    assert found.tolist() == [list(each) for each in served.passes]


def test_points_lie_where_the_cost_model_put_them(served):
    profile, roof = parse("h200:llama-3-8b"), served.mirror.ready.roof
    rates = served.source.engine.runner.rates
    shown = look(served.mirror.history, served.mirror.roofs, served.mirror.last_step, True)
    found = shown.points
    assert shown.roof == roof and roof.ridge == pytest.approx(989e12 / 4.8e12)
    assert set(found.kind.tolist()) == {DECODES, VERIFIES, PREFILLS}
    for at, (tokens, reads, pairs, logits) in enumerate(served.passes):
        work = roof.counts.of(tokens, reads, pairs, logits)
        assert found.intensity[at] == pytest.approx(work.intensity)
        assert found.rate[at] == pytest.approx(work.flops / rates.seconds(work), rel=1e-5)
        assert found.rate[at] <= roof.allows(work.intensity)
    assert found.intensity[found.kind == PREFILLS].max() > 60 and profile.device.flops == roof.flops


def test_the_ceiling_of_one_stream_is_bandwidth_over_what_a_token_reads(served):
    alone = Served(requests=1, draft_method="off", draft_length=0)
    shown = look(alone.mirror.history, alone.mirror.roofs, alone.mirror.last_step, True)
    stream, roof = shown.stream, alone.mirror.ready.roof
    read = 15_009_849_344 + 131_072 * (stream.context + 1)
    assert stream.bytes == read and stream.most == pytest.approx(4.8e12 / read) and 300 < stream.most < 320
    assert stream.steps > 10 and 0.5 * stream.most < stream.alone < roof.bandwidth_share * stream.most
    assert stream.of == 1 and stream.each == pytest.approx(stream.alone, rel=0.05)


def test_looking_back_one_step_stands_out_and_later_ones_are_gone(served):
    step = served.mirror.last_step // 2
    shown = look(served.mirror.history, served.mirror.roofs, step, False)
    assert shown.pinned == step == shown.points.step[-1] and shown.here.steps == 1
    assert shown.here.rate == shown.points.rate[-1]
    assert sentence(shown).startswith(f"Step {step:,}, ")


# --- points and words ---


def test_a_step_by_hand():
    sums_of = {"reads": 531, "pairs": 531, "logits": 8}
    one = columns(step=7, decode=8, emitted=8, rows=8, forward=2_000_000, sample=500_000, **sums_of)
    found = points(one, COUNTS)
    moved = 1e9 + 1e5 * (531 + 8)
    flops = 2 * 4e8 * 8 + 2 * 1e8 * 8 + 1e4 * 531
    assert (found.bytes[0], found.flops[0]) == (moved, flops) and found.kind[0] == DECODES
    assert found.intensity[0] == flops / moved == pytest.approx(7.6, abs=0.05)
    assert found.rate[0] == flops / 2e-3 and found.whole[0] == 2.5e-3 and found.context[0] == 531 / 8
    assert points(columns(step=8, forward=5), COUNTS).step.tolist() == []  # nothing was computed
    assert points(columns(step=8, prefill=9), COUNTS).step.tolist() == []  # or nobody knows how long it took


@pytest.mark.parametrize(
    ("prefill", "decode", "rejected", "kind"),
    [(0, 8, 0, DECODES), (0, 8, 3, VERIFIES), (9, 8, 0, PREFILLS), (8, 8, 0, DECODES), (8, 8, 3, VERIFIES)],
)
def test_a_step_is_what_most_of_its_tokens_are(prefill, decode, rejected, kind):
    one = columns(prefill=prefill, decode=decode, rejected=rejected, forward=1, reads=9, rows=1)
    assert points(one, COUNTS).kind.tolist() == [kind]


def shown(intensity: float, rate: float, roof: Roof = ROOF, kind: int = DECODES, pinned: int = 0) -> Shown:
    here = roofline.Here(kind, intensity, rate, 8, 30, 16)
    return Shown(roof, None, here, None, pinned)


def test_the_present_batch_in_a_sentence():
    assert sentence(shown(9.04, 0.62 * 9.04e12)) == (
        "Batch of 8: 9.0 FLOP a byte, 91 under the ridge: bound by bandwidth; reaches 62 % of what the roof allows"
    )
    assert sentence(shown(400, 5e13, kind=PREFILLS)) == (
        "A step of 30 tokens, mostly prefill: 400 FLOP a byte, 300 over the ridge: bound by arithmetic; "
        "reaches 50 % of what the roof allows"
    )
    assert sentence(shown(98, 4.9e13, kind=VERIFIES, pinned=1234)).startswith(
        "Step 1,234, batch of 8 with drafts, 30 tokens: 98 FLOP a byte, at the ridge: bound by bandwidth and arithmetic"
    )
    faster = sentence(shown(9, 1.5 * 9e12))
    assert "faster than what was measured at start, by 50 %: caches held part of what it read" in faster
    unknown = sentence(shown(9, 2e12, unavailable("x", COUNTS, "why")))
    assert unknown == "Batch of 8: 9.0 FLOP a byte at 2.00 TFLOP/s; how much the device allows is not known"
    assert sentence(Shown(ROOF, None, None, None, 0)) == "No step has computed anything yet"
    assert sentence(Shown(ROOF, None, None, None, 12)) == "Step 12 computed nothing"


def test_what_binds_the_present_batch_is_said_first():
    assert verdict(shown(9.04, 0.62 * 9.04e12)) == (
        "Bound by bandwidth, at 62 % of what the roof allows", "batch of 8 · 9.0 FLOP a byte, 91 under the ridge"
    )  # fmt: skip
    assert verdict(shown(400, 5e13, kind=PREFILLS)) == (
        "Bound by arithmetic, at 50 % of what the roof allows",
        "a step of 30 tokens, mostly prefill · 400 FLOP a byte, 300 over the ridge",
    )
    at, of = verdict(shown(98, 4.9e13, kind=VERIFIES, pinned=1234))
    assert at.startswith("Step 1,234: bound by bandwidth and arithmetic alike, at 50 %") and of.endswith("at the ridge")
    assert verdict(shown(9, 9e11), idle=True)[0].startswith("Idle; before: bound by bandwidth, at 10 %")
    faster, why = verdict(shown(9, 1.5 * 9e12))
    assert faster == "Bound by bandwidth, at 150 % of what was measured at start"
    assert why.endswith("caches held part of what it read")
    unknown = verdict(shown(9, 2e12, unavailable("x", COUNTS, "why")))
    assert unknown == ("2.00 TFLOP/s; how much the device allows is not known", "batch of 8 · 9.0 FLOP a byte")
    assert verdict(Shown(ROOF, None, None, None, 12)) == ("Step 12 computed nothing", "")


def test_numbers_are_written_as_data_sheets_do():
    assert [si(v, "B/s") for v in (36.06e9, 4.8e12, 17, 0)] == ["36.1 GB/s", "4.80 TB/s", "17.0 B/s", "0.00 B/s"]
    assert si(989e12, "FLOP/s") == "989 TFLOP/s" and si(999.99e9, "B") == "1000 GB"
    assert [few(v) for v in (208.3, 14.2, 9.11, 0.4)] == ["208", "14", "9.1", "0.40"]


def test_each_engine_has_its_own_roof():
    roofs, other = Roofs(), unavailable("x", COUNTS, "why")
    assert roofs.at(5) == (0, None)
    roofs.start(1, ROOF)
    roofs.start(100, other)
    assert roofs.at(99) == (1, ROOF) and roofs.at(100) == (100, other)
    for step in range(200, 400):
        roofs.start(step, None)
    assert roofs.at(1) == (0, None) and roofs.at(399) == (399, None)


def test_an_engine_without_a_roof_shows_nothing(served):
    found = look(served.mirror.history, Roofs(), 100, True)
    assert found == Shown(None, None, None, None, 0)


def test_axes_hold_the_roof_and_every_point_but_stalls():
    many = np.linspace(2, 300, 200)
    rate = np.where(np.arange(200) == 7, 1.0, 0.4 * np.minimum(1e14, many * 1e12))
    found = Points(*(many if name == "intensity" else rate for name in Points._fields))
    axes = Axes.around(ROOF, found)
    assert axes.x(1.0) >= 0 and axes.x(ROOF.ridge) < 0.85 and axes.y(ROOF.flops) < 1
    assert (axes.x(many) >= 0).all() and (axes.x(many) <= 1).all() and (axes.y(rate) <= 1).all()
    assert axes.y(rate)[7] == 0 and axes.y(np.delete(rate, 7)).min() > 0
    assert axes.x(10.0) - axes.x(1.0) == pytest.approx(axes.x(100.0) - axes.x(10.0))
    empty = Points(*(np.zeros(0) for _ in Points._fields))
    assert Axes.around(ROOF, empty).y(ROOF.flops) < 1
    assert Axes.around(unavailable("x", COUNTS, "why"), empty).top > Axes.around(ROOF, empty).bottom - 99


def test_one_stream_is_unknown_until_it_was_seen(served):
    stream = look(served.mirror.history, served.mirror.roofs, 3, False).stream
    assert stream.steps == 0 and isnan(stream.alone)
