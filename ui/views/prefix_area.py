"""The prefix tree as a scrolled picture: only the lines in sight are painted. Hover, click, and showing more."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QEvent, QPoint, QRect, QSize, Qt, Signal
from PySide6.QtGui import QFontMetrics, QMouseEvent, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QWidget

from engine.records import NONE, USED
from ui import explain, prefix_tree
from ui.block_story import NAMED_SHARERS, Story, tell
from ui.context import ViewContext
from ui.paint.guard import painting
from ui.paint.labels import empty, write
from ui.prefix_tree import Row, Run, Tree
from ui.prefix_words import missing
from ui.state import EngineState
from ui.views.pool_image import blocks_of
from ui.views.pool_words import card
from ui.views.prefix_rows import Chosen, Columns, RowPainter, shown_blocks

_WIDENED = 256  # runs whose wish for more branches is remembered


class PrefixArea(QAbstractScrollArea):
    """
    Signals:
        failed: painting raised this exception.

    Attributes:
        tree: what is drawn. rows: its lines from top to bottom. header: height of the column names, px.
    """

    failed = Signal(object)

    def __init__(self, context: ViewContext, parent: QWidget | None = None):
        super().__init__(parent)
        self._context, self._theme = context, context.theme
        self.tree = Tree([], [], np.empty(0, np.int32))
        self.rows: list[Row] = []
        self._holders: dict[int, list[int]] = {}
        self._alike: dict[int, int] = {}
        self._longest, self._most_held = 1, 1
        self._wider: dict[int, int] = {}  # by the hash of a run: branches that the user wants to see there
        self._pointed: tuple[int, int | None] | None = None  # line, block, under the mouse
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.viewport().setMouseTracking(True)
        self.viewport().setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.setAccessibleName("Prefix cache, a line a run of blocks")
        context.selection.pointed_changed.connect(self.viewport().update)
        self.restyle()

    # --- what is shown ---

    @property
    def columns(self) -> Columns:
        newest = max(self._state.running, default=0)
        return self._painter.columns(self.viewport().width(), self._longest, newest, self._most_held)

    @property
    def hidden(self) -> int:
        """Branches left out."""
        return sum(row.hidden for row in self.rows)

    @property
    def _state(self) -> EngineState:
        return self._context.cursor.state

    def _catch_up(self) -> None:
        """The pool has another size since the tree was built: its blocks may be gone."""
        if len(self.tree.run_of) != self._state.num_blocks:
            self.refresh()

    def restyle(self) -> None:
        """Colours or text scale changed."""
        self._painter = RowPainter(self._theme)
        self.header = QFontMetrics(self._theme.font("small")).height() + self._theme.px(4)

    def refresh(self, reveal: bool = False) -> None:
        state, selection = self._state, self._context.selection
        self.tree = prefix_tree.build(state)
        self._holders = prefix_tree.sharers(state, self.tree)
        chosen = blocks_of(state, selection.seq).tolist()
        if selection.block is not None and selection.block < state.num_blocks:
            chosen.append(selection.block)
        wanted = {run for run in self.tree.run_of[chosen].tolist() if run >= 0}
        room = (self.viewport().height() - self.header) // self._painter.height
        self.rows = prefix_tree.filling(self.tree, room, self._wider, frozenset(wanted))
        shown = [row.run for row in self.rows if row.run >= 0]
        self._alike = prefix_tree.alike(state, self.tree, self.rows)
        self._longest = max([len(self.tree.runs[run].blocks) for run in shown], default=1)
        self._most_held = max([len(self._holders.get(run, ())) for run in shown], default=0) or 1
        self._pointed = None if self._pointed and self._pointed[0] >= len(self.rows) else self._pointed
        self._bars()
        if reveal and wanted:
            focus = wanted
            if selection.block is not None and selection.block < state.num_blocks:
                focus = {int(self.tree.run_of[selection.block])}
            self._reveal([place for place, row in enumerate(self.rows) if row.run in focus])
        self.viewport().update()

    def row_rect(self, index: int) -> QRect:
        """A line, in the viewport."""
        tall = self._painter.height
        return QRect(0, self.header + index * tall - self.verticalScrollBar().value(), self.viewport().width(), tall)

    def cell_rect(self, block: int) -> QRect:
        """The cell of a block, in the viewport; empty where no line shows it."""
        run = int(self.tree.run_of[block]) if block < len(self.tree.run_of) else -1
        place = next((place for place, row in enumerate(self.rows) if row.run == run >= 0), None)
        if place is None:
            return QRect()
        columns = self.columns
        cells = shown_blocks(self._state, self.tree.runs[run], columns).tolist()
        if block not in cells:
            return QRect()
        strip = self._painter.strip_of(self.row_rect(place), self.tree.runs[run], columns)
        return QRect(strip.left() + cells.index(block) * columns.pitch, strip.top(), columns.pitch, strip.height())

    def at(self, spot: QPoint) -> tuple[int | None, int | None]:
        """(line, block) under a point of the viewport."""
        self._catch_up()
        index = (spot.y() - self.header + self.verticalScrollBar().value()) // self._painter.height
        if spot.y() < self.header or not 0 <= index < len(self.rows):
            return None, None
        if self.rows[index].run < 0:
            return index, None
        columns, run = self.columns, self.tree.runs[self.rows[index].run]
        strip = self._painter.strip_of(self.row_rect(index), run, columns)
        if not strip.left() <= spot.x() <= strip.right():
            return index, None
        cells = shown_blocks(self._state, run, columns)
        return index, int(cells[min(len(cells) - 1, (spot.x() - strip.left()) // columns.pitch)])

    def _bars(self) -> None:
        bar = self.verticalScrollBar()
        tall = self.header + len(self.rows) * self._painter.height
        bar.setRange(0, max(0, tall - self.viewport().height()))
        bar.setPageStep(max(1, self.viewport().height() - self.header))
        bar.setSingleStep(self._painter.height)

    def _reveal(self, lines: list[int]) -> None:
        """The last of them, which is the deepest."""
        if not lines:
            return
        row, bar = self.row_rect(lines[-1]), self.verticalScrollBar()
        if row.top() < self.header:
            bar.setValue(bar.value() + row.top() - self.header)
        elif row.bottom() > self.viewport().height():
            bar.setValue(bar.value() + row.bottom() - self.viewport().height() + 1)

    # --- painting ---

    def _paint_header(self, painter: QPainter, columns: Columns) -> None:
        theme, font = self._theme, self._theme.font("small")
        painter.setClipping(False)
        painter.fillRect(QRect(0, 0, self.viewport().width(), self.header), theme.color("panel"))
        faint, left = theme.color("text_faint"), theme.px(6)
        for x, end, text in (
            (left, columns.strip, "tokens, from where prompts begin"),
            (columns.strip, columns.held, "blocks"),
            (columns.held + theme.px(2), columns.end, "held by"),
        ):
            write(painter, QRect(x, 0, max(0, end - x - theme.px(4)), self.header), text, font, faint)

    def _paint_rows(self, painter: QPainter, columns: Columns) -> None:
        state, selection = self._state, self._context.selection
        chosen = Chosen(blocks_of(state, selection.seq), selection.seq, selection.block, selection.pointed)
        first = self.verticalScrollBar().value() // self._painter.height
        last = first + self.viewport().height() // self._painter.height + 2
        for index in range(first, min(last, len(self.rows))):
            row, box = self.rows[index], self.row_rect(index)
            if self._pointed is not None and self._pointed[0] == index:
                painter.fillRect(box, self._theme.color("raised"))
            if row.run < 0:
                self._painter.paint_more(painter, box, columns, row)
            else:
                run = self.tree.runs[row.run]
                held_by = self._holders.get(row.run, [])
                alike = self._alike.get(row.run, 0)
                self._painter.paint(painter, box, columns, state, row, run, held_by, chosen, alike)

    def _paint_card(self, painter: QPainter) -> None:
        if self._pointed is None:
            return
        index, block = self._pointed
        row, box = self.rows[index], self.row_rect(index)
        if row.run < 0:
            return
        area = self.viewport().rect()
        if block is not None and block < self._state.num_blocks:
            story = tell(self._state, block, self._context.mirror.history.lives)
            card(area, self.cell_rect(block), story, self._theme).paint(painter, self._theme)
            return
        beside = QRect(self._painter.text_left(row, self.columns), box.top(), 1, box.height())
        wide = area.width() - self._theme.px(40)
        story = self._story(self.tree.runs[row.run], row.run, wide)
        card(area, beside, story, self._theme, wide).paint(painter, self._theme)

    def _story(self, run: Run, number: int, width: int) -> Story:
        """A whole run, and all of its text that has room in the panel."""
        state, size, count = self._state, self._state.block_size, len(run.blocks)
        low, busy = run.start * size, prefix_tree.used(state, run)
        story = Story(f"{explain.count(count, 'block')} · tokens {low + 1:,}–{low + count * size:,}")
        story.lines.append(f"{busy:,} used · {count - busy:,} cached idle · computed by seq {run.seq}")
        if held_by := self._holders.get(number):
            names = ", ".join(f"seq {seq}" for seq in held_by[:NAMED_SHARERS])
            more = f" and {len(held_by) - NAMED_SHARERS} more" if len(held_by) > NAMED_SHARERS else ""
            story.lines.append(f"held by {names}{more}")
        if run.lost:
            story.lines.append("the blocks before it were evicted: no prompt finds it until they are computed again")
        text = prefix_tree.text_of(state, run)
        metrics = QFontMetrics(self._theme.font("mono_small"))
        lines = (self.viewport().height() - self._theme.px(110)) // metrics.lineSpacing()
        room = max(1, lines) * int(0.8 * width / metrics.averageCharWidth())
        if len(text) > room:
            story.lines.append(f"{len(text) - room:,} of {len(text):,} characters have no room here; fill the window")
            text = f"{text[: room // 2]} … {text[-room // 2 :]}"
        story.text = text
        return story

    def sizeHint(self) -> QSize:
        return QSize(self._theme.px(560), self._theme.px(260))

    def minimumSizeHint(self) -> QSize:
        return QSize(self._theme.px(120), self._theme.px(40))

    def paintEvent(self, event: QPaintEvent) -> None:
        def draw(painter: QPainter) -> None:
            painter.fillRect(event.rect(), self._theme.color("panel"))
            self._catch_up()
            if not self.rows:
                empty(painter, self.viewport().rect(), self._theme, *missing(self._state))
                return
            columns = self.columns
            self._painter.strips.fit(self.viewport().size())
            painter.setClipRect(self.viewport().rect().adjusted(0, self.header, 0, 0))
            self._paint_rows(painter, columns)
            self._paint_header(painter, columns)
            self._paint_card(painter)

        painting(self.viewport(), draw, self.failed.emit)

    def resizeEvent(self, event: QResizeEvent) -> None:
        if self.isVisible():  # how many branches are shown depends on the room
            self.refresh()

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        self.viewport().update()

    # --- mouse ---

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        index, block = self.at(event.position().toPoint())
        self._point(None if index is None else (index, block))

    def _point(self, entry: tuple[int, int | None] | None) -> None:
        if entry != self._pointed:
            self._pointed = entry
            self._context.selection.point(None if entry is None else entry[1])
            self.viewport().update()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() != Qt.MouseButton.LeftButton:
            return
        spot = event.position().toPoint()
        index, block = self.at(spot)
        if index is None:
            self._context.selection.choose()
            return
        row = self.rows[index]
        if row.run < 0:
            self._widen(row)
            return
        holders = self._holders.get(row.run, [])
        for seq, chip in self._painter.chips(self.row_rect(index), self.columns, holders):
            if chip.contains(spot):
                self._context.selection.toggle(seq)
                return
        block = int(self.tree.runs[row.run].blocks[-1]) if block is None else block
        state = self._state
        owner = int(state.owner[block])
        held = state.blocks_state[block] == USED and owner != NONE
        self._context.selection.toggle(owner if held else None, block)

    def _widen(self, row: Row) -> None:
        """Twice as many branches there, from now on."""
        run = self.tree.runs[row.under] if row.under >= 0 else None
        branches, key = (run.children, run.hash) if run else (self.tree.roots, 0)
        self._wider[key] = 2 * (len(branches) - row.hidden)
        while len(self._wider) > _WIDENED:
            del self._wider[next(iter(self._wider))]
        self.refresh()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        event.ignore()  # the window's: the view fills it

    def viewportEvent(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Leave:
            self._point(None)
        return super().viewportEvent(event)
