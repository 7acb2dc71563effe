"""The roofline as painted: marks lie where the model says, in both themes; the mouse, the past, what is absent."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication

from engine.roof import unavailable
from tests.ui.roofline_scenes import Served
from tests.ui.scenes import scene, show
from tests.ui.window_harness import Harness
from ui import layout
from ui.changes import Kinds
from ui.palette import contrast
from ui.roofline import KINDS, Roofs
from ui.theme import token_rgb
from ui.views.catalog import VIEWS
from ui.views.roofline import RooflineView
from ui.views.roofline_figures import _shortened, figures
from ui.views.roofline_marks import AGES, TOKENS, age_of, color, fold


@pytest.fixture(scope="module")
def served() -> Served:
    return Served(requests=24)


@pytest.fixture
def view(qtbot, served) -> RooflineView:
    return show(qtbot, RooflineView(served.context()), 1200, 560)


def rebuilt(served: Served, view: RooflineView, roof) -> None:
    """The same engine under another roof."""
    view.context.mirror.roofs = Roofs()
    view.context.mirror.roofs.start(1, roof)
    view.refresh(Kinds.ALL)


@pytest.fixture
def restored(served):
    yield
    served.mirror.roofs = Roofs()
    served.mirror.roofs.start(1, served.mirror.ready.roof)


def pixel(view: RooflineView, x: int, y: int) -> str:
    return view.grab().toImage().pixelColor(x, y).name()


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [(1200, 560), (700, 380), (2600, 1300)])
def test_marks_lie_where_their_intensity_and_rate_are(qtbot, served, theme, size):
    view = show(qtbot, RooflineView(served.context(theme)), *size)
    image, chart, found = view.grab().toImage(), view.chart, view.shown.points
    plot, axes = chart.plot, chart.axes
    for log, low, span, pixels in (
        (np.log10(found.intensity), axes.left, axes.right - axes.left, (chart.x - plot.left()) / (plot.width() - 1)),
        (np.log10(found.rate), axes.bottom, axes.top - axes.bottom, (plot.bottom() - chart.y) / (plot.height() - 1)),
    ):
        assert np.abs((log - low) / span - pixels).max() <= 0.51 / min(plot.width() - 1, plot.height() - 1)
    here = view.chart._at(view.shown.here.intensity, view.shown.here.rate)
    seen = 0
    for at in fold(chart.x, chart.y, found.kind, view.theme.px(3)).tolist():
        x, y = int(chart.x[at]), int(chart.y[at])
        newer = np.hypot(chart.x[at + 1 :] - x, chart.y[at + 1 :] - y)
        if (newer > 16).all() and np.hypot(here.x() - x, here.y() - y) > 90:
            expected = color(view, int(found.kind[at]), age_of(len(found) - 1 - at)).name()
            assert image.pixelColor(x, y).name() == expected, (at, KINDS[int(found.kind[at])])
            seen += 1
    assert seen >= 3
    present = view.theme.color(TOKENS[view.shown.here.kind]).name()
    assert image.pixelColor(int(here.x()), int(here.y())).name() == present


def test_the_roof_is_drawn_at_its_ridge_and_the_ground_lies_under_it(view):
    image, roof, chart = view.grab().toImage(), view.shown.roof, view.chart
    knee = chart._at(roof.ridge, roof.flops)
    limit = view.theme.color("limit").name()
    assert image.pixelColor(int(knee.x()), int(knee.y())).name() == limit
    for intensity in (2.0, 20.0, 1000.0):
        on = chart._at(intensity, roof.allows(intensity))
        column = [image.pixelColor(int(on.x()), int(on.y()) + d).name() for d in (-2, -1, 0, 1, 2)]
        assert limit in column
        under, over = (image.pixelColor(int(on.x()), int(on.y()) + d).name() for d in (9, -9))
        assert under == view.theme.color("free").name() and over == view.theme.color("panel").name()


def test_of_marks_in_one_place_the_newest_is_painted():
    x, y = np.array([10, 11, 50, 10, 10]), np.array([10, 10, 50, 10, 10])
    kind = np.array([0, 0, 0, 1, 0], np.uint8)
    assert fold(x, y, kind, 3).tolist() == [2, 3, 4]
    assert fold(x[:0], y[:0], kind[:0], 3).tolist() == []
    assert [age_of(back) for back in (0, 23, 24, 119, 120, 499, 500, 10**6)] == [0, 0, 1, 1, 2, 2, 3, 3]
    shares = [share for _, share in AGES]
    assert shares == sorted(shares, reverse=True) and shares[0] == 1


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_kinds_are_told_apart_and_seen_on_their_ground(theme):
    for token in TOKENS.values():
        assert contrast(token_rgb(token, theme), token_rgb("free", theme)) >= 3


def test_hovering_tells_the_step_under_the_mouse_and_a_click_pins_it(view, qtbot, monkeypatch):
    told = []
    monkeypatch.setattr(RooflineView, "tip", lambda self, where, text: told.append(text))
    view.grab()
    at = int(np.argmax(view.shown.points.intensity))
    spot, step = QPoint(int(view.chart.x[at]), int(view.chart.y[at])), int(view.shown.points.step[at])
    before = pixel(view, spot.x() + view.theme.px(5), spot.y())
    qtbot.mouseMove(view, spot)
    QApplication.processEvents()
    near = view.chart.nearest(spot)
    step = int(view.shown.points.step[near])
    assert f"<b>step {step:,}</b>" in told[-1] and "mostly prefill" in told[-1] and "FLOP a byte" in told[-1]
    assert "FLOP/s" in told[-1] and "B/s" in told[-1] and " ms" in told[-1]
    assert pixel(view, spot.x() + view.theme.px(5), spot.y()) != before  # it stands out
    qtbot.mouseMove(view, view.chart.plot.topLeft() + QPoint(3, 3))
    assert told[-1] == ""
    qtbot.mouseClick(view, Qt.MouseButton.LeftButton, pos=spot)
    assert view.context.cursor.pinned == step
    view.refresh(Kinds.CURSOR)
    assert view.shown.pinned == step and view.shown.points.step[-1] == step
    qtbot.mouseClick(view, Qt.MouseButton.LeftButton, pos=view.chart.plot.topLeft() + QPoint(3, 3))
    assert view.context.cursor.pinned == step  # nothing was there
    qtbot.mouseDClick(view, Qt.MouseButton.LeftButton, pos=view.chart.plot.topLeft() + QPoint(3, 3))
    assert view.context.cursor.pinned == step  # so there is nothing to take back
    view.context.cursor.live()
    qtbot.mouseClick(view, Qt.MouseButton.LeftButton, pos=spot)
    qtbot.mouseDClick(view, Qt.MouseButton.LeftButton, pos=spot)
    assert view.context.cursor.is_live


def test_each_figure_says_where_it_comes_from(view, served, restored):
    assert view.provenance == "simulated"
    told = figures(view, view.shown)
    assert [one.tag for one in told] == ["simulated"] * len(told)
    assert told[1].name == "one stream, at most" and "4.80 TB/s ÷ 15" in told[1].note
    served.source.provenance = "measured"
    try:
        real = msgspec.structs.replace(served.mirror.ready.roof, source="measured", note="measured at start")
        rebuilt(served, view, real)
        assert view.provenance == "derived"
        tags = {one.name: one.tag for one in figures(view, view.shown)}
        assert tags["arithmetic"] == "derived" and tags["ridge"] == "derived"
        assert tags["one stream, at most"] == "derived"
        streams = [tag for name, tag in tags.items() if name.startswith(("each of", "one stream, alone"))]
        assert streams and set(streams) == {"measured"}
        sheet = msgspec.structs.replace(real, source="data sheet")
        rebuilt(served, view, sheet)
        assert figures(view, view.shown)[-1].tag == "data sheet"
        assert not view.grab().isNull()
    finally:
        served.source.provenance = "simulated"


def test_where_a_figure_comes_from_is_said_where_it_differs_from_the_views_own(view, served, restored, monkeypatch):
    said = []
    monkeypatch.setattr(
        "ui.views.roofline_figures.badge", lambda painter, right, y, height, text, font, color: said.append(text) or 40
    )
    view.grab()
    assert said == []  # everything is simulated, as the panel says
    served.source.provenance = "measured"
    try:
        rebuilt(served, view, msgspec.structs.replace(served.mirror.ready.roof, source="data sheet"))
        view.grab()
        tags = [one.tag for one in figures(view, view.shown)]
        assert said == [tag for tag in tags if tag != "derived"] and {"measured", "data sheet"} == set(said)
    finally:
        served.source.provenance = "simulated"


@pytest.mark.parametrize(("size", "role"), [((1200, 560), "headline"), ((700, 260), "brand")])
def test_the_verdict_is_the_largest_of_all_words(qtbot, served, monkeypatch, size, role):
    drawn = []
    from ui.paint import labels

    def noted(painter, rect, text, font, color, where=labels.LEFT):
        drawn.append((font.pixelSize(), text))
        return labels.write(painter, rect, text, font, color, where)

    for part in ("roofline", "roofline_figures", "roofline_chart"):
        monkeypatch.setattr(f"ui.views.{part}.write", noted)
    view = show(qtbot, RooflineView(served.context()), *size)
    drawn.clear()
    view.grab()
    assert drawn[0][1] == view._verdict[0] and drawn[0][0] == view.theme.font(role).pixelSize()
    assert drawn[0][0] == max(size for size, _ in drawn)
    values = [one.value for one in figures(view, view.shown)]
    assert sum(text in values and size == drawn[0][0] for size, text in drawn) == (role == "headline")  # one, beside it


def test_where_there_is_hardly_room_what_binds_is_said_whole(qtbot, served, monkeypatch):
    from ui.paint import labels

    drawn = []
    monkeypatch.setattr(
        "ui.views.roofline.write",
        lambda painter, rect, text, font, *rest: drawn.append((text, rect.width(), labels.advance(font, text))),
    )
    for wide, whole in ((520, False), (1200, True)):
        view = show(qtbot, RooflineView(served.context()), wide, 130)
        drawn.clear()
        view.grab()
        text, room, width = drawn[0]
        assert text == (view.told if whole else view._verdict[0]) and width <= room


def test_bars_compare_what_one_stream_gets_with_its_ceiling(view):
    most, each = (one for one in figures(view, view.shown) if one.bar)
    stream = view.shown.stream
    assert (most.bar, each.bar) == (stream.most, stream.each) and most.unit == each.unit == "tok/s"
    assert most.colour == "limit" and each.colour == TOKENS[view.shown.here.kind]
    assert each.bar > most.bar  # with drafts it may be


def test_notes_are_as_long_as_all_figures_can_have_them():
    lines = ["a b", "c d", "e"]
    assert _shortened(lines, 3) == lines and _shortened(lines, 2) == ["a b", "c d e"]
    assert _shortened(lines, 1) == ["a b c d e"] and _shortened(lines, 0) == [] == _shortened([], 3)


def test_idle_is_said(view):
    assert not view.context.cursor.state.sequences and view.told.startswith("Idle; before, ")
    view.context.cursor.pin(20)
    view.refresh(Kinds.CURSOR)
    assert view.told.startswith("Step 20, ")


def test_a_card_without_a_data_sheet_has_points_but_no_roof(view, served, restored):
    rebuilt(served, view, unavailable("TITAN", served.mirror.ready.roof.counts, "no data sheet of TITAN is known here"))
    image = view.grab().toImage()
    assert len(view.shown.points) > 80 and "how much the device allows is not known" in view.told
    told = figures(view, view.shown)
    assert [one.tag for one in told if one.name in ("one stream, at most", "ridge")] == ["unavailable"] * 2
    assert "no data sheet of TITAN" in told[-1].note
    at = int(np.argmax(view.shown.points.intensity))
    x, y = int(view.chart.x[at]), int(view.chart.y[at])
    assert image.pixelColor(x, y).name() != view.theme.color("free").name()


def test_what_is_missing_is_said(qtbot, served):
    view = show(qtbot, RooflineView(scene(steps=30)), 700, 300)  # a source that tells no roof
    assert view.provenance == "unavailable" and view._summary == ""
    assert view._missing()[0] == "Nothing is known of this device" and not view.grab().isNull()
    view.context.mirror.ready = None
    assert view._missing()[0] == "No engine yet"
    fresh = Served(requests=0, steps=2)
    view = show(qtbot, RooflineView(fresh.context()), 1000, 500)
    assert view.shown.roof.known and not len(view.shown.points) and view.told.startswith("No step has computed")
    assert not view.grab().isNull() and view.chart.plot.width() > 300  # the roof stands already


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("size", [(120, 60), (300, 130), (520, 240), (760, 300), (1264, 560), (3800, 1900)])
def test_it_fits_into_any_panel(qtbot, served, size, scale):
    context = served.context()
    context.theme.set_scale(scale)
    view = show(qtbot, RooflineView(context), *size)
    assert not view.grab().isNull()
    plot = view.chart.plot
    assert plot.isEmpty() or view.rect().contains(plot)


def test_r_fills_the_window_with_it_and_brings_the_others_back(qtbot):
    harness = Harness(qtbot, views=None)
    deck = harness.window.deck
    assert not deck.docks["roofline"].shown and "roofline" not in layout.placed(layout.ROOMY) and RooflineView in VIEWS
    qtbot.keyClick(harness.window, Qt.Key.Key_R)
    harness.frame()
    assert deck.filled == "roofline" and deck.docks["roofline"].shown and not deck.docks["pool"].shown
    qtbot.keyClick(harness.window, Qt.Key.Key_R)
    assert deck.filled is None and not deck.docks["roofline"].shown


def test_out_of_sight_it_costs_nothing(qtbot, monkeypatch):
    harness = Harness(qtbot, views=None)
    asked = []
    monkeypatch.setattr(RooflineView, "refresh", lambda self, kinds: asked.append(kinds))
    harness.run(20)
    assert asked == []
