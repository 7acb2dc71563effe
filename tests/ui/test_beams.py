"""The beams view: lanes, curves where one was taken over, what died, what was found, and honest empty states."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QColor, QWheelEvent

from tests.support.lanes import END, Lanes, sky
from tests.support.synthetic import NoProbe, NoWorkload, SyntheticSource
from tests.ui.scenes import show
from ui.changes import Kinds
from ui.context import ViewContext
from ui.cursor import Cursor
from ui.mirror import Mirror
from ui.paint.labels import write
from ui.selection import Selection
from ui.theme import Theme
from ui.views import beams_grid
from ui.views.beams import BeamsView
from ui.views.beams_grid import LIVING, RANK, blend
from ui.views.beams_list import HEADS_FOUND, HEADS_LANES, lines_of


def context_of(records) -> ViewContext:
    mirror = Mirror()
    for record in records:
        mirror.apply(record)
    return ViewContext(
        mirror, Cursor(mirror), Selection(), Theme("dark"), SyntheticSource(16, 1), NoWorkload(), NoProbe()
    )


def opened(qtbot, records, width=1000, height=500) -> BeamsView:
    view = show(qtbot, BeamsView(context_of(records)), width, height)
    view.failed.connect(lambda error: pytest.fail(repr(error)))
    view.grab()
    return view


def pinned(view: BeamsView, step: int) -> BeamsView:
    view.context.cursor.pin(step)
    view.refresh(Kinds.CURSOR)
    view.grab()
    return view


def box_of(view: BeamsView, spot):
    return next(box for box, at in view.grid.hits if at == spot)


def test_without_lanes_it_says_what_would_bring_them(qtbot):
    view = opened(qtbot, [])
    assert view.moment is None and view._summary == "" and not view.grid.hits


def test_every_token_has_its_cell_in_its_lane_and_position(qtbot):
    view = opened(qtbot, sky()[:3])
    assert {spot for _, spot in view.grid.hits} == {(lane, position) for lane in range(3) for position in range(3)}
    for lane in range(3):
        tops = {box_of(view, (lane, position)).top() for position in range(3)}
        lefts = [box_of(view, (lane, position)).left() for position in range(3)]
        assert len(tops) == 1 and lefts == sorted(set(lefts))
    boxes = [box for box, _ in view.grid.hits]
    assert not any(a.intersects(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


def test_a_dead_branch_is_grey_and_a_living_one_has_its_hue(qtbot):
    view = opened(qtbot, sky()[:3])
    picture, panel = view.grab().toImage(), view.theme.color("panel").rgb()

    def inside(spot) -> QColor:
        box = box_of(view, spot)
        return picture.pixelColor(box.left() + 4, box.bottom() - 4)

    assert inside((1, 1)).rgb() == panel != inside((1, 2)).rgb()  # "The sky" died, " red" lives in the same lane
    assert inside((1, 2)).rgb() == blend(view.theme.sequence_color(41), view.theme.color("panel"), LIVING).rgb()
    assert (1, 1) not in view.moment.alive and not view.moment.continued((1, 1))
    assert view.moment.continued((0, 1)) and view.moment.continued((2, 1))


def test_the_past_is_shown_as_it_was(qtbot):
    view = pinned(opened(qtbot, sky()), 2)
    assert {position for _, (_, position) in view.grid.hits} == {0, 1}
    assert (1, 1) in view.moment.alive and not view.moment.best
    assert "2 blocks spared by sharing" in view._summary


def test_at_the_end_the_best_path_is_lit_and_the_ranks_stand_where_sequences_ended(qtbot):
    view = opened(qtbot, sky())
    assert view.moment.best == {(0, 0), (0, 1), (1, 2)}
    assert view.moment.marks == {(1, 2): [0], (0, 2): [1], (1, 0): [2]}
    heads, lines = lines_of(view.moment.tree, view.moment.step, view.moment.ends)
    assert heads == HEADS_FOUND
    assert [(line.name, line.figures[0], line.text) for line in lines][:2] == [
        ("1", "−0.375", "It is red"),
        ("2", "−0.500", "It is blue"),
    ]
    assert [line.best for line in lines] == [True, False, False]


def test_while_it_runs_a_line_a_lane_reads_what_it_says(qtbot):
    view = opened(qtbot, sky()[:3])
    heads, lines = lines_of(view.moment.tree, view.moment.step, view.moment.ends)
    assert heads == HEADS_LANES
    assert [line.text for line in lines] == ["It is blue", "It is red", "It was not"]


def test_a_line_lights_its_path(qtbot):
    view = opened(qtbot, sky())
    box, path = view.list.hits[1]
    qtbot.mouseMove(view, QPoint(box.left() + 40, box.center().y()))
    assert view.lit == 1 and path == [(0, 0), (0, 1), (0, 2)]
    view.grab()
    qtbot.mouseMove(view, QPoint(2, 2))
    assert view.lit is None


def test_a_cell_tells_where_it_comes_from_and_what_became_of_it(qtbot):
    view = opened(qtbot, sky()[:3])
    assert "branches from seq 40" in view.tell((1, 2)) and "lives" in view.tell((1, 2))
    assert "continues its own lane" in view.tell((1, 1)) and "died" in view.tell((1, 1))
    assert "continues the prompt" in view.tell((2, 0))
    over = opened(qtbot, sky())
    assert "part of what was found: 1, 2" in over.tell((0, 1))


def test_text_in_an_explanation_is_no_markup(qtbot):
    lanes = Lanes(2)
    view = opened(qtbot, [lanes.record({0: (1, "<b>"), 1: (2, "x")}, 0, [*lanes.submitted(), lanes.fork(1, 0, 0)])])
    assert "&lt;b&gt;" in view.tell((0, 0))


def test_blocks_are_named_with_the_lanes_that_share_them(qtbot):
    view = pinned(opened(qtbot, sky()), 2)
    assert [words for _, words in view._bars] == [
        "block 5: logical 0 of seq 40, 41, 42",
        "block 7: logical 1 of seq 40",
        "block 6: logical 1 of seq 41",
        "block 8: logical 1 of seq 42",
    ]


def test_a_click_chooses_the_lane_and_a_selection_its_request(qtbot):
    records = sky()
    lanes = Lanes(2, beams=False, number=9, first=60)
    lanes.step = records[-1].step
    records.append(lanes.record({0: (1, "a"), 1: (2, "b")}, 0, [*lanes.submitted(), lanes.fork(1, 0, 0)]))
    view = opened(qtbot, records)
    assert view.moment.tree.number == 9
    view.context.selection.choose(41)
    view.refresh(Kinds.SELECTION)
    view.grab()
    assert view.moment.tree.number == 7
    box = box_of(view, (0, 1))
    qtbot.mouseClick(view, Qt.MouseButton.LeftButton, pos=box.center())
    assert view.context.selection.seq == 40
    chip = next(box for box, tree in view._chips if tree.number == 9)
    qtbot.mouseClick(view, Qt.MouseButton.LeftButton, pos=chip.center())
    assert view.moment.tree.number == 9


def test_the_newest_positions_are_in_sight_and_the_wheel_goes_back(qtbot):
    lanes = Lanes(2)
    records = [lanes.record({0: (1, " word"), 1: (2, " other")}, 0, [*lanes.submitted(), lanes.fork(1, 0, 0)])]
    records += [lanes.record({0: (1, " word"), 1: (2, " other")}, i) for i in range(1, 60)]
    view = opened(qtbot, records, 600, 300)
    assert max(position for _, (_, position) in view.grid.hits) == 59 and view.grid.furthest > 0
    assert min(position for _, (_, position) in view.grid.hits) > 40
    at = QPointF(300, 100)
    view.wheelEvent(
        QWheelEvent(at, view.mapToGlobal(at), QPoint(), QPoint(0, 100_000), Qt.MouseButton.NoButton,
                    Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase, False)
    )  # fmt: skip
    view.grab()
    assert min(position for _, (_, position) in view.grid.hits) == 0


def test_the_end_of_what_was_found_is_in_sight_wherever_it_lies(qtbot):
    lanes = Lanes(2)
    first = [*lanes.submitted(), lanes.fork(1, 0, 0)]
    records = [lanes.record({0: (1, " word"), 1: (2, " other")}, i, first if not i else []) for i in range(60)]
    records.append(lanes.record({}, 60, lanes.over(([1] * 9 + [END], "early", -1.0), ([2] * 60 + [END], "late", -9.0))))
    view = opened(qtbot, records, 600, 300)
    assert view.moment.marks == {(0, 8): [0], (1, 59): [1]}
    assert view.rect().contains(box_of(view, (0, 8))) and (1, 59) not in [spot for _, spot in view.grid.hits]
    box, path = view.list.hits[1]
    qtbot.mouseClick(view, Qt.MouseButton.LeftButton, pos=box.center())
    view.grab()
    assert view.rect().contains(box_of(view, path[-1])) and path[-1] == (1, 59)


def test_all_ranks_after_one_cell_have_room(qtbot):
    lanes = Lanes(8)
    first = [*lanes.submitted(), *(lanes.fork(i, 0, 0) for i in range(1, 8))]
    every = {lane: (lane, " word") for lane in range(8)}
    records = [lanes.record(every, i, first if not i else []) for i in range(60)]
    found = [([0] * 60 + [last], "text", -1.0 - last) for last in range(8)]
    view = opened(qtbot, [*records, lanes.record({}, 60, lanes.over(*found))], 600, 400)
    assert view.moment.marks == {(0, 59): list(range(8))}
    ranks, last = 8 * view.theme.px(RANK), box_of(view, (0, 59))
    assert last.right() + ranks < view.rect().right()


def test_lanes_without_room_are_counted(qtbot, monkeypatch):
    said = []

    def noted(painter, box, text, *rest):
        said.append((text, box))
        return write(painter, box, text, *rest)

    monkeypatch.setattr(beams_grid, "write", noted)
    lanes = Lanes(64, beams=False)
    first = [*lanes.submitted(), *(lanes.fork(i, 0, 0) for i in range(1, 64))]
    records = [lanes.record({i: (i, " w") for i in range(64)}, p, first if not p else []) for p in range(3)]
    view = opened(qtbot, records, 700, 240)
    drawn = {lane for _, (lane, _) in view.grid.hits}
    assert 1 < len(drawn) < 64 and drawn == set(range(len(drawn))) and len(view.grid.names) == len(drawn)
    note = next(box for text, box in said if text == f"{64 - len(drawn)} more lanes in a higher view")
    assert view.rect().contains(note) and all(box.bottom() < note.top() for box, _ in view.grid.hits)
    view.resize(700, 800)
    view.grab()
    assert len({lane for _, (lane, _) in view.grid.hits}) == 64


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("size", [(120, 60), (320, 180), (400, 600), (1600, 700)])
@pytest.mark.parametrize("lanes", [2, 8])
def test_it_draws_at_any_size(qtbot, size, scale, lanes):
    made = Lanes(lanes)
    first = [*made.submitted(), *(made.fork(i, 0, 0) for i in range(1, lanes))]
    records = [made.record({i: (i, f" t{i}") for i in range(lanes)}, p, first if not p else []) for p in range(9)]
    context = context_of(records)
    context.theme.set_scale(scale)
    view = show(qtbot, BeamsView(context), *size)
    view.failed.connect(lambda error: pytest.fail(repr(error)))
    view.grab()
    rows = [box for box, _ in view.list.hits]
    bars = [box for box, _ in view._bars]
    cells = [box for box, _ in view.grid.hits]
    assert not any(a.intersects(b) for a in cells for b in (*rows, *bars))
    assert all(view.rect().contains(box) for box in (*rows, *bars))
