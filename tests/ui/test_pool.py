"""The pool view decodes to the pool: every block's state, owner's hue and fill, at every size."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from app.bench.pool_decoder import Decoder, pixels
from engine.records import CACHE, CACHED, COPY, EVICTED, HIT, NONE, SHARED, USED, pack
from tests.ui.scenes import advance, scene, show
from ui.block_story import tell
from ui.changes import Kinds
from ui.context import ViewContext
from ui.paint.cells import Grid
from ui.theme import Theme
from ui.views.pool import PoolView
from ui.views.pool_image import BARRED, FLASH, PoolImage, blocks_of
from ui.views.pool_shades import FIRST_USED, FULL, HALO, HUES, RANKS, Shades, rank


def assert_decodes(view: PoolView, context: ViewContext) -> None:
    state, canvas = context.cursor.state, view.canvas
    decoder, image = Decoder(canvas, Shades(context.theme)), pixels(canvas)
    tall = canvas.grid.height - canvas.grid.gutter
    step = 1 / 16 if min(canvas.grid.width, canvas.grid.height) < BARRED else 1 / tall
    for block in range(state.num_blocks):
        cell, kind = decoder.cell(image, block), state.blocks_state[block]
        assert cell.state == kind, block
        if kind in (USED, CACHED):
            assert cell.hue == state.owner[block] % HUES, block
        if kind == USED:
            fill = state.filled[block] / state.block_size
            assert abs(cell.fill - fill) <= step, block
            assert (cell.fill == 0) == (fill == 0) and (cell.fill == 1) == (fill == 1), block


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_the_code_book_is_unambiguous(qapp, theme) -> None:
    shades = Shades(Theme(theme))
    assert len(set(shades.flat.tolist())) == RANKS + 4  # marks: no block, selected, its halo, under the mouse


@pytest.mark.parametrize(
    ("blocks", "size"),
    [
        (512, (760, 390)),
        (512, (1500, 800)),
        (96, (300, 200)),
        (4_000, (420, 300)),
        (4_000, (620, 420)),
        (990, (900, 90)),
    ],
)
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_every_cell_decodes(qtbot, blocks: int, size: tuple[int, int], theme) -> None:
    context = scene(blocks, 12, 90, theme=theme)
    view = show(qtbot, PoolView(context), *size)
    assert min(view.canvas.grid.width, view.canvas.grid.height) >= 4
    assert_decodes(view, context)


def test_it_follows_what_changes(qtbot) -> None:
    context = scene(300, 12, 10, fill=1.2)
    view = show(qtbot, PoolView(context), 620, 360)
    for steps in (1, 1, 7, 40, 200):
        advance(context, steps)
        view.refresh(Kinds.STEPS | Kinds.BLOCKS)
        assert_decodes(view, context)
    context.source.world.change(kv_blocks=420)  # type: ignore[attr-defined]
    advance(context)
    view.refresh(Kinds.STEPS | Kinds.BLOCKS | Kinds.SETTINGS)
    assert_decodes(view, context)


def test_it_shows_the_past_when_the_cursor_is_there(qtbot) -> None:
    context = scene(300, 12, 200)
    view = show(qtbot, PoolView(context), 620, 360)
    context.cursor.pin(50)
    view.refresh(Kinds.CURSOR)
    assert context.cursor.state.step == 50
    assert_decodes(view, context)
    context.cursor.live()
    view.refresh(Kinds.CURSOR)
    assert_decodes(view, context)


def test_zoomed_cells_decode_too(qtbot) -> None:
    context = scene(4_000, 24, 60)
    view = show(qtbot, PoolView(context), 420, 300)
    canvas = view.canvas
    for _ in range(3):
        canvas.zoom(1, QPoint(200, 120))
        decoder, image = Decoder(canvas, Shades(context.theme)), pixels(canvas)
        state, seen = context.cursor.state, 0
        for block in range(state.num_blocks):
            if canvas.rect().contains(canvas.rect_of(block)):
                assert decoder.cell(image, block).state == state.blocks_state[block]
                seen += 1
        assert seen > 100


def test_folding_shows_used_before_cached_before_free(qtbot) -> None:
    context = scene(60_000, 32, 40)
    view = show(qtbot, PoolView(context), 200, 160)
    grid, state = view.canvas.grid, context.cursor.state
    assert grid.fold > 1
    image, shades = pixels(view.canvas), Shades(context.theme)
    ranks = rank(state, slice(None)).astype(np.int64)
    tall, wide = -(-grid.rows // grid.down), grid.columns // grid.across
    for y in range(tall):
        for x in range(wide):
                rows = range(y * grid.down, min(grid.rows, (y + 1) * grid.down))
                members = [grid.index(r, x * grid.across + c) for r in rows for c in range(grid.across)]
                here = [ranks[m] for m in members if m < grid.count]
                at = view.canvas.origin + QPoint(x, y)
                assert image[at.y(), at.x()] == (shades.flat[max(here)] if here else shades.background)


@pytest.mark.parametrize(("blocks", "size"), [(60_000, (300, 300)), (60_000, (200, 160)), (60_001, (90, 90))])
def test_pixels_that_are_made_again_are_those_of_a_new_picture(qtbot, blocks: int, size: tuple[int, int]) -> None:
    context = scene(blocks, 32, 40, fill=1.1)
    view = show(qtbot, PoolView(context), *size)
    canvas, seq = view.canvas, context.mirror.live.running[2]
    assert canvas.grid.width == canvas.grid.height == 1
    for steps, chosen in ((1, None), (3, None), (1, seq), (2, seq), (40, None)):
        advance(context, steps)
        context.selection.choose(seq=chosen)
        view.refresh(Kinds.STEPS | Kinds.BLOCKS | Kinds.SELECTION)
        kept = pixels(canvas)
        canvas.restyle()  # makes all of it anew
        fresh = pixels(canvas)
        hit = (kept == Shades(context.theme).hit) | (fresh == Shades(context.theme).hit)  # fade by frames, not by steps
        assert ((kept == fresh) | hit).all()


def test_ranks_are_loudness() -> None:
    context_rank = [0, 1, HUES, 1 + HUES, FULL, RANKS - 1]
    assert context_rank == sorted(context_rank)


def test_small_cells_show_one_colour_each(qtbot) -> None:
    context = scene(20_000, 32, 40)
    view = show(qtbot, PoolView(context), 420, 300)
    grid, state = view.canvas.grid, context.cursor.state
    assert grid.fold == 1 and min(grid.width, grid.height) < 4
    image, flat = pixels(view.canvas), Shades(context.theme).flat
    expected = flat[rank(state, slice(None))]
    for block in range(state.num_blocks):
        box = view.canvas.rect_of(block)
        assert (image[box.top() : box.bottom() + 1, box.left() : box.right() + 1] == expected[block]).all()


def test_a_selected_sequence_is_outlined_and_its_cells_still_decode(qtbot) -> None:
    context = scene(512, 16, 90)
    view = show(qtbot, PoolView(context), 760, 390)
    seq = context.mirror.live.running[4]
    context.selection.choose(seq=seq)
    view.refresh(Kinds.SELECTION)
    image, shades = pixels(view.canvas), Shades(context.theme)
    mine = set(blocks_of(context.mirror.live, seq).tolist())
    assert mine
    for block in range(512):
        box = view.canvas.rect_of(block)
        around = {int(image[box.top() - 1, box.left() + 2]), int(image[box.top() + 2, box.left() - 1])}
        if block in mine:
            assert around == {shades.selection}
            assert image[box.center().y(), box.left() + 2] in (*shades.flat, *shades.full)


def test_shared_blocks_have_a_bright_outline(qtbot) -> None:
    context = scene(300, 16, 57, fill=1.3)
    state = context.mirror.live
    shared = np.flatnonzero(state.refcount > 1)
    assert len(shared)
    view = show(qtbot, PoolView(context), 700, 360)
    image, shades = pixels(view.canvas), Shades(context.theme)
    for block in shared.tolist():
        box = view.canvas.rect_of(block)
        assert image[box.center().y(), box.right() + 1] in shades.ring
    assert f"shared {state.shared}" in view._summary


def test_click_chooses_the_block_and_its_owner(qtbot) -> None:
    context = scene(512, 16, 90)
    view = show(qtbot, PoolView(context), 760, 390)
    state = context.mirror.live
    used, cached = (int(np.flatnonzero(state.blocks_state == kind)[3]) for kind in (USED, CACHED))
    qtbot.mouseClick(view.canvas, Qt.MouseButton.LeftButton, pos=view.canvas.rect_of(used).center())
    assert (context.selection.seq, context.selection.block) == (int(state.owner[used]), used)
    qtbot.mouseClick(view.canvas, Qt.MouseButton.LeftButton, pos=view.canvas.rect_of(used).center())
    assert (context.selection.seq, context.selection.block) == (None, None)
    qtbot.mouseClick(view.canvas, Qt.MouseButton.LeftButton, pos=view.canvas.rect_of(cached).center())
    assert (context.selection.seq, context.selection.block) == (None, cached)


def test_hover_tells_and_double_click_is_left_to_the_window(qtbot) -> None:
    context = scene(512, 16, 90)
    view = show(qtbot, PoolView(context), 760, 390)
    before = pixels(view.canvas)
    qtbot.mouseMove(view.canvas, view.canvas.rect_of(40).center())
    assert view.canvas.pointed == 40 and context.selection.pointed == 40
    assert (pixels(view.canvas) != before).sum() > 2_000  # the card
    qtbot.mouseDClick(view.canvas, Qt.MouseButton.LeftButton, pos=view.canvas.rect_of(40).center())
    assert context.selection.block is None


def test_the_chosen_blocks_story_stays_while_the_mouse_is_elsewhere(qtbot) -> None:
    context = scene(512, 16, 90)
    view = show(qtbot, PoolView(context), 760, 390)
    context.selection.choose(block=40)
    view.refresh(Kinds.SELECTION)
    chosen = pixels(view.canvas)
    context.selection.choose()
    view.refresh(Kinds.SELECTION)
    assert (pixels(view.canvas) != chosen).sum() > 2_000  # the card


def test_zoom_keeps_the_cell_under_the_mouse_and_fit_comes_back(qtbot) -> None:
    context = scene(4_000, 16, 30)
    view = show(qtbot, PoolView(context), 620, 420)
    pixels(view)  # the line above the map has its height then
    qtbot.wait(20)
    spot = view.canvas.rect_of(1_234).center()
    fitted = view.canvas.grid
    for _ in range(8):
        view.canvas.zoom(1, spot)
        assert view.canvas.block_at(spot) == 1_234
    assert view.canvas.zoomed
    view.canvas.zoom(200, spot)
    assert max(view.canvas.grid.width, view.canvas.grid.height) <= 300
    pixels(view.canvas)  # with words in every cell
    qtbot.keyClick(view.canvas, Qt.Key.Key_0)
    assert view.canvas.grid == fitted and not view.canvas.zoomed


def test_an_empty_pool_and_a_tiny_panel_are_fine(qtbot) -> None:
    context = scene(512, 16, 5)
    view = show(qtbot, PoolView(context), 124, 60)
    pixels(view)
    context.mirror.live.__init__()  # type: ignore[misc]
    view.refresh(Kinds.ALL)
    pixels(view)


def test_a_smaller_pool_between_two_redraws_is_fine(qtbot) -> None:
    context = scene(60, 6, 40)
    view = show(qtbot, PoolView(context), 900, 500)
    failed: list[Exception] = []
    view.failed.connect(failed.append)
    canvas, state = view.canvas, context.mirror.live
    gone = canvas.rect_of(59).center()
    state.resize_blocks(24, state.step)
    pixels(canvas)
    assert not failed and canvas.grid.count == 24
    state.resize_blocks(60, state.step)
    pixels(canvas)
    state.resize_blocks(24, state.step)
    QTest.mouseMove(canvas, gone)
    QTest.mouseClick(canvas, Qt.MouseButton.LeftButton, pos=gone)
    pixels(canvas)
    assert not failed


@pytest.mark.parametrize("count", [1, 4, 63, 512, 1_024, 4_000, 20_000, 100_000, 400_000])
@pytest.mark.parametrize("size", [(124, 60), (500, 300), (1_904, 1_000), (3_800, 2_000)])
def test_a_fitted_grid_lies_within_its_area(count: int, size: tuple[int, int]) -> None:
    grid = Grid.fit(count, *size)
    assert grid.size[0] <= size[0] and grid.size[1] <= size[1]
    assert grid.rows * grid.columns >= count
    if grid.fold == 1:
        used = grid.width * grid.height * count / (size[0] * size[1])
        assert used > (0.45 if count > 63 else 0.0)
    else:
        assert (grid.fold / 2 - 1) * size[0] * size[1] < 2 * count  # half as many a pixel would be too many cells


@pytest.mark.parametrize(("count", "size"), [(1_000, (500, 300)), (20_000, (420, 300)), (60_000, (200, 160)),
                                             (400_000, (895, 240)), (400_001, (1_900, 600))])  # fmt: skip
def test_every_cell_has_one_place_and_small_ones_lie_in_patches(count: int, size: tuple[int, int]) -> None:
    grid = Grid.fit(count, *size)
    rows, columns = grid.places(np.arange(count))
    assert len(np.unique(rows * grid.columns + columns)) == count
    assert rows.min() >= 0 and rows.max() == grid.rows - 1 and columns.max() < grid.columns
    for index in {0, 1, grid.columns, count // 2, count - 1}:
        assert grid.place(index) == (rows[index], columns[index]) and grid.index(*grid.place(index)) == index
        x, y, _, _ = grid.body(index)
        assert grid.at(x, y) == grid.index(*(part // by * by for part, by in zip(grid.place(index),
                                           (grid.down, grid.across), strict=True)))  # fmt: skip
    begin = grid.rows // grid.band // 2 * grid.band * grid.columns
    run = slice(begin, begin + 300)
    if grid.gutter == 0:  # 300 that follow each other are about as wide as they are high
        wide = np.ptp(columns[run] // grid.across) * grid.width + 1
        assert wide <= 90 and np.ptp(rows[run] // grid.down) * grid.height >= 12


def test_only_what_changed_is_looked_at_again(qapp) -> None:
    context = scene(4_000, 32, 50)
    image = PoolImage(Shades(context.theme))
    image.follow(context.mirror.live)
    image._ranks[:] = 9_999
    advance(context)
    image.follow(context.mirror.live)
    touched = image._ranks != 9_999
    assert 0 < touched.sum() < 600
    assert (image._ranks[touched] == rank(context.mirror.live, slice(None))[touched]).all()


def test_a_cached_block_of_an_ended_sequence_lights_with_it(qtbot) -> None:
    context = scene(512, 16, 400)
    state = context.mirror.live
    for seq in reversed(state.recent):
        blocks = blocks_of(state, seq)
        if len(blocks):
            assert (state.blocks_state[blocks] == CACHED).all() and (state.owner[blocks] == seq).all()
            break
    else:
        raise AssertionError("no ended sequence left cached blocks")
    assert NONE not in blocks_of(state, state.running[0])


@pytest.mark.parametrize(("blocks", "size"), [(300, (700, 360)), (20_000, (420, 300))])
def test_a_selection_turns_all_other_cells_down(qtbot, blocks, size) -> None:
    context = scene(blocks, 16, 90)
    view = show(qtbot, PoolView(context), *size)
    before = pixels(view.canvas)
    seq = context.mirror.live.running[4]
    mine = set(blocks_of(context.mirror.live, seq).tolist())
    context.selection.choose(seq=seq)
    view.refresh(Kinds.SELECTION)
    after, calm = pixels(view.canvas), Shades(context.theme).calm
    assert calm is not None
    for block in range(0, blocks, 7):
        box = view.canvas.rect_of(block)
        spot = (box.bottom() - (2 if blocks < 1_000 else 0), box.left() + (2 if blocks < 1_000 else 0))
        if block in mine:
            assert blocks > 1_000 or after[spot] == before[spot]  # small cells have the mark's colour instead
        else:
            assert after[spot] in (*calm.flat, *calm.full)
    context.selection.choose()
    view.refresh(Kinds.SELECTION)
    assert (pixels(view.canvas) == before).all()


@pytest.mark.parametrize(("blocks", "size"), [(20_000, (420, 300)), (60_000, (200, 160))])
def test_blocks_of_a_selection_that_are_too_small_have_a_halo(qtbot, blocks, size) -> None:
    context = scene(blocks, 16, 90)
    view = show(qtbot, PoolView(context), *size)
    seq, shades = context.mirror.live.running[4], Shades(context.theme)
    context.selection.choose(seq=seq)
    view.refresh(Kinds.SELECTION)
    image, halo = pixels(view.canvas), int(shades.flat[HALO])
    boxes = [view.canvas.rect_of(block) for block in blocks_of(context.mirror.live, seq).tolist()]
    for box in boxes:
        assert (image[box.top() : box.bottom() + 1, box.left() : box.right() + 1] == shades.selection).all()
        beside = image[box.top(), max(0, box.left() - 1) : box.right() + 2]
        assert set(beside.tolist()) <= {shades.selection, halo, shades.background}
    assert 0 < (image == halo).sum() < 60 * len(boxes)


@pytest.mark.parametrize(("blocks", "size"), [(300, (700, 360)), (20_000, (420, 300))])
def test_a_hit_or_copy_of_another_sequence_never_passes_for_the_chosen_ones(qtbot, blocks, size) -> None:
    context = scene(blocks, 16, 90)
    view = show(qtbot, PoolView(context), *size)
    state, shades = context.mirror.live, Shades(context.theme)
    chosen, other = state.running[4], state.running[5]
    theirs = [int(b) for b in blocks_of(state, other) if state.refcount[b] == 1][:2]
    state.take_hits(pack([(HIT, theirs[0], other, 1, 5, 5)], CACHE), state.step)
    state.since[theirs[1]] = state.step
    state.take_copies(pack([(other, theirs[0], theirs[1])], COPY), state.step)

    def light() -> set[int]:
        """Blocks that have the selection's colour somewhere in their cell."""
        view.canvas.refresh()
        image, boxes = pixels(view.canvas), ((b, view.canvas.rect_of(b)) for b in range(blocks))
        cells = ((b, image[box.top() : box.bottom() + 1, box.left() : box.right() + 1]) for b, box in boxes)
        return {b for b, cell in cells if (cell == shades.selection).any()}

    before = light()
    assert theirs[0] in before
    context.selection.choose(seq=chosen)
    assert light() == set(blocks_of(state, chosen).tolist())
    assert not np.any(pixels(view.canvas) == shades.copied)
    context.selection.choose()
    assert light() == before


def test_before_the_engine_is_up_the_pool_says_so(qtbot) -> None:
    context = scene(steps=0)
    context.mirror.live = type(context.mirror.live)()
    view = show(qtbot, PoolView(context), 500, 300)
    assert not view.canvas.grid.count and not view.legend._entries and view._note() == ""
    colours = set(pixels(view.canvas).flatten().tolist())
    assert context.theme.color("panel").rgba() in colours and len(colours) > 2  # there are words


def emptied(context: ViewContext) -> list[int]:
    """As if every second used block were reserved and held no token yet."""
    state = context.mirror.live
    blocks = np.flatnonzero(state.blocks_state == USED)[::2]
    state.filled[blocks] = 0
    state.recount()
    return blocks.tolist()


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [(760, 390), (300, 200), (1_500, 800)])
def test_what_is_reserved_and_empty_is_hatched(qtbot, theme, size) -> None:
    context = scene(200, 12, 60, theme=theme)
    blocks = set(emptied(context))
    view = show(qtbot, PoolView(context), *size)
    assert_decodes(view, context)
    state, image, shades = context.mirror.live, pixels(view.canvas), Shades(context.theme)
    for block in range(state.num_blocks):
        box, hue = view.canvas.rect_of(block), int(state.owner[block]) % HUES
        lines = (image[box.top() : box.bottom() + 1, box.left() : box.right() + 1] == shades.hatch[hue]).mean()
        assert (lines > 0.1) == (block in blocks and state.blocks_state[block] == USED), block
    assert ("empty", f"empty {len(blocks)}") in view.legend._entries and state.empty == len(blocks)


def test_a_prefix_hit_flashes_where_it_happened_and_fades(qtbot) -> None:
    context = scene(200, 12, 60)
    view = show(qtbot, PoolView(context), 760, 390)
    state, shades = context.mirror.live, Shades(context.theme)
    old = np.flatnonzero((state.blocks_state == USED) & (state.since < state.step - 30) & (state.refcount == 1))
    hit, shared, other = old[:3].tolist()
    evicted = int(np.flatnonzero(state.blocks_state == CACHED)[0])
    entries = [(HIT, hit, 1, 1, 5, 5), (SHARED, shared, 1, 2, 0, 0), (EVICTED, evicted, 1, 3, 9, 9)]
    state.take_hits(pack(entries, CACHE), state.step)

    def bright() -> set[int]:
        """Blocks whose frame is white within the cell."""
        view.canvas.refresh()
        image = pixels(view.canvas)
        boxes = {block: view.canvas.rect_of(block) for block in (hit, shared, other, evicted)}
        return {b for b, box in boxes.items() if image[box.center().y(), box.left()] == shades.selection}

    assert bright() == {hit, shared}
    assert any(line.startswith("hit at step") for line in tell(state, hit).lines)
    advance(context)
    assert bright() == set()  # it fades
    view.canvas.refresh()
    fading = pixels(view.canvas)[view.canvas.rect_of(hit).center().y(), view.canvas.rect_of(hit).left()]
    assert fading != shades.full[int(state.owner[hit]) % HUES]
    advance(context, FLASH)
    assert np.count_nonzero(state.hit > state.step - FLASH) == 0


def test_a_copy_on_write_frames_the_copy_and_what_it_is_of(qtbot) -> None:
    context = scene(200, 12, 60)
    view = show(qtbot, PoolView(context), 760, 390)
    state, shades = context.mirror.live, Shades(context.theme)
    assert "copy" not in dict(view.legend._entries)
    old = np.flatnonzero((state.blocks_state == USED) & (state.since < state.step - 20) & (state.refcount == 1))
    source, copy = int(old[0]), int(old[-1])
    state.since[copy] = state.step
    state.take_copies(pack([(int(state.owner[copy]), source, copy)], COPY), state.step)
    view.canvas.refresh()
    image = pixels(view.canvas)
    boxes = {block: view.canvas.rect_of(block) for block in (copy, source)}
    within = {block: image[box.center().y(), box.left()] == shades.copied for block, box in boxes.items()}
    around = {block: image[box.center().y(), box.left() - 1] == shades.copied for block, box in boxes.items()}
    assert within == {copy: True, source: False} and around == {copy: True, source: True}
    assert f"copied on write at step {state.step:,}, in this step · from block {source:,}" in tell(state, copy).lines
    view.legend.show_state(state, "")
    assert ("copy", "copied 1") in view.legend._entries
    advance(context, FLASH)
    view.canvas.refresh()
    assert not np.any(pixels(view.canvas) == shades.copied)


def test_the_host_pool_stands_beside_with_its_label(qtbot) -> None:
    context = scene(200, 12, 60)
    view = show(qtbot, PoolView(context), 760, 390)
    assert view.host.isHidden() and view.canvas.width() > 700
    seq, host = context.mirror.live.running[2], context.mirror.live.host
    host.resize(96)
    host.owner[4:10], host.index[4:10], host.filled[4:10] = seq, np.arange(6), 16
    host.filled[9] = 3
    view.refresh(Kinds.BLOCKS)
    QApplication.processEvents()
    assert not view.host.isHidden() and view.canvas.width() < 600
    image, shades = pixels(view.host), Shades(context.theme)
    for block in range(96):
        box = view.host.rect_of(block)
        assert view.host.rect().contains(box)
        top, bottom = image[box.top(), box.left()], image[box.bottom(), box.left()]
        full = shades.full[seq % HUES]
        if 4 <= block < 9:
            assert top == bottom == full
        elif block == 9:
            assert bottom == full and top == shades.barred[FIRST_USED + seq % HUES]
        else:
            assert top == bottom == shades.flat[0]
    assert view.host.label()[0] == "host pool · 6 of 96 used"
    assert view.host.words(9) == f"host block 9 · seq {seq}, logical 5 · 3 of 16 tokens, until it runs again"
    assert view.host.words(50) == "host block 50 · free"
    qtbot.mouseClick(view.host, Qt.MouseButton.LeftButton, pos=view.host.rect_of(5).center())
    assert context.selection.seq == seq
    host.resize(0)
    view.refresh(Kinds.BLOCKS)
    assert view.host.isHidden()
