"""One line of the prefix tree: the edge that leads to a run with its tokens' text on it, the run's blocks as the pool
draws them, and who holds them now.

Paints what it is handed; knows no widget, no scrolling, no mouse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtGui import QColor, QFontMetrics, QImage, QPainter

from ui import explain
from ui.blocks import Blocks
from ui.paint.cells import Grid
from ui.paint.labels import RIGHT, advance, put, write
from ui.paint.pictures import Pictures
from ui.prefix_tree import Row, Run, text_of, used
from ui.state import EngineState
from ui.theme import SEQUENCE_HUES as HUES
from ui.theme import Theme
from ui.views.pool_image import PoolImage
from ui.views.pool_shades import Shades, rank

_DEEPEST = 8  # levels that are set in further; below it the tree goes straight down
_ENDS = 200  # characters at each end of a text that a line may have room for
_KEPT = 500  # elided texts
_NARROW, _WIDE = 5, 12  # px, pitch of a cell: narrower ones can't be told apart, wider ones tell no more


@dataclass(frozen=True, slots=True)
class Columns:
    """Where things stand in a line, px. Each ends where the next begins.

    Attributes:
        indent: width of a level. strip: the blocks, `cells` of `pitch` each. count: their number. held: by whom.
    """

    indent: int
    strip: int
    pitch: int
    cells: int
    count: int
    held: int
    end: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is selected anywhere in the window: blocks of a sequence, a block, a block under the mouse."""

    blocks: NDArray[np.intp]
    seq: int | None
    block: int | None
    pointed: int | None


class RowPainter:
    """
    Attributes:
        height: of a line, px. strips: pictures of blocks that no longer change.
    """

    def __init__(self, theme: Theme):
        self._theme = theme
        self._shades = Shades(theme)
        self._image = PoolImage(self._shades)
        self._small, self._mono = theme.font("small"), theme.font("mono_small")
        self._measure = QFontMetrics(self._mono)
        self._elided: dict[tuple[str, int], str] = {}
        self.strips: Pictures[QImage] = Pictures()
        self._trunk_colour = theme.mix("text_faint", 0.45)
        hues = [theme.sequence_color(hue) for hue in range(HUES)]
        self._chips = [[(hue, theme.ink_on(hue)) for hue in tones] for tones in (hues, [h.darker(160) for h in hues])]
        self.height = self._measure.height() + theme.px(8)
        self._tall = self.height - theme.px(7)

    def columns(self, width: int, longest: int, newest: int, most: int) -> Columns:
        """For lines that wide, the longest of whose runs has so many blocks, with sequences up to `newest` and at most
        so many of them in a run."""
        theme, small = self._theme, self._small
        chip = advance(small, "8" * max(2, len(f"{newest}"))) + theme.px(9)
        chips = min(most, 1 if width < theme.px(430) else 2 if width < theme.px(640) else 4)
        held = (advance(small, f"×{most:,}") + theme.px(5)) * (most > 1) + chips * chip
        held = max(held, advance(small, "held by")) + theme.px(4)
        count = advance(small, "8,888") + theme.px(8)
        room = min(theme.px(420), (width - held - count) * 3 // 10)
        pitch = max(theme.px(_NARROW), min(theme.px(_WIDE), room // max(1, longest)))
        cells = max(1, min(longest, room // pitch))
        end = width - theme.px(6)
        strip = end - held - count - cells * pitch
        return Columns(theme.px(16), strip, pitch, cells, end - held - count, end - held, end)

    def text_left(self, row: Row, columns: Columns) -> int:
        """Where the words on an edge begin."""
        return self._theme.px(10) + (min(row.level, _DEEPEST) + 1) * columns.indent

    def strip_of(self, box: QRect, run: Run, columns: Columns) -> QRect:
        """The run's blocks, in a line at `box`."""
        shown = min(len(run.blocks), columns.cells)
        return QRect(columns.strip, box.top() + (box.height() - self._tall) // 2, shown * columns.pitch, self._tall)

    # --- painting ---

    def paint(
        self, painter: QPainter, box: QRect, columns: Columns, state: EngineState, row: Row, run: Run,
        held_by: list[int], chosen: Chosen, alike: int = 0,
    ) -> None:  # fmt: skip
        """`alike`: characters at the beginning of the text that tell it from no other, and are left out."""
        theme, busy = self._theme, used(state, run)
        lit = bool(len(chosen.blocks)) and bool(np.isin(run.blocks, chosen.blocks).any())
        aside = bool(len(chosen.blocks)) and not lit
        flashing = bool((state.hit[run.blocks] > max(0, state.step - self._image.flash)).any())
        line = self._edge_colour(run, lit, flashing, chosen.seq)
        self._guides(painter, box, columns, row, line, run.lost)
        ink = theme.color("text_faint" if aside else "text" if busy or lit else "text_dim")
        x = self.text_left(row, columns)
        text = explain.visible(text_of(state, run, ends=True)[alike:])
        text = ("… " if alike else "") + text if text else f"{len(run.blocks) * state.block_size:,} tokens"
        if run.lost:
            text = f"(evicted) … {text}"
        room = columns.strip - x - theme.px(14)
        shown = self._fitted(text, room)
        wide = put(painter, x, box.top(), box.height(), shown, self._mono, ink) if len(shown) > 2 else 0
        middle = box.center().y()
        left = x + wide + theme.px(5)
        if left < columns.strip - theme.px(4):
            self._line(painter, QPoint(left, middle), QPoint(columns.strip - theme.px(4), middle), line, run.lost)
        self._strip(painter, self.strip_of(box, run, columns), state, run, columns, chosen)
        self._count(painter, box, columns, run, ink)
        self._held(painter, box, columns, held_by, aside)

    def paint_more(self, painter: QPainter, box: QRect, columns: Columns, row: Row) -> None:
        """The line that stands for the branches left out."""
        theme = self._theme
        self._guides(painter, box, columns, row, self._trunk_colour, True)
        branches = "branch" if row.hidden == 1 else "branches"
        words = f"and {row.hidden:,} more {branches} · {explain.count(row.blocks, 'block')} · click to show more"
        spot = box.adjusted(self.text_left(row, columns), 0, columns.end - box.width(), 0)
        write(painter, spot, words, self._small, theme.color("text_faint"))

    def _fitted(self, text: str, room: int) -> str:
        """Elided in its middle. Finding out where is the dearest part of a line, so it is kept."""
        if len(text) > 2 * _ENDS:
            text = f"{text[:_ENDS]}…{text[-_ENDS:]}"
        found = self._elided.get((text, room))
        if found is None:
            if len(self._elided) >= _KEPT:
                self._elided.clear()
            found = self._measure.elidedText(text, Qt.TextElideMode.ElideMiddle, room)
            self._elided[text, room] = found
        return found

    def _edge_colour(self, run: Run, lit: bool, flashing: bool, seq: int | None) -> QColor:
        if flashing:
            return self._theme.color("selection")
        if lit and seq is not None:
            return self._theme.sequence_color(seq)
        return self._theme.color("text_faint") if run.reused else self._trunk_colour

    def _guides(
        self, painter: QPainter, box: QRect, columns: Columns, row: Row, colour: QColor, dashed: bool
    ) -> None:  # fmt: skip
        """The trunks that pass by, and the branch that leads here."""
        middle, trunk = box.center().y(), self._trunk_colour
        for level, goes_on in enumerate(row.guides):
            if goes_on and level < _DEEPEST:
                x = self._trunk(level, columns)
                self._line(painter, QPoint(x, box.top()), QPoint(x, box.bottom()), trunk)
        x = self._trunk(row.level, columns)
        self._line(painter, QPoint(x, box.top()), QPoint(x, middle if row.last else box.bottom()), trunk)
        self._line(painter, QPoint(x, middle), QPoint(self.text_left(row, columns) - self._theme.px(4), middle),
                   colour, dashed)  # fmt: skip

    def _trunk(self, level: int, columns: Columns) -> int:
        return self._theme.px(10) + min(level, _DEEPEST) * columns.indent

    @staticmethod
    def _line(painter: QPainter, start: QPoint, end: QPoint, colour: QColor, dashed: bool = False) -> None:
        """Filled, a pixel thick: pens draw slower. Dashed: what it leads to, no prompt can reach or nobody sees."""
        box = QRect(start, end).normalized()
        if not dashed:
            painter.fillRect(box, colour)
            return
        for x in range(box.left(), box.right(), 5):
            painter.fillRect(QRect(x, box.top(), min(3, box.right() - x + 1), 1), colour)

    def _strip(
        self, painter: QPainter, box: QRect, state: EngineState, run: Run, columns: Columns, chosen: Chosen
    ) -> None:
        latest = int(max(times[run.blocks].max() for times in (state.changed, state.hit, state.copied)))
        if state.step - latest <= self._image.flash:  # something may still fade
            painter.drawImage(box.topLeft(), self._picture(state, run, columns, chosen))
            return
        marks = [mark if mark is not None and mark in run.blocks else None for mark in (chosen.block, chosen.pointed)]
        lit = np.isin(run.blocks, chosen.blocks).tobytes() if len(chosen.blocks) else b""
        key = (run.blocks.tobytes(), latest, columns.cells, columns.pitch, lit, *marks)
        strip = self.strips.of(key, lambda: self._picture(state, run, columns, chosen))
        painter.drawImage(box.topLeft(), strip)

    def _picture(self, state: EngineState, run: Run, columns: Columns, chosen: Chosen) -> QImage:
        blocks = shown_blocks(state, run, columns)
        grid = Grid(len(blocks), len(blocks), columns.pitch, self._tall)
        self._image.follow(_Strip(state, blocks))
        places = {block: place for place, block in enumerate(blocks.tolist())}
        selected = np.flatnonzero(np.isin(blocks, chosen.blocks))
        if len(chosen.blocks) and not len(selected):
            selected = np.array([len(blocks)])  # outside: all of these are turned down
        marks = [None if mark is None else places.get(mark) for mark in (chosen.block, chosen.pointed)]
        pixels = self._image.render(grid, grid.visible(0, 0, *grid.size), selected, *marks)
        rows, wide = pixels.shape
        return QImage(pixels.data, wide, rows, 4 * wide, QImage.Format.Format_RGB32)  # which holds on to the pixels

    def _count(self, painter: QPainter, box: QRect, columns: Columns, run: Run, ink: QColor) -> None:
        room = columns.held - columns.count - self._theme.px(8)
        words = f"{len(run.blocks):,}"
        write(painter, QRect(columns.count, box.top(), room, box.height()), words, self._small, ink, RIGHT)

    def _held(self, painter: QPainter, box: QRect, columns: Columns, seqs: list[int], aside: bool) -> None:
        """How many live sequences hold the run, and which: as many as have room."""
        theme, x = self._theme, columns.held + self._theme.px(2)
        if not seqs:
            write(painter, QRect(x, box.top(), columns.end - x, box.height()), "idle", self._small,
                  theme.color("text_faint"))  # fmt: skip
            return
        chips = self.chips(box, columns, seqs)
        for seq, chip in chips:
            colour, ink = self._chips[aside][seq % HUES]
            painter.fillRect(chip, colour)
            put(painter, chip.left() + theme.px(3), chip.top(), chip.height(), f"{seq}", self._small, ink)
        if len(seqs) > 1 or not chips:
            put(painter, x, box.top(), box.height(), f"×{len(seqs):,}", self._small,
                theme.color("text_faint" if aside else "text"))  # fmt: skip

    def chips(self, box: QRect, columns: Columns, seqs: list[int]) -> list[tuple[int, QRect]]:
        """Each sequence that has room, and where it stands."""
        theme, found = self._theme, []
        x = columns.held + theme.px(2)
        if len(seqs) > 1:
            x += advance(self._small, f"×{len(seqs):,}") + theme.px(5)
        tall = QFontMetrics(self._small).height()
        for seq in seqs:
            wide = advance(self._small, f"{seq}") + theme.px(6)
            if x + wide > columns.end:
                break
            found.append((seq, QRect(x, box.top() + (box.height() - tall) // 2, wide, tall)))
            x += wide + theme.px(3)
        return found


def shown_blocks(state: EngineState, run: Run, columns: Columns) -> NDArray[np.intp]:
    """The blocks that stand in the run's cells: where several share one, the loudest, as in the pool."""
    blocks, cells = run.blocks, columns.cells
    if len(blocks) <= cells:
        return blocks
    edges = np.arange(cells) * len(blocks) // cells
    ranks = rank(state, blocks).astype(np.int64) * len(blocks) + np.arange(len(blocks))
    return blocks[np.maximum.reduceat(ranks, edges) % len(blocks)]


class _Strip(Blocks):
    """A run's blocks as the picture of a pool takes them."""

    def __init__(self, state: EngineState, blocks: NDArray[np.intp]):
        self.step, self.block_size = state.step, state.block_size
        self.take_part(state, blocks)
