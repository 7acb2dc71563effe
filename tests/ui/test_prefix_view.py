"""The prefix view: a line a run, cells as in the pool, one selection, what is left out, why there is none."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication

from app.bench.pool_decoder import pixels
from engine.records import CACHE, CACHED, HIT, USED, pack
from tests.ui.scenes import advance, scene, show
from ui import prefix_tree
from ui.changes import Kinds
from ui.context import ViewContext
from ui.prefix_words import missing
from ui.state import EngineState
from ui.views.pool_shades import FIRST_CACHED, HUES, Shades
from ui.views.prefix import PrefixView


def opened(qtbot, width: int = 900, height: int = 500, **of) -> tuple[ViewContext, PrefixView]:
    context = scene(**{"blocks": 512, "sequences": 16, "steps": 90, **of})
    view = show(qtbot, PrefixView(context), width, height)
    QApplication.processEvents()  # the scroll bar takes its room
    return context, view


def lines(view: PrefixView) -> list[tuple[int, prefix_tree.Run]]:
    """Lines in sight, with their runs."""
    area = view.area
    low, high = area.header, area.viewport().height()
    return [
        (index, area.tree.runs[row.run])
        for index, row in enumerate(area.rows)
        if row.run >= 0 and area.row_rect(index).top() >= low and area.row_rect(index).bottom() < high
    ]


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("width", [420, 900])
def test_cells_look_as_the_pools_do(qtbot, theme, width: int) -> None:
    context, view = opened(qtbot, width, theme=theme)
    state, shades, image = context.mirror.live, Shades(context.theme), pixels(view.area.viewport())
    kinds = {USED: 0, CACHED: 0}
    for index, run in lines(view):
        for block in run.blocks.tolist():
            box = view.area.cell_rect(block)
            if box.isEmpty():  # it shares a cell with a louder one
                continue
            assert view.area.at(box.center()) == (index, block)
            hue, corner = int(state.owner[block]) % HUES, image[box.bottom() - 1, box.left() + 2]
            used = state.blocks_state[block] == USED
            assert corner == (shades.full[hue] if used else shades.flat[FIRST_CACHED + hue])
            kinds[int(state.blocks_state[block])] += 1
    assert min(kinds.values()) > 20


def test_strips_compare_and_long_runs_share_cells(qtbot) -> None:
    _, view = opened(qtbot, 420, 400, blocks=4_000, sequences=8)
    found, columns = lines(view), view.area.columns
    widths = [(len(run.blocks), view.area._painter.strip_of(view.area.row_rect(i), run, columns)) for i, run in found]
    assert max(count for count, _ in widths) > columns.cells
    for count, box in widths:
        assert box.width() == min(count, columns.cells) * columns.pitch and box.right() < columns.count


def test_a_click_chooses_and_what_is_chosen_elsewhere_lights_up(qtbot) -> None:
    context, view = opened(qtbot)
    state, area, chosen = context.mirror.live, view.area, context.selection
    index, run = next((i, run) for i, run in lines(view) if prefix_tree.used(state, run) == len(run.blocks))
    block = int(run.blocks[0])
    qtbot.mouseClick(area.viewport(), Qt.MouseButton.LeftButton, pos=area.cell_rect(block).center())
    assert (chosen.block, chosen.seq) == (block, int(state.owner[block]))
    qtbot.mouseClick(area.viewport(), Qt.MouseButton.LeftButton, pos=area.cell_rect(block).center())
    assert (chosen.block, chosen.seq) == (None, None)
    before = pixels(area.viewport())
    seq = area._holders[area.rows[index].run][0]
    (_, chip), *_ = area._painter.chips(area.row_rect(index), area.columns, [seq])
    qtbot.mouseClick(area.viewport(), Qt.MouseButton.LeftButton, pos=chip.center())
    assert (chosen.block, chosen.seq) == (None, seq)
    view.refresh(Kinds.SELECTION)
    after, calm = pixels(area.viewport()), Shades(context.theme).calm
    assert calm is not None and (before != after).any()
    own = set(state.table(seq).tolist())
    for _, other in lines(view):
        for cell in set(other.blocks.tolist()) - own:
            box = area.cell_rect(cell)
            if not box.isEmpty():
                assert after[box.bottom() - 1, box.left() + 2] in (*calm.flat, *calm.full)
    qtbot.mouseClick(area.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(20, 4))
    assert chosen.seq is None


def test_what_is_chosen_is_shown_even_where_it_was_folded(qtbot) -> None:
    context, view = opened(qtbot, 700, 220, blocks=4_000, sequences=60, steps=200)
    area, state = view.area, context.mirror.live
    shown = {row.run for row in area.rows}
    block = next(int(run.blocks[-1]) for number, run in enumerate(area.tree.runs) if number not in shown)
    assert area.cell_rect(block).isEmpty() and area.hidden > 0
    context.selection.choose(block=block)
    view.refresh(Kinds.SELECTION)
    index = next(i for i, row in enumerate(area.rows) if row.run == area.tree.run_of[block])
    assert area.row_rect(index).bottom() <= area.viewport().height() and area.row_rect(index).top() >= area.header
    seq = state.running[-1]
    context.selection.choose(seq=seq)
    view.refresh(Kinds.SELECTION)
    held = {int(area.tree.run_of[b]) for b in state.table(seq) if area.tree.run_of[b] >= 0}
    assert held <= {row.run for row in area.rows}


def test_more_branches_on_demand(qtbot) -> None:
    context, view = opened(qtbot, 700, 500, blocks=4_000, sequences=60, steps=200)
    area, hidden = view.area, view.area.hidden
    index = next(i for i, row in enumerate(area.rows) if row.run < 0 and row.under < 0)
    assert f"{hidden:,} more branches folded" in view.legend._note
    bar = area.verticalScrollBar()
    bar.setValue(bar.maximum())
    qtbot.mouseClick(area.viewport(), Qt.MouseButton.LeftButton, pos=area.row_rect(index).center())
    assert area.hidden < hidden
    advance(context)
    view.refresh(Kinds.BLOCKS)
    assert len([row for row in area.rows if row.level == 0]) >= 2 * prefix_tree.TOP


def test_hover_points_at_the_block_and_tells_all_of_the_text(qtbot) -> None:
    context, view = opened(qtbot, 900, 400)
    area = view.area
    index, run = next((i, run) for i, run in lines(view) if run.start == 0 and 5 < len(run.blocks) < 12)
    before = pixels(area.viewport())
    qtbot.mouseMove(area.viewport(), area.cell_rect(int(run.blocks[2])).center())
    assert context.selection.pointed == int(run.blocks[2])
    assert (pixels(area.viewport()) != before).sum() > 2_000
    story = area._story(run, area.rows[index].run, 800)
    assert story.text == prefix_tree.text_of(context.mirror.live, run) and len(story.text) > 200
    long = max(area.tree.runs, key=lambda run: len(run.blocks))
    assert "characters have no room here" in area._story(long, 0, 300).lines[-1]
    assert story.title.startswith(f"{len(run.blocks)} blocks · tokens 1–")
    qtbot.mouseMove(area.viewport(), QPoint(60, area.row_rect(index).center().y()))
    assert context.selection.pointed is None and (pixels(area.viewport()) != before).sum() > 2_000


def test_a_hit_flashes_where_it_happened(qtbot) -> None:
    context, view = opened(qtbot)
    state, bright = context.mirror.live, Shades(context.theme).selection
    calm = [(i, run) for i, run in lines(view) if prefix_tree.used(state, run) == len(run.blocks)]
    _, run = next((i, run) for i, run in calm if (state.since[run.blocks] < state.step - 20).all())
    block = int(run.blocks[0])
    box = view.area.cell_rect(block)
    assert pixels(view.area.viewport())[box.center().y(), box.left() + 1] != bright
    state.take_hits(pack([(HIT, block, 1, 1, 5, 5)], CACHE), state.step)
    view.refresh(Kinds.BLOCKS)
    image = pixels(view.area.viewport())
    assert image[box.center().y(), box.left() + 1] == bright
    assert (image[view.area.row_rect(0).top() :, :] == bright).sum() > 30  # the edge that leads there, too


def test_the_past_is_drawn_as_it_was(qtbot) -> None:
    context, view = opened(qtbot, steps=200)
    context.cursor.pin(60)
    view.refresh(Kinds.CURSOR)
    then = [(row.level, row.run >= 0) for row in view.area.rows]
    use = context.cursor.state.prefixes.use
    assert f"{use.hit:,} of {use.looked_up:,} tokens" in view.answer.accessibleName() or not use.hit
    other = scene(512, 16, 60)
    fresh = show(qtbot, PrefixView(other), 900, 500)
    QApplication.processEvents()
    assert [(row.level, row.run >= 0) for row in fresh.area.rows] == then
    assert fresh.answer._words == view.answer._words


def test_a_smaller_pool_between_two_redraws_is_fine(qtbot) -> None:
    context, view = opened(qtbot, 500, 300)
    failed: list[Exception] = []
    view.failed.connect(failed.append)
    place = view.area.cell_rect(int(view.area.tree.runs[view.area.rows[0].run].blocks[0])).center()
    state = context.mirror.live
    state.resize_blocks(8, state.step)
    state.prefixes.resize(8)
    view.area.viewport().repaint()
    assert not failed and len(view.area.tree.run_of) == 8
    context.mirror.live = EngineState()
    qtbot.mouseMove(view.area.viewport(), place)
    view.area.viewport().repaint()
    assert not failed and not view.area.rows


def test_empty_states_say_why(qtbot) -> None:
    context, view = opened(qtbot, 500, 300)
    state = context.mirror.live
    assert state.settings is not None
    settings = state.settings
    told = []
    for changes in ({}, {"prefix_cache": False}, {"allocation": "reserved"}):
        context.mirror.live = EngineState(64, 16, msgspec.structs.replace(settings, kv_blocks=64, **changes))
        view.refresh(Kinds.ALL)
        told.append(missing(context.mirror.live)[0])
        assert not view.area.rows and view.answer.isHidden() and len(np.unique(pixels(view))) > 2
    assert told == ["No full block yet", "The prefix cache is off", "Reserved allocation shares nothing"]
    context.mirror.live = EngineState()
    view.refresh(Kinds.ALL)
    pixels(view)


def test_only_lines_in_sight_are_painted_and_the_rest_costs_little(qtbot, monkeypatch) -> None:
    context, view = opened(qtbot, 700, 260, blocks=20_000, sequences=200, steps=30)
    assert context.mirror.live.prefixes.count > 5_000
    painted: list[int] = []
    monkeypatch.setattr(view.area._painter, "paint", lambda *of: painted.append(1))
    view.area.viewport().repaint()
    assert 0 < len(painted) <= view.area.viewport().height() // view.area._painter.height + 2
    assert len(view.area.rows) <= prefix_tree.MOST


def test_a_tiny_panel_is_fine(qtbot) -> None:
    _, view = opened(qtbot, 120, 60)
    pixels(view)
    view.resize(200, 140)
    view.refresh(Kinds.ALL)
    pixels(view)


def test_the_answer_is_one_line_rather_than_cut(qtbot) -> None:
    _, view = opened(qtbot)
    answer, panel = view.answer, pixels(view.answer)[0, 0]
    for height in range(20, answer.heightForWidth(answer.width()) + 20):
        answer.setFixedHeight(height)
        picture = pixels(answer)
        assert (picture != panel).any() and (picture[[0, -1]] == panel).all(), height


def test_strips_that_do_not_change_are_kept_in_as_many_bytes_as_the_view_can_show(qtbot):
    _, view = opened(qtbot)
    area, strips = view.area, view.area._painter.strips
    before = area.viewport().grab().toImage()
    held = len(strips)
    assert area.viewport().grab().toImage() == before and len(strips) == held
    for width in range(500, 1_100, 20):  # other widths of cells are other pictures
        view.resize(width, 500)
        QApplication.processEvents()
        area.viewport().grab()
    assert held < len(strips) and 0 < strips.bytes <= 2 * 4 * area.viewport().width() * area.viewport().height()
