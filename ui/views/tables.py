"""View 2, block tables: a row a sequence, its logical blocks in order and where each lies in the pool."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPoint, QRect, QSize, Qt, Signal
from PySide6.QtGui import QFontMetrics, QMouseEvent, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QVBoxLayout, QWidget

from ui.block_story import tell
from ui.changes import Kinds
from ui.context import ViewContext
from ui.paint.guard import painting
from ui.paint.labels import empty
from ui.state import EngineState
from ui.views.base import View
from ui.views.pool_words import card
from ui.views.tables_row import Columns, RowPainter, shown_of


class TablesView(View):
    """
    Attributes:
        area: the scrolled rows.
    """

    key = "tables"
    title, short = "Block tables", "Tables"
    kinds = (
        Kinds.STEPS | Kinds.BLOCKS | Kinds.TABLES | Kinds.QUEUE | Kinds.SOURCE | Kinds.CURSOR | Kinds.SELECTION
        | Kinds.THEME
    )  # fmt: skip
    rate = 20.0  # numbers: nobody reads them faster

    def __init__(self, context: ViewContext, parent: QWidget | None = None):
        super().__init__(context, parent)
        self.area = TablesArea(context, self)
        self.area.failed.connect(self.failed)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.area)

    def refresh(self, kinds: Kinds) -> None:
        if kinds & Kinds.THEME:
            self.area.restyle()
        self.area.refresh(reveal=bool(kinds & Kinds.SELECTION))
        state = self.context.cursor.state
        preempted = sum(state.sequences[seq].preempted for seq in state.waiting)
        words = f"{len(state.running):,} running · {len(state.waiting):,} waiting"
        self.summarise(words + (f" ({preempted:,} preempted)" if preempted else ""))


class TablesArea(QAbstractScrollArea):
    """Rows in the order of the engine's own queues: running as they are scheduled, then waiting. Only visible rows
    are painted. Scrolling sideways moves along the tables.

    Signals:
        failed: painting raised this exception.

    Attributes:
        header: height of the line of column names, px.
    """

    failed = Signal(object)

    def __init__(self, context: ViewContext, parent: QWidget | None = None):
        super().__init__(parent)
        self._context, self._theme = context, context.theme
        self._rows: list[int] = []
        self._longest = 0
        self._pointed: tuple[int, int] | None = None  # sequence and logical index under the mouse
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.viewport().setMouseTracking(True)
        self.viewport().setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.setAccessibleName("Block tables, a row a sequence")
        self._outlined: int | None = None  # the block under the mouse, wherever that is
        context.selection.pointed_changed.connect(self._repoint)
        self.restyle()

    # --- what is shown ---

    @property
    def rows(self) -> list[int]:
        """Sequences from top to bottom."""
        return self._rows

    @property
    def columns(self) -> Columns:
        return self._painter.columns(self.viewport().width(), self._state.num_blocks, max(self._rows, default=0))

    @property
    def _state(self) -> EngineState:
        return self._context.cursor.state

    def restyle(self) -> None:
        """Colours or text scale changed."""
        self._painter = RowPainter(self._theme)
        self.header = QFontMetrics(self._theme.font("small")).height() + self._theme.px(4)

    def refresh(self, reveal: bool = False) -> None:
        state = self._state
        self._rows = [*state.running, *state.waiting]
        self._longest = state.tables.longest
        self._bars()
        if reveal and self._context.selection.seq in self._rows:
            self._reveal(self._rows.index(self._context.selection.seq))
        self.viewport().update()

    def row_rect(self, index: int) -> QRect:
        """A row, in the viewport."""
        tall = self._painter.height
        return QRect(0, self.header + index * tall - self.verticalScrollBar().value(), self.viewport().width(), tall)

    def at(self, spot: QPoint) -> tuple[int | None, int | None]:
        """(sequence, logical index of the cell) under a point of the viewport."""
        index = (spot.y() - self.header + self.verticalScrollBar().value()) // self._painter.height
        if spot.y() < self.header or not 0 <= index < len(self._rows):
            return None, None
        seq, columns = self._rows[index], self.columns
        length = len(self._state.table(seq))
        place = (spot.x() - columns.table) // columns.cell
        part = shown_of(length, self.horizontalScrollBar().value(), columns)
        if spot.x() < columns.table or not length:
            return seq, None
        if place < part.high - part.low:
            return seq, part.low + place
        return seq, length - 1 if part.last and place == part.high - part.low + columns.gap else None

    def cell_rect(self, seq: int, logical: int) -> QRect:
        """The cell of a table entry, in the viewport; empty where it is not shown."""
        columns, length = self.columns, len(self._state.table(seq))
        part = shown_of(length, self.horizontalScrollBar().value(), columns)
        place = logical - part.low
        if part.last and logical == length - 1:
            place = part.high - part.low + columns.gap
        elif not part.low <= logical < part.high:
            return QRect()
        row = self.row_rect(self._rows.index(seq))
        return QRect(columns.table + place * columns.cell, row.top(), columns.cell - 1, row.height())

    def _bars(self) -> None:
        tall = self.header + len(self._rows) * self._painter.height
        self.verticalScrollBar().setRange(0, max(0, tall - self.viewport().height()))
        self.verticalScrollBar().setPageStep(max(1, self.viewport().height() - self.header))
        self.verticalScrollBar().setSingleStep(self._painter.height)
        capacity = self.columns.capacity
        self.horizontalScrollBar().setRange(0, max(0, self._longest - capacity))
        self.horizontalScrollBar().setPageStep(max(1, capacity))

    def _reveal(self, index: int) -> None:
        row, bar = self.row_rect(index), self.verticalScrollBar()
        if row.top() < self.header:
            bar.setValue(bar.value() + row.top() - self.header)
        elif row.bottom() > self.viewport().height():
            bar.setValue(bar.value() + row.bottom() - self.viewport().height() + 1)

    # --- painting ---

    def _paint_header(self, painter: QPainter, columns: Columns) -> None:
        theme = self._theme
        painter.setClipping(False)
        painter.fillRect(QRect(0, 0, self.viewport().width(), self.header), theme.color("panel"))
        painter.setFont(theme.font("small"))
        painter.setPen(theme.color("text_faint"))
        metrics, left = QFontMetrics(theme.font("small")), self.horizontalScrollBar().value()
        blocks = f"physical blocks, from logical {left:,}" if left else "physical blocks, in logical order"
        ends = (columns.doing, columns.table, self.viewport().width())
        for x, end, text in zip((columns.name, columns.doing, columns.table), ends,
                                ("sequence", "doing", blocks), strict=True):  # fmt: skip
            room = QRect(x, 0, max(0, end - x - theme.px(6)), self.header)
            shown = metrics.elidedText(text, Qt.TextElideMode.ElideRight, room.width())
            painter.drawText(room, Qt.AlignmentFlag.AlignVCenter, shown)

    def _paint_rows(self, painter: QPainter, columns: Columns) -> None:
        state, chosen = self._state, self._context.selection
        panel, hover = self._theme.color("panel"), self._theme.color("hover")
        scroll = self.horizontalScrollBar().value()
        self._painter.pictures.fit(self.viewport().size())
        for index in self._in_sight():
            seq, box = self._rows[index], self.row_rect(index)
            info = state.sequences.get(seq)
            if info is None:
                continue
            surface = hover if seq == chosen.seq else panel
            if surface is hover:
                painter.fillRect(box, surface)
            self._painter.paint(painter, box, columns, state, info, scroll, surface)
            if surface is hover:
                painter.fillRect(QRect(0, box.top(), self._theme.px(2), box.height()), self._theme.color("selection"))
        self._paint_lit(painter, chosen.pointed, "accent")
        self._paint_lit(painter, chosen.block, "selection")

    def _paint_lit(self, painter: QPainter, block: int | None, token: str) -> None:
        """Outline every visible cell that is this block."""
        if block is None:
            return
        painter.setPen(self._theme.pen(token, 2))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        for seq, logical in self._cells_of(block):
            box = self.cell_rect(seq, logical)
            if box.bottom() > self.header and box.top() < self.viewport().height():
                painter.drawRect(box.adjusted(0, 1, 0, -2))

    def _in_sight(self) -> range:
        """Rows that are painted."""
        first = self.verticalScrollBar().value() // self._painter.height
        last = first + self.viewport().height() // self._painter.height + 2
        return range(first, min(last, len(self._rows)))

    def _cells_of(self, block: int) -> list[tuple[int, int]]:
        """(sequence, logical index) of every cell in sight that is this block."""
        found = []
        for index in self._in_sight():
            seq = self._rows[index]
            found += [(seq, logical) for logical in (self._state.table(seq) == block).nonzero()[0].tolist()]
        return found

    def _repoint(self) -> None:
        """Painted at once where it shows: over a large pool the mouse passes many blocks that are in no row here."""
        before, self._outlined = self._outlined, self._context.selection.pointed
        if any(block is not None and self._cells_of(block) for block in (before, self._outlined)):
            self.viewport().update()

    def _paint_card(self, painter: QPainter) -> None:
        """The story of the cell under the mouse, told from the table's side."""
        if self._pointed is None or self._pointed[0] not in self._rows:
            return
        seq, logical = self._pointed
        table = self._state.table(seq)
        if logical >= len(table) or int(table[logical]) >= self._state.num_blocks:
            return
        story = tell(self._state, int(table[logical]), self._context.mirror.history.lives)
        story.title, story.seq = f"seq {seq}: logical {logical:,} → block {int(table[logical]):,}", seq
        told = card(self.viewport().rect(), self.cell_rect(seq, logical), story, self._theme)
        told.paint(painter, self._theme)

    def minimumSizeHint(self) -> QSize:
        return QSize(self._theme.px(160), self._theme.px(60))

    def paintEvent(self, event: QPaintEvent) -> None:
        def draw(painter: QPainter) -> None:
            painter.fillRect(event.rect(), self._theme.color("panel"))
            if self._rows:
                columns = self.columns
                painter.setClipRect(self.viewport().rect().adjusted(0, self.header, 0, 0))
                self._paint_rows(painter, columns)
                self._paint_header(painter, columns)
                self._paint_card(painter)
            else:
                hint = "A row appears here for every request that runs or waits: send one, or let them arrive."
                empty(painter, self.viewport().rect(), self._theme, "No sequence now", hint)

        painting(self.viewport(), draw, self.failed.emit)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._bars()

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        self.viewport().update()

    # --- mouse ---

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        spot = event.position().toPoint()
        seq, logical = self.at(spot)
        table = self._state.table(seq) if seq is not None else ()
        self._point((seq, logical) if logical is not None and logical < len(table) else None)

    def _point(self, entry: tuple[int, int] | None) -> None:
        if entry != self._pointed:
            self._pointed = entry
            self._context.selection.point(None if entry is None else int(self._state.table(entry[0])[entry[1]]))
            self.viewport().update()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() != Qt.MouseButton.LeftButton:
            return
        seq, logical = self.at(event.position().toPoint())
        if seq is None:
            self._context.selection.choose()
            return
        table = self._state.table(seq)
        self._context.selection.toggle(seq, None if logical is None else int(table[logical]))

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        event.ignore()  # the window's: the view fills it

    def viewportEvent(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Leave:
            self._point(None)
        return super().viewportEvent(event)
