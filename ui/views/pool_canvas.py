"""The pool's picture as a widget: zoom, pan, hover, click, and what is written into large cells."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

from PySide6.QtCore import QEvent, QPoint, QRect, QSize, Qt, QTimer, Signal
from PySide6.QtGui import (
    QImage,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPixmap,
    QRegion,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QApplication, QWidget

from engine.records import NONE, USED
from ui.block_story import tell
from ui.context import ViewContext
from ui.paint.cells import Grid
from ui.paint.guard import painting
from ui.paint.labels import empty
from ui.state import EngineState
from ui.views.pool_image import PoolImage, blocks_of
from ui.views.pool_shades import Shades
from ui.views.pool_words import CellWords, card

CARD_EVERY = 0.05  # s: its text costs as much as the rest of the picture


class _Card(NamedTuple):
    """A card as it was painted last. `made`: monotonic s."""

    made: float
    at: QPoint
    picture: QPixmap


class PoolCanvas(QWidget):
    """
    Signals:
        moved: zoom or pan changed. failed: painting raised this exception.

    Attributes:
        grid: where cells lie now. origin: the grid's corner in the widget, px.
        pointed: the block under the mouse.
    """

    moved = Signal()
    failed = Signal(object)

    def __init__(self, context: ViewContext, parent: QWidget | None = None):
        super().__init__(parent)
        self._context, self._theme = context, context.theme
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.setAccessibleName("Block pool, a cell a block")
        self._image = PoolImage(Shades(self._theme))
        self._words = CellWords(self._theme)
        self._notches = 0
        self._drag: QPoint | None = None
        self._pressed: QPoint | None = None
        self._dirty = True
        self._picture = QImage()
        self._card: _Card | None = None
        self._renew = QTimer(self)  # where no frame does
        self._renew.setSingleShot(True)
        self._renew.setInterval(int(1e3 * CARD_EVERY))
        self._renew.timeout.connect(self.update)
        self._lit: frozenset[int] = frozenset()  # blocks of the selected sequence
        self.grid = Grid(0, 1, 1, 1)
        self.origin = QPoint()
        self.pointed: int | None = None
        context.selection.pointed_changed.connect(self._repoint)

    # --- what is shown ---

    @property
    def state(self) -> EngineState:
        return self._context.cursor.state

    @property
    def zoomed(self) -> bool:
        return self._notches > 0

    def restyle(self) -> None:
        """Colours or text scale changed."""
        self._card = None
        self._image = PoolImage(Shades(self._theme))
        self._words = CellWords(self._theme)
        self.refresh()

    def refresh(self) -> None:
        """Something shown changed; painted with the next paint event, and only if there is one."""
        if self.state.num_blocks != self.grid.count:
            self._lay_out()
        self._dirty = True
        self.update()

    def fit(self) -> None:
        """The whole pool."""
        self._notches = 0
        self._lay_out()
        self.refresh()
        self.moved.emit()

    def zoom(self, notches: int, about: QPoint) -> None:
        """In (positive) or out, keeping the cell under `about` there."""
        old, at = self.grid, about - self.origin
        steps = max(0, self._notches + notches)
        while steps > self._notches and not self._fitted().zoomed(steps - 1).can_grow:
            steps -= 1
        if steps == self._notches:
            return
        self._notches = steps
        self.grid = self._fitted().zoomed(steps)
        wide, tall = self.grid.width / self.grid.across, self.grid.height / self.grid.down
        x, y = at.x() * wide * old.across / old.width, at.y() * tall * old.down / old.height
        self._place(about - QPoint(round(x), round(y)))
        self.refresh()
        self.moved.emit()

    def show_block(self, block: int) -> None:
        """Pan so that the block is visible."""
        x, y, _, _ = self.grid.body(block)
        if self.zoomed and not self.rect().intersects(self.rect_of(block)):
            self._place(QPoint(self.width() // 2 - x, self.height() // 2 - y))
            self.refresh()
            self.moved.emit()

    def rect_of(self, block: int) -> QRect:
        """The body of a block's cell, in the widget."""
        x, y, wide, tall = self.grid.body(block)
        return QRect(self.origin + QPoint(x, y), QSize(wide, tall))

    def block_at(self, spot: QPoint) -> int | None:
        self._catch_up()
        at = spot - self.origin
        return self.grid.at(at.x(), at.y())

    def _catch_up(self) -> None:
        """The pool has another size since it was laid out: blocks that have a cell may be gone."""
        if self.state.num_blocks != self.grid.count:
            self.refresh()

    def _fitted(self) -> Grid:
        return Grid.fit(self.state.num_blocks, self.width(), self.height())

    def _lay_out(self) -> None:
        self.grid = self._fitted().zoomed(self._notches)
        self._place(self.origin)

    def _place(self, origin: QPoint) -> None:
        """Nothing beyond the edges; what is smaller than the widget sits in its middle, at the top."""
        wide, tall = self.grid.size
        x = (self.width() - wide) // 2 if wide <= self.width() else min(0, max(self.width() - wide, origin.x()))
        y = 0 if tall <= self.height() else min(0, max(self.height() - tall, origin.y()))
        self.origin = QPoint(x, y)

    # --- painting ---

    def _render(self) -> None:
        """The image of the visible cells, and where it goes."""
        state, selection = self.state, self._context.selection
        self._image.follow(state)
        selected = blocks_of(state, selection.seq)
        self._lit = frozenset(selected.tolist())
        window = self.grid.visible(-self.origin.x(), -self.origin.y(), self.width(), self.height())
        self._pixels = self._image.render(
            self.grid, window, selected, selection.block, selection.pointed
        )
        rows, columns = self._pixels.shape
        data = self._pixels.data
        self._picture = QImage(data, columns, rows, 4 * columns, QImage.Format.Format_RGB32)
        self._window = window
        self._dirty = False

    def _repoint(self) -> None:
        self._dirty = True
        self.update()

    def _paint_card(self, painter: QPainter) -> None:
        """The story of the block under the mouse, else of one that was chosen alone: a sequence's blocks, which are lit
        then, are not to be covered."""
        selection = self._context.selection
        chosen = selection.block if selection.seq is None else None
        block = chosen if self.pointed is None else self.pointed
        if block is None or block >= self.state.num_blocks or self._drag is not None:
            self._card = None
            return
        now = monotonic()
        if self._card is None or now - self._card.made >= CARD_EVERY:
            story = tell(self.state, block, self._context.mirror.history.lives)
            laid = card(self.rect(), self.rect_of(block), story, self._theme)
            self._card = _Card(now, laid.box.topLeft(), laid.picture(self, self._theme))
            self._renew.stop()
        elif not self._renew.isActive():  # a mouse on its way: nobody reads the cards of all that it passes
            self._renew.start()
        painter.drawPixmap(self._card.at, self._card.picture)

    def sizeHint(self) -> QSize:
        return QSize(self._theme.px(560), self._theme.px(300))

    def minimumSizeHint(self) -> QSize:
        return QSize(self._theme.px(120), self._theme.px(60))

    def paintEvent(self, event: QPaintEvent) -> None:
        painting(self, lambda painter: self._paint(painter, event.rect()), self.failed.emit)

    def _paint(self, painter: QPainter, area: QRect) -> None:
        panel = self._theme.color("panel")
        self._catch_up()
        if not self.grid.count:
            painter.fillRect(area, panel)
            hint = "The KV cache is laid out here, a cell a block, once the model is loaded."
            empty(painter, self.rect(), self._theme, "No pool yet", hint)
            return
        if self._dirty:
            self._render()
        spot = QRect(self.origin + QPoint(self._window.x, self._window.y), self._picture.size())
        for rest in QRegion(area).subtracted(spot):  # what the picture covers needs no background
            painter.fillRect(rest, panel)
        painter.drawImage(spot.topLeft(), self._picture)
        self._words.paint(painter, self.state, self.grid, self._window, self.origin, self._lit)
        self._paint_card(painter)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._lay_out()
        self._dirty = True

    # --- mouse and keys ---

    def _point(self, block: int | None) -> None:
        if block != self.pointed:
            self.pointed = block
            self._context.selection.point(block)
            self.update()

    def wheelEvent(self, event: QWheelEvent) -> None:
        turned = event.angleDelta().y()
        if turned:
            self.zoom(max(1, turned // 120) if turned > 0 else min(-1, -(-turned // 120)), event.position().toPoint())
        event.accept()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton:
            self._pressed = event.position().toPoint()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        spot = event.position().toPoint()
        if self._pressed is not None and self._drag is None:
            far = (spot - self._pressed).manhattanLength() >= QApplication.startDragDistance()
            if far and self.zoomed:
                self._drag = self._pressed
                self.setCursor(Qt.CursorShape.ClosedHandCursor)
        if self._drag is not None:
            self._place(self.origin + spot - self._drag)
            self._drag = spot
            self.refresh()
            self.moved.emit()
            return
        self._point(self.block_at(spot))

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() != Qt.MouseButton.LeftButton or self._pressed is None:
            return
        dragged, self._drag, self._pressed = self._drag is not None, None, None
        self.unsetCursor()
        if dragged:
            self.refresh()
            return
        block = self.block_at(event.position().toPoint())
        if block is None:
            self._context.selection.choose()
            return
        owner = int(self.state.owner[block])
        used = self.state.blocks_state[block] == USED
        self._context.selection.toggle(owner if used and owner != NONE else None, block)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self._pressed = None
        event.ignore()  # the window's: the view fills it

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_0, Qt.Key.Key_Home):
            self.fit()
        else:
            event.ignore()

    def leaveEvent(self, event: QEvent) -> None:
        self._point(None)
