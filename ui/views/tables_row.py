"""One row of the tables view: who, what it does, how far it is, and its block table in little cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numpy.typing import NDArray
from PySide6.QtCore import QPointF, QRect, QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPixmap, QStaticText

from engine.records import PREFILL
from ui import explain
from ui.paint.pictures import Pictures
from ui.sequences import SequenceInfo
from ui.state import EngineState
from ui.theme import SEQUENCE_HUES as HUES
from ui.theme import Theme
from ui.views.pool_shades import Shades

_CENTER = Qt.AlignmentFlag.AlignCenter
_MIDDLE = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
KEPT = 2_000  # shaped numbers


def doing(info: SequenceInfo) -> tuple[str, str]:
    """What a sequence does, in words, and the theme's token for them."""
    if info.status == "waiting":
        if info.preempted:
            return explain.preempted(info.lost, info.swapped), "warning"
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
    gap: int  # cells that the number of entries left out takes
    capacity: int  # cells between `table` and the right end


@dataclass(slots=True)
class Shown:
    """The part of a table that a row shows: cells low..high-1, then, if `last`, the number of
    entries left out and the last one."""

    low: int
    high: int
    last: bool


def shown_of(length: int, scroll: int, columns: Columns) -> Shown:
    """Which entries fit, from `scroll` on; the last one is always shown, it is the one that fills."""
    low = min(scroll, max(0, length - 1))
    if length - low <= columns.capacity:
        return Shown(low, length, False)
    return Shown(low, low + max(0, columns.capacity - columns.gap - 1), True)


class RowPainter:
    """Paints rows. Text is what costs, so labels and cells are painted once and copied until they change.

    Attributes:
        height: of a row, px. pictures: of labels and of stretches of tables.
    """

    def __init__(self, theme: Theme):
        self._theme = theme
        self._shades = Shades(theme)
        self.pictures: Pictures[QPixmap] = Pictures()
        self._numbers: dict[int, QStaticText] = {}
        self._mono, self._small = theme.font("mono_small"), theme.font("small")
        self._name = theme.font("mono")
        metrics = QFontMetrics(self._mono)
        self._digit = metrics.horizontalAdvance("0")
        self.height = max(metrics.height() + theme.px(7), theme.px(20))
        self._full = [QColor(int(c)) for c in self._shades.full]
        self._dim = [QColor(int(c)) for c in self._shades.barred[1 + HUES : 1 + 2 * HUES]]
        self._part = [QColor(int(c)) for c in self._shades.part]
        self._hollow = [QColor(int(c)) for c in self._shades.rest]
        self._ring = [QColor(int(c)) for c in self._shades.ring]
        self._ink = [theme.ink_on(colour) for colour in self._full]
        self._laid: tuple[tuple[int, int, int], Columns] = ((0, 0, 0), Columns(0, 0, 0, 1, 1, 0))
        self._track = theme.color("free")
        self._ink_dim = theme.ink_on(theme.color("panel"))

    def columns(self, width: int, num_blocks: int, longest_seq: int) -> Columns:
        """For rows that wide, block numbers and sequence numbers up to those."""
        key = (width, len(str(num_blocks)), len(str(longest_seq)))
        if key != self._laid[0]:
            self._laid = (key, self._columns(width, num_blocks, longest_seq))
        return self._laid[1]

    def _columns(self, width: int, num_blocks: int, longest_seq: int) -> Columns:
        theme = self._theme
        name = theme.px(16)
        does = name + QFontMetrics(self._name).horizontalAdvance(f"seq {max(999, longest_seq)}") + theme.px(12)
        room = QFontMetrics(self._small).horizontalAdvance("preempted ↺ 8,888 tok")
        compact = QFontMetrics(self._small).horizontalAdvance("prefill 888/888")
        table = does + (room if width > theme.px(420) else compact) + theme.px(10)
        cell = self._digit * len(str(max(99, num_blocks - 1))) + theme.px(6)
        gap = -(-QFontMetrics(self._mono).horizontalAdvance("+8,888") // cell)
        return Columns(name, does, table, cell, gap, max(0, (width - table - theme.px(6)) // cell))

    def paint(
        self, painter: QPainter, box: QRect, columns: Columns, state: EngineState, info: SequenceInfo, scroll: int,
        surface: QColor,
    ) -> None:  # fmt: skip
        """A row on a background of colour `surface`."""
        words, token = doing(info)
        key = ("label", info.seq, words, token, columns.table, surface.rgb())
        label = self._picture(key, QSize(columns.table, box.height()), surface, self._label, columns, info)
        painter.drawPixmap(self._theme.px(4), box.top(), label)
        room = columns.table - columns.doing - self._theme.px(8)
        self._progress(painter, columns.doing, room, box, info)
        table = state.table(info.seq)
        if len(table) and columns.capacity:
            self._table(painter, box, columns, state, table, scroll, surface)

    def _label(self, painter: QPainter, columns: Columns, info: SequenceInfo) -> None:
        """Colour key, name and what it does; the picture begins 4 px into the row."""
        theme, tall, left = self._theme, self.height, self._theme.px(4)
        running, (words, token) = info.status == "running", doing(info)
        key = QRect(0, theme.px(3), theme.px(6), tall - theme.px(6))
        lit = running or info.preempted
        painter.fillRect(key, self._full[info.seq % HUES] if lit else theme.color("border"))
        painter.setFont(self._name)
        painter.setPen(theme.color("text" if running else "text_dim"))
        name = QRect(columns.name - left, 0, columns.doing - columns.name, tall)
        painter.drawText(name, _MIDDLE, f"seq {info.seq}")
        painter.setFont(self._small)
        painter.setPen(theme.color(token))
        room = QRect(columns.doing - left, 0, columns.table - columns.doing - theme.px(8), tall - theme.px(3))
        words = QFontMetrics(self._small).elidedText(words, Qt.TextElideMode.ElideRight, room.width())
        painter.drawText(room, _MIDDLE, words)

    def _progress(self, painter: QPainter, left: int, room: int, box: QRect, info: SequenceInfo) -> None:
        """A thin line: tokens computed and known on the way to the most that it may come to hold."""
        most = info.limit or info.prompt_tokens + info.max_tokens
        if not most:
            return
        hue, y, tall = info.seq % HUES, box.bottom() - self._theme.px(3), max(2, self._theme.px(2))
        known, computed = (round(room * min(1.0, tokens / most)) for tokens in (info.known, info.computed))
        painter.fillRect(left + known, y, room - known, tall, self._track)
        painter.fillRect(left + computed, y, known - computed, tall, self._dim[hue])
        painter.fillRect(left, y, computed, tall, self._full[hue])

    def _table(
        self, painter: QPainter, box: QRect, columns: Columns, state: EngineState, table: NDArray, scroll: int,
        surface: QColor,
    ) -> None:  # fmt: skip
        part = shown_of(len(table), scroll, columns)
        # full cells come as one picture; the last one of the table fills from step to step
        stop = part.high - 1 if not part.last else part.high
        x, cell = columns.table, columns.cell
        if stop > part.low:
            blocks = table[part.low : stop]
            key = (cell, surface.rgb(), blocks.tobytes(), state.filled[blocks].tobytes(),
                   state.refcount[blocks].tobytes(), state.owner[blocks].tobytes())  # fmt: skip
            size = QSize(cell * len(blocks), self.height)
            painter.drawPixmap(x, box.top(), self._picture(key, size, surface, self._strip, state, blocks, cell))
        x += (stop - part.low) * cell
        if part.last:
            rest = f"+{len(table) - part.high - 1:,}"
            size = QSize(columns.gap * cell, self.height)
            key = ("rest", cell, surface.rgb(), rest)
            painter.drawPixmap(x, box.top(), self._picture(key, size, surface, self._rest, rest, size))
            x += size.width()
        self._cell(painter, x, box.top(), cell, state, int(table[-1]))

    def _picture(self, key: tuple, size: QSize, surface: QColor, draw: Callable[..., None], *parts) -> QPixmap:
        """What `draw(painter, *parts)` paints, from before where `key` says that it is the same."""
        return self.pictures.of(key, lambda: _painted(size, surface, draw, *parts))

    def _rest(self, painter: QPainter, text: str, size: QSize) -> None:
        painter.setFont(self._mono)
        painter.setPen(self._theme.color("text_faint"))
        painter.drawText(QRect(0, 0, size.width(), size.height()), _CENTER, text)

    def _strip(self, painter: QPainter, state: EngineState, blocks: NDArray, cell: int) -> None:
        for place, block in enumerate(blocks.tolist()):
            self._cell(painter, place * cell, 0, cell, state, block)

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
        painter.fillRect(body, self._hollow[hue])
        full = share == 1.0
        if level:
            painter.fillRect(below, self._full[hue] if full else self._part[hue])
        painter.setPen(self._ink[hue] if full else self._ink_dim)
        self._number(painter, body, block)

    def _number(self, painter: QPainter, body: QRect, block: int) -> None:
        """The block's id in the middle; shaped once, for shaping is most of what text costs."""
        found = self._numbers.get(block)
        if found is None:
            if len(self._numbers) >= KEPT:
                self._numbers.clear()
            text = QStaticText(str(block))
            text.setTextFormat(Qt.TextFormat.PlainText)
            text.prepare(font=self._mono)
            found = self._numbers[block] = text
        size = found.size()
        x, y = (body.width() - size.width()) / 2, (body.height() - size.height()) / 2
        painter.drawStaticText(QPointF(round(body.left() + x), round(body.top() + y)), found)


def _painted(size: QSize, surface: QColor, draw: Callable[..., None], *parts) -> QPixmap:
    picture = QPixmap(size)
    picture.fill(surface)  # opaque: copying costs no blending
    painter = QPainter(picture)
    draw(painter, *parts)
    painter.end()
    return picture
