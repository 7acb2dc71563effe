"""The pool as pixels: keeps every block's rank up to date from what changed, and renders the visible cells.
While a sequence is selected, all that isn't its own is turned down.

Knows no widget: state, grid and area in, image out. A frame costs the visible pixels and the changed blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.records import CACHED, NONE, USED
from ui.paint import cell_image
from ui.paint.cell_image import Bars, Colours
from ui.paint.cells import Grid, Window
from ui.state import EngineState
from ui.views.pool_shades import BLANK, FIRST_USED, FULL, HALO, HIT, HUES, POINTED, SELECTED, Shades, rank

BARRED = 8  # px: from this pitch on fill is a bar, below it a shade
HALO_PX = 2  # around selected cells that are too small for an outline
GLOW = 4  # steps for which a block just taken glows; more when a frame covers more
FLASH = 8  # steps for which a prefix hit is seen: it is rarer, and the more telling


class _Ground(NamedTuple):
    """The picture of a window of a grid in colours of `table`, without marks."""

    grid: Grid
    window: Window
    table: Colours
    image: Colours


class PoolImage:
    """The picture of the pool's blocks, of which only what changed is drawn again."""

    def __init__(self, shades: Shades):
        self.shades = shades
        self._state: EngineState | None = None
        self._ranks = np.zeros(0, np.uint16)
        self._step = -1
        self._glow = GLOW
        self._ground: _Ground | None = None

    def follow(self, state: EngineState) -> None:
        """Bring the ranks up to `state`, looking only at what changed since the last call where that is enough."""
        same = state is self._state and len(self._ranks) == state.num_blocks and state.step >= self._step
        if same:
            # a step may still be changed by what comes between it and the next one
            changed = np.flatnonzero(state.changed >= self._step)
            self._ranks[changed] = rank(state, changed)
            self._glow = max(GLOW, state.step - self._step)
            self._renew(changed)
        else:
            self._ranks = rank(state, slice(None))
            self._glow = GLOW
            self._ground = None
        self._state, self._step = state, state.step

    def render(
        self, grid: Grid, window: Window, selected: NDArray, chosen: int | None, pointed: int | None
    ) -> Colours:
        """The image of a window of the grid: blocks `selected` outlined, `chosen` and `pointed` marked."""
        state = self._state
        assert state is not None
        if grid.width == grid.height == 1:
            return self._tiny(grid, window, selected, chosen, pointed)
        ranks = cell_image.window_of(self._ranks, grid, window)
        # copied, because marks are put in below
        ranks = cell_image.fold(ranks, grid.down, grid.across) if grid.fold > 1 else ranks.copy()
        if not grid.gutter:
            return self._small(ranks, grid, window, selected, chosen, pointed)
        barred = min(grid.width, grid.height) >= BARRED
        self._blank(ranks, grid, window)
        lit = self._lit(ranks, grid, window, selected)
        image = self._bodies(ranks, lit, grid, barred)
        if barred:
            self._bars(image, ranks, lit, grid)
            self._hatched(image, ranks, lit, grid)
        self._dots(image, ranks, lit, grid)
        self._rings(image, state, grid, window, selected, chosen, pointed)
        return image

    @staticmethod
    def _lit(ranks: NDArray, grid: Grid, window: Window, selected: NDArray) -> NDArray | None:
        """Where a selection's own cells are; None without a selection, when no cell is turned down."""
        if not len(selected):
            return None
        lit = np.zeros(ranks.shape, bool)
        lit[_inside(selected, grid, window)] = True
        return lit

    def _bodies(self, ranks: NDArray, lit: NDArray | None, grid: Grid, barred: bool) -> Colours:
        bright, calm = self.shades, self.shades.calm
        table = bright.barred if barred else bright.flat
        if lit is not None and calm is not None:
            table = np.concatenate((calm.barred if barred else calm.flat, table))
            ranks = ranks + lit * np.uint16(len(table) // 2)
        return cell_image.bodies(ranks, table, grid, bright.background)

    def _hues(self, name: str, hues: NDArray, lit: NDArray | None) -> Colours:
        """Colours of some cells out of a table by hue; `lit` says which of them are the selection's."""
        bright, calm = getattr(self.shades, name), self.shades.calm
        if lit is None or calm is None:
            return bright[hues]
        return np.where(lit, bright[hues], getattr(calm, name)[hues])

    def _small(
        self, ranks: NDArray, grid: Grid, window: Window, selected: NDArray, chosen: int | None, pointed: int | None
    ) -> Colours:
        """A pixel or three a cell: one colour each, and selected blocks in the selection's own, within a halo: one
        pixel among half a million isn't found."""
        self._blank(ranks, grid, window)
        self._mark(ranks, np.arange(len(self.shades.flat), dtype=ranks.dtype), grid, window, selected, chosen, pointed)
        return cell_image.bodies(ranks, self._table(selected), grid, self.shades.background)

    def _tiny(
        self, grid: Grid, window: Window, selected: NDArray, chosen: int | None, pointed: int | None
    ) -> Colours:
        """A pixel a cell or less. The picture without marks is kept, and only pixels of blocks that changed are made
        again: that is a thousandth of them."""
        table, ground = self._table(selected), self._ground
        if ground is None or (ground.grid, ground.window) != (grid, window) or ground.table is not table:
            ranks = cell_image.window_of(self._ranks, grid, window)
            ranks = cell_image.fold(ranks, grid.down, grid.across) if grid.fold > 1 else ranks.copy()
            self._blank(ranks, grid, window)
            ground = self._ground = _Ground(grid, window, table, table[ranks])
        image = ground.image.copy()
        self._mark(image, table, grid, window, selected, chosen, pointed)
        return image

    def _renew(self, changed: NDArray) -> None:
        """Make the kept picture's pixels of some blocks again: each shows the loudest of those that share it."""
        ground = self._ground
        if ground is None:
            return
        grid = ground.grid
        rows, columns = _inside(changed, grid, ground.window)
        rows, columns = rows // grid.down, columns // grid.across
        top, left = ground.window.top + rows * grid.down, ground.window.left + columns * grid.across
        bands, below = np.divmod(top, grid.band)
        loudest = np.zeros(len(rows), self._ranks.dtype)
        for across in range(grid.across):
            begin = (bands * grid.columns + left + across) * grid.band + below
            for down in range(grid.down):
                member = begin + down
                there = (member < grid.count) & (left + across < grid.columns)
                loudest = np.maximum(loudest, np.where(there, self._ranks[np.where(there, member, 0)], 0))
        ground.image[rows, columns] = ground.table[loudest]

    def _table(self, selected: NDArray) -> Colours:
        return (self.shades.calm if len(selected) and self.shades.calm is not None else self.shades).flat

    def _mark(
        self, ranks: NDArray, marks: NDArray, grid: Grid, window: Window, selected: NDArray, chosen: int | None,
        pointed: int | None,
    ) -> None:  # fmt: skip
        """Put marks over cells; `marks` are what each of them is in `ranks`."""
        hits = np.empty(0, np.intp) if self._state is None else _hits(self._state, slice(None), self.flash)
        own = np.concatenate((selected, _one(chosen)))
        for blocks, mark in ((hits, HIT), (own, SELECTED), (_one(pointed), POINTED)):
            rows, columns = _inside(blocks, grid, window)
            rows, columns = rows // grid.down, columns // grid.across
            if mark == SELECTED and len(rows):
                most = max(1, HALO_PX // grid.width)
                reach = np.arange(-most, most + 1)
                around = (rows[:, None, None] + reach[:, None]).clip(0, ranks.shape[0] - 1)
                ranks[around, (columns[:, None, None] + reach).clip(0, ranks.shape[1] - 1)] = marks[HALO]
            ranks[rows, columns] = marks[mark]

    def _blank(self, ranks: NDArray, grid: Grid, window: Window) -> None:
        """Cells after the last block, in the last band, are no blocks."""
        first = max(window.top, (grid.rows - 1) // grid.band * grid.band) // grid.down * grid.down
        if not window.rows or first >= window.bottom:
            return
        bands, below = np.divmod(np.arange(first, window.bottom, grid.down), grid.band)
        columns = np.arange(window.left, window.right, grid.across)
        begins = (bands[:, None] * grid.columns + columns) * grid.band + below[:, None]
        ranks[-len(bands) :][begins >= grid.count] = BLANK

    def _bars(self, image: Colours, ranks: NDArray, lit: NDArray | None, grid: Grid) -> None:
        state = self._state
        partly = (ranks >= 1 + HUES + HUES) & (ranks < FULL)
        rows, columns = np.nonzero(partly)
        if not len(rows) or state is None:
            return
        found = ranks[rows, columns].astype(np.intp) - (1 + HUES)
        share = (found // HUES) / ((FULL - 1 - HUES) // HUES)
        colours = self._hues("full", found % HUES, None if lit is None else lit[rows, columns])
        cell_image.bars(image, Bars(rows, columns, share, colours), grid)

    def _hatched(self, image: Colours, ranks: NDArray, lit: NDArray | None, grid: Grid) -> None:
        """Used blocks without a token."""
        rows, columns = np.nonzero((ranks >= FIRST_USED) & (ranks < FIRST_USED + HUES))
        if len(rows):
            hues = ranks[rows, columns] - FIRST_USED
            colours = self._hues("hatch", hues, None if lit is None else lit[rows, columns])
            cell_image.hatch(image, rows, columns, colours, grid)

    def _dots(self, image: Colours, ranks: NDArray, lit: NDArray | None, grid: Grid) -> None:
        rows, columns = np.nonzero((ranks > 0) & (ranks <= HUES))
        if len(rows):
            colours = self._hues("dot", ranks[rows, columns] - 1, None if lit is None else lit[rows, columns])
            cell_image.dots(image, rows, columns, colours, grid)

    def _rings(
        self, image: Colours, state: EngineState, grid: Grid, window: Window, selected: NDArray,
        chosen: int | None, pointed: int | None,
    ) -> None:  # fmt: skip
        shades, inside = self.shades, 1 if min(grid.width, grid.height) >= 10 else 0
        low, high = grid.span(window)
        around = shades.calm if len(selected) and shades.calm is not None else shades
        self._glowing(image, state, grid, window, low, high, around)
        self._flashing(image, state, grid, window, low, high, around)
        self._copying(image, state, grid, window, around)
        shared = low + np.flatnonzero(state.refcount[low:high] > 1)
        self._ring(image, shared, around.ring[state.owner[shared] % HUES], grid, window)
        for blocks, tone in ((selected, shades.selection), (_one(pointed), shades.pointed)):
            self._ring(image, blocks, np.full(len(blocks), tone, np.uint32), grid, window, inside)
        if chosen is not None:
            self._ring(image, _one(chosen), np.array([shades.pointed], np.uint32), grid, window, inside)

    def _glowing(
        self, image: Colours, state: EngineState, grid: Grid, window: Window, low: int, high: int, shades: Shades
    ) -> None:
        """Blocks just taken, out of the free list or by a prefix hit, fading over the steps after."""
        since = state.since[low:high]
        fresh = low + np.flatnonzero((since > max(0, state.step - self._glow)) & (state.blocks_state[low:high] == USED))
        if len(fresh):
            age = (state.step - state.since[fresh]) / self._glow
            tone = _blend(shades.glow[state.owner[fresh] % HUES], shades.background, 1 - age)
            self._ring(image, fresh, tone, grid, window)

    def _flashing(
        self, image: Colours, state: EngineState, grid: Grid, window: Window, low: int, high: int, shades: Shades
    ) -> None:
        """Blocks that a sequence just got from the prefix cache: a thick bright frame that fades into the cell."""
        fresh = low + _hits(state, slice(low, high), self.flash)
        if len(fresh):
            hues = state.owner[fresh] % HUES
            light = 1 - (state.step - state.hit[fresh]) / self.flash
            white = np.full(len(fresh), shades.hit, np.uint32)
            thick = max(1, min(grid.width, grid.height) // 8)
            self._ring(image, fresh, _blend(white, shades.full[hues], light), grid, window, thick)
            self._ring(image, fresh, _blend(white, shades.background, light), grid, window)

    def _copying(self, image: Colours, state: EngineState, grid: Grid, window: Window, shades: Shades) -> None:
        """Blocks that were just copied on write: a frame around the copy, a thinner one around what it is of."""
        fresh = np.flatnonzero((state.copied > max(0, state.step - self.flash)) & (state.copied >= state.since))
        if len(fresh):
            light = 1 - (state.step - state.copied[fresh]) / self.flash
            tone = _blend(np.full(len(fresh), shades.copied, np.uint32), shades.background, light)
            sources = state.source[fresh].astype(np.intp)
            there = sources < state.num_blocks
            self._ring(image, sources[there], tone[there], grid, window)
            self._ring(image, fresh, tone, grid, window, max(1, min(grid.width, grid.height) // 8))
            self._ring(image, fresh, tone, grid, window)

    @property
    def flash(self) -> int:
        """Steps for which a hit or a copy is seen."""
        return max(FLASH, self._glow)

    @staticmethod
    def _ring(
        image: Colours, blocks: NDArray, colour: Colours, grid: Grid, window: Window, inside: int = 0
    ) -> None:
        if not len(blocks):
            return
        kept = _within(blocks, grid, window)
        rows, columns = _inside(blocks[kept], grid, window)
        cell_image.rings(image, rows, columns, colour[kept], grid, inside)


def blocks_of(state: EngineState, seq: int | None) -> NDArray[np.intp]:
    """The blocks that a selected sequence lights up: its table, or what the cache keeps of it once it has ended."""
    if seq is None:
        return np.empty(0, np.intp)
    table = state.table(seq)
    if not len(table) and (info := state.recent.get(seq)) is not None:
        held = info.held[info.held < state.num_blocks]
        table = held[(state.blocks_state[held] == CACHED) & (state.owner[held] == seq)]
    return table[table != NONE].astype(np.intp)


def _hits(state: EngineState, blocks: slice, steps: int) -> NDArray[np.intp]:
    """Which of some used blocks came from the prefix cache in the last steps."""
    found = np.flatnonzero(state.hit[blocks] > max(0, state.step - steps))
    return found[state.blocks_state[blocks][found] == USED]


def _one(block: int | None) -> NDArray[np.intp]:
    return np.array([] if block is None else [block], np.intp)


def _within(blocks: NDArray, grid: Grid, window: Window) -> NDArray:
    rows, columns = grid.places(blocks)
    return (
        (rows >= window.top) & (rows < window.bottom) & (columns >= window.left) & (columns < window.right)
        & (blocks < grid.count)
    )  # fmt: skip


def _inside(blocks: NDArray, grid: Grid, window: Window) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns, within the window, of those blocks that it shows."""
    rows, columns = grid.places(blocks[_within(blocks, grid, window)])
    return rows - window.top, columns - window.left


def _blend(colour: Colours, below: int | Colours, share: NDArray) -> Colours:
    mixed = np.zeros(len(colour), np.uint32)
    for shift in (0, 8, 16):
        top, under = (colour >> shift & 0xFF).astype(np.float64), below >> shift & 0xFF
        mixed |= np.rint(top * share + under * (1 - share)).astype(np.uint32) << shift
    return mixed | np.uint32(0xFF000000)
