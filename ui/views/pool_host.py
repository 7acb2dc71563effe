"""The host pool beside the device's: its own label, a cell a block, in the hues of those whose blocks wait there.

Paints what the mirror knows of it; nothing here can be zoomed. Hover tells whose block it is, a click chooses that one.
"""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QEvent, QPoint, QRect, QSize, Signal
from PySide6.QtGui import QFontMetrics, QImage, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QToolTip, QWidget

from engine.records import FREE, NONE, USED
from ui.blocks import Blocks
from ui.context import ViewContext
from ui.host_blocks import HostBlocks
from ui.paint.cells import Grid
from ui.paint.guard import painting
from ui.paint.labels import write
from ui.views.pool_image import PoolImage
from ui.views.pool_shades import Shades


class HostCanvas(QWidget):
    """
    Signals:
        failed: painting raised this exception.

    Attributes:
        grid: where cells lie now. origin: the grid's corner in the widget, px.
    """

    failed = Signal(object)

    def __init__(self, context: ViewContext, parent: QWidget | None = None):
        super().__init__(parent)
        self._context, self._theme = context, context.theme
        self.setMouseTracking(True)
        self.setAccessibleName("Host pool, a cell a block")
        self._image = PoolImage(Shades(self._theme))
        self.grid, self.origin = Grid(0, 1, 1, 1), QPoint()
        self._shown: tuple[object, ...] = ()
        self.setVisible(self.host.num_blocks > 0)

    @property
    def host(self) -> HostBlocks:
        return self._context.cursor.state.host

    def refresh(self) -> None:
        """Something may have changed; hidden while there is no host pool."""
        self.setVisible(self.host.num_blocks > 0)
        shown = (self.host, self.host.version, self._context.selection.seq)
        if shown != self._shown:
            self._shown = shown
            self.update()

    def restyle(self) -> None:
        self._image = PoolImage(Shades(self._theme))
        self.update()

    def rect_of(self, block: int) -> QRect:
        x, y, wide, tall = self.grid.body(block)
        return QRect(self.origin + QPoint(x, y), QSize(wide, tall))

    def block_at(self, spot: QPoint) -> int | None:
        at = spot - self.origin
        return self.grid.at(at.x(), at.y())

    def words(self, block: int) -> str:
        """Whose block it is."""
        host, size = self.host, self._context.cursor.state.block_size
        if host.owner[block] == NONE:
            return f"host block {block:,} · free"
        what = f"seq {host.owner[block]}, logical {host.index[block]:,}"
        return f"host block {block:,} · {what} · {host.filled[block]} of {size} tokens, until it runs again"

    def label(self) -> tuple[str, ...]:
        """From the longest to the shortest."""
        used, total = self.host.used, self.host.num_blocks
        return f"host pool · {used:,} of {total:,} used", f"host {used:,} of {total:,}", "host"

    # --- painting ---

    def minimumSizeHint(self) -> QSize:
        return QSize(self._theme.px(64), self._theme.px(60))

    def paintEvent(self, event: QPaintEvent) -> None:
        painting(self, self._paint, self.failed.emit)

    def _paint(self, painter: QPainter) -> None:
        theme, font = self._theme, self._theme.font("small")
        painter.fillRect(self.rect(), theme.color("panel"))
        line, measure = QFontMetrics(font).height(), QFontMetrics(font)
        words = next((text for text in self.label() if measure.horizontalAdvance(text) <= self.width()), "host")
        write(painter, QRect(0, 0, self.width(), line), words, font, theme.color("text_dim"))
        top = line + theme.px(4)
        self.grid = Grid.fit(self.host.num_blocks, self.width(), self.height() - top)
        self.origin = QPoint(0, top)
        if not self.grid.count or self.height() <= top:
            return
        seq = self._context.selection.seq
        selected = np.empty(0, np.intp) if seq is None else self.host.table(seq)
        self._image.follow(self._as_pool())
        window = self.grid.visible(0, 0, self.width(), self.height() - top)
        pixels = self._image.render(self.grid, window, selected, None, None)
        rows, columns = pixels.shape
        picture = QImage(pixels.data, columns, rows, 4 * columns, QImage.Format.Format_RGB32)
        painter.drawImage(self.origin, picture)

    def _as_pool(self) -> _Pool:
        host = self.host
        pool = _Pool(host.num_blocks)
        pool.block_size = self._context.cursor.state.block_size
        pool.blocks_state = np.where(host.owner == NONE, FREE, USED).astype(np.uint8)
        pool.owner, pool.filled = host.owner, host.filled
        return pool

    # --- mouse ---

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        block = self.block_at(event.position().toPoint())
        text = "" if block is None or block >= self.host.num_blocks else self.words(block)
        QToolTip.showText(event.globalPosition().toPoint(), text, self)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        block = self.block_at(event.position().toPoint())
        if block is not None and block < self.host.num_blocks and self.host.owner[block] != NONE:
            self._context.selection.toggle(int(self.host.owner[block]), None)

    def leaveEvent(self, event: QEvent) -> None:
        QToolTip.hideText()


class _Pool(Blocks):
    """The host's blocks as the picture of a pool takes them: nothing was just taken, nothing is shared."""

    step = 0
    block_size = 16
