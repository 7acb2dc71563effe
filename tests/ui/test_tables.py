"""The tables view: rows in the engine's order, cells that map logical to physical, one selection."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QColor

from app.bench.pool_decoder import pixels
from engine.records import DECODE, PREFILL
from tests.ui.scenes import advance, scene, show
from ui.changes import Kinds
from ui.palette import contrast
from ui.sequences import SequenceInfo
from ui.theme import Theme
from ui.views.pool_shades import HUES, Shades
from ui.views.tables import TablesView
from ui.views.tables_row import Columns, doing, shown_of


def test_rows_are_the_queues_in_order(qtbot) -> None:
    context = scene(300, 16, 57, fill=1.3)
    view = show(qtbot, TablesView(context), 800, 420)
    state = context.mirror.live
    assert view.area.rows == [*state.running, *state.waiting]
    assert view._summary.startswith(f"{len(state.running)} running · {len(state.waiting)} waiting")


def test_cells_map_logical_to_physical(qtbot) -> None:
    context = scene(512, 16, 90)
    view = show(qtbot, TablesView(context), 700, 420)
    area, state = view.area, context.mirror.live
    image, shades = pixels(area.viewport()), Shades(context.theme)
    seen = 0
    for index, seq in enumerate(area.rows):
        table = state.table(seq).tolist()
        if area.row_rect(index).bottom() > area.viewport().height():
            break
        if not table:
            continue
        for logical, block in enumerate(table):
            box = area.cell_rect(seq, logical)
            if box.isEmpty():
                continue
            assert area.at(box.center()) == (seq, logical)
            corner = image[box.bottom() - 4, box.left() + 2]
            assert corner in (*shades.full, *shades.part, *shades.rest)
            if state.filled[block] == 16 and state.refcount[block] == 1:
                assert corner == shades.full[int(state.owner[block]) % HUES]
            seen += 1
        assert not area.cell_rect(seq, len(table) - 1).isEmpty()  # the last one, which fills, always shows
    assert seen > 60


def test_long_tables_scroll_sideways(qtbot) -> None:
    context = scene(4_000, 8, 40)
    view = show(qtbot, TablesView(context), 500, 300)
    area = view.area
    seq = area.rows[0]
    assert area.horizontalScrollBar().maximum() > 0
    assert area.cell_rect(seq, 40).isEmpty()
    area.horizontalScrollBar().setValue(39)
    assert area.at(area.cell_rect(seq, 40).center()) == (seq, 40)


@pytest.mark.parametrize(
    ("length", "scroll", "capacity", "want"),
    [(5, 0, 10, (0, 5, False)), (20, 0, 10, (0, 7, True)), (20, 12, 10, (12, 20, False)), (0, 3, 10, (0, 0, False))],
)
def test_what_fits(length: int, scroll: int, capacity: int, want: tuple[int, int, bool]) -> None:
    part = shown_of(length, scroll, Columns(0, 0, 0, 20, 2, capacity))
    assert (part.low, part.high, part.last) == want


def test_many_rows_paint_only_what_is_visible(qtbot) -> None:
    context = scene(8_000, 256, 20)
    view = show(qtbot, TablesView(context), 700, 300)
    area = view.area
    assert len(area.rows) >= 200
    painted: list[int] = []
    paint = area._painter.paint
    area._painter.paint = lambda *parts: (painted.append(parts[4].seq), paint(*parts))  # type: ignore[method-assign]
    area.verticalScrollBar().setValue(area.verticalScrollBar().maximum())
    pixels(area.viewport())
    assert 0 < len(painted) < 40 and painted[-1] == area.rows[-1]


def test_click_and_hover_link_the_views(qtbot) -> None:
    context = scene(512, 16, 90)
    view = show(qtbot, TablesView(context), 700, 420)
    area, state = view.area, context.mirror.live
    seq = area.rows[3]
    block = int(state.table(seq)[1])
    spot = area.cell_rect(seq, 1).center()
    qtbot.mouseMove(area.viewport(), spot)
    assert context.selection.pointed == block
    qtbot.mouseClick(area.viewport(), Qt.MouseButton.LeftButton, pos=spot)
    assert (context.selection.seq, context.selection.block) == (seq, block)
    row = area.row_rect(5)
    qtbot.mouseClick(area.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(30, row.center().y()))
    assert (context.selection.seq, context.selection.block) == (area.rows[5], None)


def test_a_selection_elsewhere_scrolls_to_its_row(qtbot) -> None:
    context = scene(4_000, 128, 20)
    view = show(qtbot, TablesView(context), 600, 260)
    area = view.area
    seq = area.rows[100]
    context.selection.choose(seq=seq)
    view.refresh(Kinds.SELECTION)
    assert area.viewport().rect().contains(area.row_rect(100))
    image = pixels(area.viewport())
    hover = context.theme.color("hover").rgb() & 0xFFFFFFFF
    assert image[area.row_rect(100).top(), area.columns.table - 3] == hover


def test_it_follows_the_stream_and_the_cursor(qtbot) -> None:
    context = scene(300, 16, 10, fill=1.3)
    view = show(qtbot, TablesView(context), 700, 300)
    for _ in range(60):
        advance(context, 3)
        view.refresh(Kinds.STEPS | Kinds.TABLES | Kinds.QUEUE)
        pixels(view.area.viewport())
    context.cursor.pin(40)
    view.refresh(Kinds.CURSOR)
    past = context.cursor.state
    assert view.area.rows == [*past.running, *past.waiting]


def test_words_for_what_a_sequence_does() -> None:
    info = SequenceInfo(1, prompt_tokens=180)
    assert doing(info)[0] == "waiting"
    info.status = "running"
    assert doing(info) == ("prefill 0/180", "prefill")
    info.computed, info.row, info.row_step = 64, (1, PREFILL, 64, 64, 180, 0, 0, 0), 3
    assert doing(info) == ("prefill 64/180", "prefill")
    info.computed, info.known, info.row = 180, 181, (1, PREFILL, 116, 180, 181, 0, 0, 1)
    assert doing(info) == ("first token", "prefill")
    info.computed, info.known, info.row = 181, 182, (1, DECODE, 1, 181, 182, 0, 0, 1)
    assert doing(info) == ("decode", "decode")
    info.row = (1, DECODE, 5, 181, 182, 4, 0, 1)
    assert doing(info)[0] == "verify γ4"
    info.status, info.preempted, info.lost = "waiting", True, 212
    assert doing(info) == ("preempted ↺ 212 tok", "warning")


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_the_number_reads_on_both_parts_of_a_partly_filled_cell(qtbot, theme) -> None:
    shades, ink = Shades(Theme(theme)), Theme(theme)
    number = ink.ink_on(ink.color("panel"))
    for colours in (shades.part, shades.rest):
        for colour in colours:
            below = QColor(int(colour))
            assert contrast(_rgb(number), _rgb(below)) >= 4.5


def _rgb(color: QColor) -> tuple[float, float, float]:
    return color.redF(), color.greenF(), color.blueF()
