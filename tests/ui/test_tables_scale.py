"""Block tables at the scale of a data-centre card: only rows in sight are painted, and every row can be reached."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, QSize, Qt
from PySide6.QtGui import QColor

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


def test_pictures_kept_are_bounded_by_their_bytes(qtbot, monkeypatch):
    view = show(qtbot, TablesView(scene(8_000, 256, 40)), 1_600, 900)
    kept = view.area._painter
    whole = view.area.viewport().grab().toImage()
    assert 0 < sum(tables_row._bytes(each) for each in kept._kept.values()) == kept._bytes < tables_row.KEPT_BYTES / 4
    monkeypatch.setattr(tables_row, "KEPT_BYTES", kept._bytes // 3)
    view.area.verticalScrollBar().setValue(0)
    for _ in range(3):  # more is wanted than is kept, and the picture stays the same
        assert view.area.viewport().grab().toImage() == whole
        view.area._painter._picture(("another", _), QSize(40, 20), QColor("red"), lambda painter: None)
    assert sum(tables_row._bytes(each) for each in kept._kept.values()) == kept._bytes <= tables_row.KEPT_BYTES
