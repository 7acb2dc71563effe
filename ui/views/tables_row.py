"""One row of the tables view: who, what it does, how far it is, and its block table in little cells."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPixmap

from engine.records import PREFILL
from ui.sequences import SequenceInfo
from ui.state import EngineState
from ui.theme import SEQUENCE_HUES as HUES
from ui.theme import Theme
from ui.views.pool_shades import Shades

_CENTER = Qt.AlignmentFlag.AlignCenter
_MIDDLE = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
KEPT_STRIPS = 256  # pictures of tables; a screen shows fewer rows


def doing(info: SequenceInfo) -> tuple[str, str]:
    """What a sequence does, in words, and the theme's token for them."""
    if info.status == "waiting":
        if info.preempted:
            return f"preempted ↺ {info.lost:,} tok", "warning"
        return "waiting", "text_faint"
    row = info.last_row
    if row is None or row.kind == PREFILL:
        if info.computed < info.known - 1 or row is None:
            return f"prefill {info.computed:,}/{info.known:,}", "prefill"
        return "first token", "prefill"
    if info.computed < info.known - 1:
        return f"prefill {info.computed:,}/{info.known:,}", "prefill"
    return (f"verify γ{row.drafted}", "accepted") if row.drafted else ("decode", "decode")


@dataclass(slots=True)
class Columns:
    """Where things stand in a row, px: the name, what it does, and the table; `cell` is the width of a cell."""

    name: int
    doing: int
    table: int
    cell: int
    capacity: int  # cells between `table` and the right end


@dataclass(slots=True)
class Shown:
    """The part of a table that a row shows: cells low..high-1, then, if `last`, the number left out and the last."""

    low: int
    high: int
    last: bool


def shown_of(length: int, scroll: int, capacity: int) -> Shown:
    """Which entries fit, from `scroll` on; the last one is always shown, it is the one that fills."""
    low = min(scroll, max(0, length - 1))
    if length - low <= capacity:
        return Shown(low, length, False)
    return Shown(low, low + max(0, capacity - 3), True)  # two cells for the number, one for the last


class RowPainter:
    """Paints rows. A table's full cells are painted once and copied until the table changes."""

    def __init__(self, theme: Theme):
        self._theme = theme
        self._shades = Shades(theme)
        self._strips: OrderedDict[tuple, QPixmap] = OrderedDict()
        self._mono, self._small = theme.font("mono_small"), theme.font("small")
        self._name = theme.font("mono")
        metrics = QFontMetrics(self._mono)
        self._digit = metrics.horizontalAdvance("0")
        self.height = max(metrics.height() + theme.px(7), theme.px(20))
        self._full = [QColor(int(c)) for c in self._shades.full]
        self._dim = [QColor(int(c)) for c in self._shades.barred[1 + HUES : 1 + 2 * HUES]]
        self._ring = [QColor(int(c)) for c in self._shades.ring]
        self._ink = [theme.ink_on(colour) for colour in self._full]
        self._ink_dim = theme.ink_on(theme.color("panel"))

    def columns(self, width: int, num_blocks: int, longest_seq: int) -> Columns:
        theme = self._theme
        name = theme.px(16)
        does = name + QFontMetrics(self._name).horizontalAdvance(f"seq {max(999, longest_seq)}") + theme.px(12)
        room = QFontMetrics(self._small).horizontalAdvance("preempted ↺ 8,888 tok")
        compact = QFontMetrics(self._small).horizontalAdvance("prefill 888/888")
        table = does + (room if width > theme.px(420) else compact) + theme.px(10)
        cell = self._digit * len(str(max(99, num_blocks - 1))) + theme.px(6)
        return Columns(name, does, table, cell, max(0, (width - table - theme.px(6)) // cell))

    def paint(
        self, painter: QPainter, box: QRect, columns: Columns, state: EngineState, info: SequenceInfo, scroll: int
    ) -> None:
        theme, hue = self._theme, info.seq % HUES
        running = info.status == "running"
        key = QRect(theme.px(4), box.top() + theme.px(3), theme.px(6), box.height() - theme.px(6))
        painter.fillRect(key, self._full[hue] if running or info.preempted else theme.color("border"))
        painter.setFont(self._name)
        painter.setPen(theme.color("text" if running else "text_dim"))
        painter.drawText(QRect(columns.name, box.top(), columns.doing - columns.name, box.height()), _MIDDLE,
                         f"seq {info.seq}")  # fmt: skip
        words, token = doing(info)
        painter.setFont(self._small)
        painter.setPen(theme.color(token))
        room = QRect(columns.doing, box.top(), columns.table - columns.doing - theme.px(8), box.height() - theme.px(3))
        words = QFontMetrics(self._small).elidedText(words, Qt.TextElideMode.ElideRight, room.width())
        painter.drawText(room, _MIDDLE, words)
        self._progress(painter, room, box, info, hue)
        table = state.table(info.seq)
        if len(table) and columns.capacity:
            self._table(painter, box, columns, state, table, scroll)

    def _progress(self, painter: QPainter, room: QRect, box: QRect, info: SequenceInfo, hue: int) -> None:
        """A thin line: tokens computed and known on the way to the most that it may come to hold."""
        most = info.limit or info.prompt_tokens + info.max_tokens
        if not most:
            return
        line = QRect(room.left(), box.bottom() - self._theme.px(3), room.width(), max(2, self._theme.px(2)))
        painter.fillRect(line, self._theme.color("free"))
        for tokens, colour in ((info.known, self._dim[hue]), (info.computed, self._full[hue])):
            line.setWidth(round(room.width() * min(1.0, tokens / most)))
            painter.fillRect(line, colour)

    def _table(
        self, painter: QPainter, box: QRect, columns: Columns, state: EngineState, table: NDArray, scroll: int
    ) -> None:
        part = shown_of(len(table), scroll, columns.capacity)
        # full cells come from the picture; the last one of the table fills from step to step
        stop = part.high - 1 if not part.last else part.high
        x = columns.table
        if stop > part.low:
            painter.drawPixmap(x, box.top(), self._strip(state, table[part.low : stop], columns.cell))
        x += (stop - part.low) * columns.cell
        if part.last:
            painter.setFont(self._mono)
            painter.setPen(self._theme.color("text_faint"))
            gap = QRect(x, box.top(), 2 * columns.cell, box.height())
            painter.drawText(gap, _CENTER, f"+{len(table) - part.high - 1:,}")
            x += 2 * columns.cell
        self._cell(painter, x, box.top(), columns.cell, state, int(table[-1]))

    def _strip(self, state: EngineState, blocks: NDArray, cell: int) -> QPixmap:
        filled, refs, owner = state.filled[blocks], state.refcount[blocks] > 1, state.owner[blocks]
        key = (cell, blocks.tobytes(), filled.tobytes(), np.packbits(refs).tobytes(), owner.tobytes())
        found = self._strips.get(key)
        if found is not None:
            self._strips.move_to_end(key)
            return found
        picture = QPixmap(cell * len(blocks), self.height)
        picture.fill(Qt.GlobalColor.transparent)
        painter = QPainter(picture)
        for place, block in enumerate(blocks.tolist()):
            self._cell(painter, place * cell, 0, cell, state, block)
        painter.end()
        self._strips[key] = picture
        while len(self._strips) > KEPT_STRIPS:
            self._strips.popitem(last=False)
        return picture

    def _cell(self, painter: QPainter, x: int, y: int, cell: int, state: EngineState, block: int) -> None:
        if block >= state.num_blocks:
            return
        pad = self._theme.px(2)
        body = QRect(x, y + pad, cell - 1, self.height - 2 * pad)
        hue = int(state.owner[block]) % HUES
        share = min(1.0, int(state.filled[block]) / state.block_size)
        if state.refcount[block] > 1:
            painter.fillRect(body, self._ring[hue])
            body = body.adjusted(1, 1, -1, -1)
        painter.setFont(self._mono)
        level = body.height() if share == 1.0 else min(body.height() - 1, round(body.height() * share))
        below = QRect(body.left(), body.bottom() + 1 - level, body.width(), level)
        painter.fillRect(body, self._dim[hue])
        if level < body.height():
            painter.setPen(self._ink_dim)
            painter.drawText(body, _CENTER, str(block))
        if share > 0:  # over it the bright part, with the same number in ink that reads there
            painter.save()
            painter.setClipRect(below, Qt.ClipOperation.IntersectClip)
            painter.fillRect(below, self._full[hue])
            painter.setPen(self._ink[hue])
            painter.drawText(body, _CENTER, str(block))
            painter.restore()
