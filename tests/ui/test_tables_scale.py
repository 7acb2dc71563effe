"""Block tables at the scale of a data-centre card: only rows in sight are painted, and every row can be reached."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt

from tests.ui.scenes import scene, show
from ui.views import tables_row
from ui.views.tables import TablesView


def painted(view: TablesView, monkeypatch) -> int:
    """Rows painted for one picture."""
    area, count = view.area, []
    real = area._painter.paint
    monkeypatch.setattr(area._painter, "paint", lambda *args: count.append(1) or real(*args))
    area.viewport().grab()
    monkeypatch.undo()
    return len(count)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_only_rows_in_sight_are_painted(qtbot, monkeypatch, share):
    few, many = (show(qtbot, TablesView(scene(8_000, count, 40)), 700, 400) for count in (64, 256))
    for view in (few, many):
        bar = view.area.verticalScrollBar()
        assert bar.maximum() > 0
        bar.setValue(int(share * bar.maximum()))
    room = many.area.viewport().height() // many.area._painter.height + 2
    assert 0 < painted(many, monkeypatch) <= room
    assert abs(painted(many, monkeypatch) - painted(few, monkeypatch)) <= 2


def test_every_row_can_be_scrolled_to_and_chosen(qtbot):
    view = show(qtbot, TablesView(scene(8_000, 256, 40)), 700, 400)
    area, bar = view.area, view.area.verticalScrollBar()
    for index in (0, 1, len(area.rows) // 2, len(area.rows) - 1):
        bar.setValue(index * area._painter.height)
        row = area.row_rect(index)
        spot = QPoint(4, row.center().y())
        assert area.at(spot)[0] == area.rows[index]
        view.context.selection.choose()
        qtbot.mousePress(area.viewport(), Qt.MouseButton.LeftButton, pos=spot)
        assert view.context.selection.seq == area.rows[index]


def test_pictures_kept_are_bounded_by_what_the_view_can_show(qtbot, monkeypatch):
    view = show(qtbot, TablesView(scene(8_000, 256, 40)), 1_600, 900)
    area, pictures = view.area, view.area._painter.pictures
    whole = area.viewport().grab().toImage()
    screen = 4 * area.viewport().width() * area.viewport().height()
    assert 0 < pictures.bytes <= screen  # all that is in sight is kept
    monkeypatch.setattr(tables_row, "_painted", lambda *_: pytest.fail("painted again, and nothing has changed"))
    assert area.viewport().grab().toImage() == whole
    monkeypatch.undo()
    for value in range(0, area.verticalScrollBar().maximum(), area._painter.height * 10):
        area.verticalScrollBar().setValue(value)
        area.viewport().grab()
        assert pictures.bytes <= 2 * screen
    area.verticalScrollBar().setValue(0)
    assert area.viewport().grab().toImage() == whole
