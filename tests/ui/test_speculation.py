"""The speculation view: rows of chips that say what was decided, acceptance, and honest empty states."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QWheelEvent

from engine.records import ACCEPTED, BONUS, DISCARDED, DRAFT, REJECTED, RESAMPLED, Ack, Change
from tests.ui.scenes import advance, scene, show
from ui.changes import Kinds
from ui.history import Pass
from ui.views.pace import Pace
from ui.views.pass_rows import chip, folded, reading_order, tip
from ui.views.speculation import SpeculationView


def one_pass(*verdicts: int) -> Pass:
    drafts = np.zeros(len(verdicts), DRAFT)
    drafts["verdict"], drafts["p"], drafts["q"], drafts["draw"] = verdicts, 0.3, 0.5, 0.41
    return Pass(9, 4, drafts, [f"w{i}" for i in range(len(verdicts))])


@pytest.fixture
def view(qtbot):
    return show(qtbot, SpeculationView(scene(steps=200)), 640, 320)


def test_the_replacement_stands_beside_what_it_replaces():
    assert reading_order([ACCEPTED, REJECTED, DISCARDED, DISCARDED, RESAMPLED]) == [0, 1, 4, 2, 3]
    assert reading_order([ACCEPTED, ACCEPTED, BONUS]) == [0, 1, 2]


def test_a_chip_has_a_shape_beside_its_colour(view):
    kinds = (ACCEPTED, REJECTED, DISCARDED, RESAMPLED)
    chips = [chip(view.theme, "fox", kind, 0.3, 0.5) for kind in kinds]
    assert [c.symbol for c in chips] == ["✓", "✕", "–", "→"]
    assert [c.look for c in chips] == ["solid", "struck", "dashed", "outlined"]
    assert [c.color.name() for c in chips] == [
        view.theme.color(token).name() for token in ("accepted", "rejected", "text_faint", "bonus")
    ]
    assert chips[0].note == "p .30 q .50" and chips[2].note == ""


def test_the_explanation_has_the_numbers():
    words = tip(one_pass(ACCEPTED), 0)
    assert "min(1, 0.30/0.50) = 0.60; drew 0.41" in words and "seq 4 · step 9" in words


def test_text_in_an_explanation_is_no_markup():
    told = one_pass(ACCEPTED)
    told.texts[0] = "<b>"
    assert "&lt;b&gt;" in tip(told, 0)


def test_the_newest_passes_are_shown_first(view):
    steps = [one.step for one in view.shown.passes]
    assert steps == sorted(steps, reverse=True) and steps[0] <= 200
    assert len(view.rows.rows) >= 3
    assert "n-gram · γ 4" in view._summary and "tokens per pass" in view._summary


def test_a_past_moment_shows_its_own_passes(view):
    view.context.cursor.pin(120)
    view.refresh(Kinds.CURSOR)
    assert max(one.step for one in view.shown.passes) <= 120


def test_a_click_on_a_row_chooses_its_sequence(view, qtbot):
    view.grab()
    box, seq = view.rows.rows[1]
    qtbot.mouseClick(view, Qt.MouseButton.LeftButton, pos=QPoint(box.left() + 2, box.center().y()))
    assert view.context.selection.seq == seq


@pytest.mark.parametrize("changes", [{"draft_length": 0}, {"draft_method": "off"}])
def test_drafting_that_is_off_says_so(view, changes):
    view.context.source.world.change(**changes)
    advance(view.context, 3)
    view.refresh(Kinds.ALL)
    assert view.shown.figures.state in ("off", "method_off")
    assert view._summary.startswith("drafts off")


def test_before_the_first_step_it_waits(qtbot):
    view = show(qtbot, SpeculationView(scene(steps=0)), 400, 200)
    assert view.shown is None and not view.grab().isNull()


def test_figures_change_at_a_pace_that_can_be_read(view):
    now = [0.0]
    pace = Pace(0.25, clock=lambda: now[0])
    assert pace.due(view.context) and not pace.due(view.context)
    now[0] = 0.3
    assert pace.due(view.context)


def test_at_rest_every_change_is_shown(view):
    pace = Pace(0.25, clock=lambda: 0.0)
    pace.due(view.context)
    view.context.cursor.pin(100)
    assert pace.due(view.context) and pace.due(view.context)


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("size", [(160, 60), (320, 180), (400, 600), (1600, 700)])
def test_nothing_is_drawn_outside_or_over_another(qtbot, size, scale):
    context = scene(steps=120)
    context.theme.set_scale(scale)
    view = show(qtbot, SpeculationView(context), *size)
    view.grab()
    card = view._figures[0][0]
    for box, _ in view.rows.hits:
        assert view.rect().contains(box) and not box.intersects(card)
    boxes = [box for box, _ in view.rows.hits]
    assert not any(a.intersects(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


def test_positions_that_have_no_row_stand_side_by_side(qtbot):
    context = scene(steps=100)
    context.source.world.change(draft_length=12)
    advance(context, 60)
    view = show(qtbot, SpeculationView(context), 560, 230)
    view.grab()
    told = [words for _, words in view._figures if "examined drafts" in words]
    assert len(told) == 12


def test_of_a_long_draft_the_end_stays_in_sight(view):
    told = [ACCEPTED] * 6 + [REJECTED, DISCARDED, DISCARDED, RESAMPLED]
    one = one_pass(*told)
    items = view.rows._items(one, told, 600, False)
    few = folded(items, told, lambda chosen: len(chosen) <= 5)
    assert few[0][0].text == "×5" and "first 5 drafts were accepted" in few[0][1]()
    assert [made.symbol for made, _ in few] == ["✓", "✓", "✕", "→", "–"] and few[-1][0].text == "×2"
    assert folded(items, told, lambda chosen: True) == items


def test_a_rejection_names_what_took_its_place():
    told = one_pass(REJECTED, RESAMPLED)
    told.drafts["draw"] = np.nan
    assert "the target's own choice was “w1”" in tip(told, 0)


# --- what fills a window ---

PARTS = ("examined drafts", "drafting passes accepted", "per emitted token", "at a batch of about")


@pytest.fixture
def stage(qtbot):
    return show(qtbot, SpeculationView(scene(steps=300)), 1280, 560)


def test_a_filled_window_shows_every_part_in_larger_text(qtbot, stage):
    told = " ".join(words for _, words in stage._figures)
    assert all(part in told for part in PARTS)
    large = show(qtbot, SpeculationView(scene(steps=300)), 1900, 880)
    assert large.theme.scale > stage.theme.scale >= 1.0
    assert large.rows.hits[0][0].height() > 1.3 * stage.rows.hits[0][0].height()


def test_a_tall_dock_shows_the_parts_below_each_other(qtbot):
    tall = show(qtbot, SpeculationView(scene(steps=300)), 520, 900)
    told = " ".join(words for _, words in tall._figures)
    assert all(part in told for part in PARTS)


def test_the_wheel_scrolls_the_passes_which_then_hold_still(qtbot, stage):
    before = stage.rows.fitting
    assert len(stage.shown.passes) == 50 > before
    top = stage.shown.passes[0]
    for _ in range(60):
        _wheel(stage, -120)
    assert stage.rows.first == 50 - stage.rows.fitting
    advance(stage.context, 20)
    stage.refresh(Kinds.STEPS | Kinds.SETTINGS)
    assert stage.shown.passes[0] == top
    for _ in range(60):
        _wheel(stage, 120)
    stage.refresh(Kinds.STEPS | Kinds.SETTINGS)
    assert stage.rows.first == 0 and stage.shown.passes[0].step > top.step


def _wheel(view, delta: int) -> None:
    place = QPointF(view.rect().center())
    event = QWheelEvent(
        place, place, QPoint(), QPoint(0, delta), Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier,
        Qt.ScrollPhase.NoScrollPhase, False,
    )  # fmt: skip
    view.wheelEvent(event)


def test_simulated_acceptance_is_said_loudly_everywhere(stage):
    stage.context.source.world.change(simulated_acceptance=(0.8,))
    advance(stage.context, 60)
    stage.refresh(Kinds.ALL)
    assert stage.provenance == "simulated" and stage.source_of("derived") == "simulated"
    assert stage._summary.startswith("simulated acceptance")
    assert stage.shown.said.loud[0] == "Simulated acceptance"
    assert not stage.shown.said.headline.startswith(("Pays", "Costs", "Even"))
    chip_box = stage.rows.hits[0]
    assert "simulated" in chip_box[1]() or "bonus" in chip_box[1]()


def test_a_refused_draft_is_shown_until_another_one_is_in_force(stage):
    mirror = stage.context.mirror
    mirror.apply(Ack(id=9, ok=False, step=1, key="draft_model", message="it has another vocabulary; take …"))
    stage.refresh(Kinds.ALL)
    assert stage.shown.said.loud == ("Draft refused", "it has another vocabulary; take …", "danger")
    stage.context.source.world.change(draft_length=2)
    advance(stage.context, 2)
    assert mirror.draft_refused is not None
    stage.context.source.world.change(draft_method="suffix")
    advance(stage.context, 2)
    stage.refresh(Kinds.ALL)
    assert stage.shown.said.loud is None


def test_a_refusal_of_another_setting_is_none_of_a_draft(stage):
    stage.context.mirror.apply(Ack(id=9, ok=False, step=1, key="max_batch", message="too large"))
    assert stage.context.mirror.draft_refused is None


def test_measure_makes_steps_without_drafts_and_shows_the_draft_length_that_is_meant(stage, qtbot):
    mirror, source = stage.context.mirror, stage.context.source
    assert stage.measure.isVisible()
    qtbot.mouseClick(stage.measure, Qt.MouseButton.LeftButton)
    assert mirror.alternation.on and stage.measure.text() == "Measuring"
    mirror.alternation.tick(source, mirror.settings, mirror.last_step, mirror.acks)
    advance(stage.context, 10)
    assert mirror.settings.draft_length == 0
    stage.refresh(Kinds.ALL)
    assert "γ 4" in stage._summary and stage.shown.figures.state == "known"
    qtbot.mouseClick(stage.measure, Qt.MouseButton.LeftButton)
    assert [c.changes for c in source.sent if isinstance(c, Change)] == [{"draft_length": 0}, {"draft_length": 4}]


def test_a_past_moment_in_a_stretch_without_drafts_shows_the_draft_length_that_was_meant(stage):
    mirror, source = stage.context.mirror, stage.context.source
    mirror.alternation.begin(mirror.settings, mirror.last_step)
    for _ in range(60):
        mirror.alternation.tick(source, mirror.settings, mirror.last_step, mirror.acks)
        advance(stage.context, 1)
    gamma = mirror.history.slice().gamma
    stage.context.cursor.pin(int(mirror.history.slice().step[gamma == 0][5]))
    stage.refresh(Kinds.CURSOR)
    assert "γ 4" in stage._summary and stage.shown.figures.state == "known"


def test_a_change_of_drafts_starts_the_figures_anew(stage):
    stage.context.source.world.change(draft_length=8)
    advance(stage.context, 5)
    stage.refresh(Kinds.ALL)
    assert stage.shown.counts.steps == 5


def test_nothing_is_counted_twice(stage):
    counts = stage.shown.counts.verified
    assert counts.lengths.sum() == counts.examined[0]
    assert (counts.lengths * np.arange(17)).sum() == counts.accepted.sum()


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [(1280, 560), (1900, 900), (3800, 1900), (520, 900), (1000, 420)])
def test_parts_of_a_filled_window_keep_apart(qtbot, size, theme):
    view = show(qtbot, SpeculationView(scene(steps=200, theme=theme)), *size)
    boxes = [box for box, _ in view.rows.hits] + [box for box, _ in view._figures]
    assert all(view.rect().contains(box) for box in boxes)
    assert not any(a.intersects(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])
