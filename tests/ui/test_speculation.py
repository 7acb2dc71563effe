"""The speculation view: rows of chips that say what was decided, acceptance, and honest empty states."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import QPoint, Qt

from engine.records import ACCEPTED, BONUS, DISCARDED, DRAFT, REJECTED, RESAMPLED
from tests.ui.scenes import advance, scene, show
from ui.changes import Kinds
from ui.history import Pass
from ui.views.pace import Pace
from ui.views.pass_rows import chip, reading_order, tip
from ui.views.speculation import SpeculationView


def one_pass(*verdicts: int) -> Pass:
    drafts = np.zeros(len(verdicts), DRAFT)
    drafts["verdict"], drafts["p"], drafts["q"], drafts["draw"] = verdicts, 0.3, 0.5, 0.41
    return Pass(9, 4, drafts, [f"w{i}" for i in range(len(verdicts))])


@pytest.fixture
def view(qtbot):
    return show(qtbot, SpeculationView(scene(steps=200)), 640, 320)


def test_the_replacement_stands_beside_what_it_replaces():
    assert reading_order(np.array([ACCEPTED, REJECTED, DISCARDED, DISCARDED, RESAMPLED])) == [0, 1, 4, 2, 3]
    assert reading_order(np.array([ACCEPTED, ACCEPTED, BONUS])) == [0, 1, 2]


def test_a_chip_has_a_shape_beside_its_colour(view):
    told = one_pass(ACCEPTED, REJECTED, DISCARDED, RESAMPLED)
    chips = [chip(view.theme, told, i) for i in range(4)]
    assert [c.symbol for c in chips] == ["✓", "✕", "–", "+"]
    assert chips[1].struck and chips[2].dashed
    assert [c.color.name() for c in chips] == [
        view.theme.color(token).name() for token in ("accepted", "rejected", "text_faint", "bonus")
    ]
    assert chips[0].note == "0.30 / 0.50" and chips[2].note == ""


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
