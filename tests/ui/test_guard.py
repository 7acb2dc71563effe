"""A view that can't be painted: the painter ends, the window says so once, and all others go on."""

from __future__ import annotations

from PySide6.QtGui import QColor, QPixmap

from tests.ui.scenes import scene, show
from tests.ui.window_harness import Harness
from ui.changes import Kinds
from ui.paint.guard import painting
from ui.views.batch import BatchView
from ui.views.pool import PoolView
from ui.views.tables import TablesView


def fail(*_) -> None:
    raise ValueError("no such colour")


def test_the_painter_ends_and_the_fault_is_handed_on(qtbot) -> None:
    surface, faults = QPixmap(8, 8), []
    painting(surface, fail, faults.append)
    assert not surface.paintingActive() and [str(fault) for fault in faults] == ["no such colour"]
    painting(surface, lambda painter: painter.fillRect(0, 0, 8, 8, QColor("red")), faults.append)
    assert len(faults) == 1 and surface.toImage().pixelColor(4, 4) == QColor("red")


def test_views_tell_that_they_could_not_be_painted(qtbot) -> None:
    for kind, part, name in (
        (BatchView, None, "draw"),
        (PoolView, "canvas", "_render"),
        (TablesView, "area", "_paint_rows"),
    ):
        view = show(qtbot, kind(scene()), 500, 300)
        faults: list[Exception] = []
        view.failed.connect(faults.append)
        broken = view if part is None else getattr(view, part)
        whole = getattr(broken, name)
        setattr(broken, name, fail)
        view.refresh(Kinds.ALL)
        view.grab()
        assert faults and all(isinstance(fault, ValueError) for fault in faults), kind
        setattr(broken, name, whole)
        faults.clear()
        view.refresh(Kinds.ALL)
        assert not view.grab().isNull() and not faults


def test_the_window_says_it_once(qtbot) -> None:
    h = Harness(qtbot)
    view = h.view("pool")
    for _ in range(3):
        view.failed.emit(ValueError("no such colour"))
    qtbot.waitUntil(lambda: "could not be drawn" in h.window.banner.text)
    assert h.window.banner.text.count("no such colour") == 1
    h.window.banner.dismiss.click()
    h.frame(3)
    assert "could not be drawn" not in h.window.banner.text
