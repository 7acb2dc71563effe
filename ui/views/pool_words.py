"""Text in the pool: ids, counts and tokens in cells that have room, and the card that tells a block's story."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPixmap
from PySide6.QtWidgets import QWidget

from engine.records import CACHED, USED
from ui.block_story import Story
from ui.paint.cells import Grid, Window
from ui.paint.labels import layer, metrics, paragraph, wrap, write
from ui.state import EngineState
from ui.theme import SEQUENCE_HUES as HUES
from ui.theme import Theme

INSIDE = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop
_BRIGHT = 0.6  # of a cell's fill, from which on its middle is bright
_PAD, _GAP = 10, 3  # px at text scale 1: around a card's lines, and between them
MOST = 2_000  # cells with text painted in one frame: a screen full of the smallest that have any


class CellWords:
    """Levels of detail by room: the id; below it fill and sharers; below that the tokens' text."""

    def __init__(self, theme: Theme):
        self._theme = theme
        self._font = theme.font("mono_small")
        metrics = QFontMetrics(self._font)
        self._digit, self._line = metrics.horizontalAdvance("0"), metrics.height()
        panel = theme.color("panel")
        self._on_full = [theme.ink_on(theme.sequence_color(hue)) for hue in range(HUES)]
        self._on_dim = theme.ink_on(panel)
        self._faint = theme.color("text_faint")

    def paint(
        self, painter: QPainter, state: EngineState, grid: Grid, window: Window, origin: QPoint,
        lit: Container[int] = (),
    ) -> None:  # fmt: skip
        """`lit`: the blocks of a selection, if there is one; words in all others stand back."""
        wide, tall = grid.width - grid.gutter, grid.height - grid.gutter
        digits = len(f"{max(0, grid.count - 1)}")
        if wide < (digits + 0.7) * self._digit or tall < self._line or window.rows * window.columns > MOST:
            return
        counts = tall >= 2 * self._line and wide >= 8.5 * self._digit
        tokens = tall >= 4 * self._line and wide >= 12 * self._digit
        indices = self._indices(state, grid, window) if tokens else {}
        painter.setFont(self._font)
        pad = max(1, (self._digit + 1) // 3)
        for row in range(window.top, window.bottom):
            for block in (grid.index(row, column) for column in range(window.left, window.right)):
                if block >= grid.count:
                    break
                x, y, _, _ = grid.body(block)
                box = QRect(x + origin.x() + pad, y + origin.y(), wide - 2 * pad, tall)
                painter.setPen(self._faint if lit and block not in lit else self._ink(state, block, counts))
                if not counts:
                    painter.drawText(box, Qt.AlignmentFlag.AlignCenter, str(block))
                    continue
                painter.drawText(box, INSIDE, f"{block}\n{self._count(state, block)}")
                if tokens and block in indices:
                    box.setTop(box.top() + 2 * self._line + pad)
                    self._tokens(painter, box, state, block, indices[block])

    def _ink(self, state: EngineState, block: int, at_top: bool) -> QColor:
        if state.blocks_state[block] != USED:
            return self._faint
        # where the words stand a cell is bright only from a certain fill on
        full = state.filled[block] >= (state.block_size - 1 if at_top else _BRIGHT * state.block_size)
        return self._on_full[int(state.owner[block]) % HUES] if full else self._on_dim

    @staticmethod
    def _count(state: EngineState, block: int) -> str:
        kind = state.blocks_state[block]
        if kind == USED:
            refs = int(state.refcount[block])
            return f"{int(state.filled[block])}/{state.block_size}" + (f" ×{refs}" if refs > 1 else "")
        return "cached" if kind == CACHED else "free"

    @staticmethod
    def _indices(state: EngineState, grid: Grid, window: Window) -> dict[int, tuple[int, int]]:
        """block → (sequence, logical index) of the visible blocks; few are visible when text is."""
        low, high = grid.span(window)
        found: dict[int, tuple[int, int]] = {}
        for seq in state.table_seqs:
            table = state.table(seq)
            for index in ((table >= low) & (table < high)).nonzero()[0].tolist():
                found.setdefault(int(table[index]), (seq, index))
        return found

    @staticmethod
    def _tokens(painter: QPainter, box: QRect, state: EngineState, block: int, where: tuple[int, int]) -> None:
        seq, index = where
        info = state.info(seq)
        if info is None:
            return
        low = index * state.block_size
        entry = state.prefixes.get(block)
        text = info.text_between(low, low + int(state.filled[block])) if entry is None else entry.text
        if text is None:
            text = "prompt" if low < info.prompt_tokens else ""
        shown = text.replace("\n", "⏎").strip()
        painter.drawText(box, INSIDE | Qt.TextFlag.TextWrapAnywhere | Qt.TextFlag.TextWordWrap, shown)


@dataclass(frozen=True, slots=True)
class Card:
    """A story laid out: its box, and its lines with their fonts, colours and heights."""

    box: QRect
    lines: list[tuple[str, QFont, QColor, int]]

    def paint(self, painter: QPainter, theme: Theme) -> None:
        box, pad, gap = self.box, theme.px(_PAD), theme.px(_GAP)
        painter.setPen(theme.pen("border"))
        painter.setBrush(theme.brush("raised"))
        painter.drawRect(box.adjusted(0, 0, -1, -1))
        y = box.top() + pad
        for text, font, colour, height in self.lines:
            spot = QRect(box.left() + pad, y, box.width() - 2 * pad, height)
            if height > metrics(font).lineSpacing():
                paragraph(painter, spot, text, font, colour)
            else:
                write(painter, spot, text, font, colour)
            y += height + gap

    def picture(self, widget: QWidget, theme: Theme) -> QPixmap:
        """The same, to be copied often."""
        picture = layer(widget, self.box.size())
        painter = QPainter(picture)
        painter.translate(-self.box.topLeft())
        self.paint(painter, theme)
        painter.end()
        return picture


def card(area: QRect, cell: QRect, story: Story, theme: Theme, widest: int = 0) -> Card:
    """The story in a box beside its cell, inside `area`; `widest`: its width in px, 0 for the usual one."""
    title, body, mono = theme.font("strong"), theme.font("small"), theme.font("mono_small")
    pad = theme.px(_PAD)
    most = min(area.width() - 2 * pad, widest - 2 * pad if widest else theme.px(330))
    wide = metrics(body).horizontalAdvance
    inner = max([metrics(title).horizontalAdvance(story.title), *(wide(line) for line in story.lines)])
    quote = f"“{story.text.strip()}”".replace("\n", "⏎") if story.text.strip() else ""
    if quote:
        inner = max(inner, min(widest or theme.px(240), metrics(mono).horizontalAdvance(quote) + 2))
    inner = min(most, inner + 2)
    lines = [(story.title, title, theme.color("text"))]
    lines += [(line, body, theme.color("text_dim")) for line in story.lines]
    if quote:
        tint = theme.sequence_color(story.seq) if story.seq is not None else theme.color("text")
        lines.insert(1 + story.head, (quote, mono, tint if theme.name == "dark" else theme.color("text")))
    laid = [(text, font, ink, len(wrap(text, font, inner)) * metrics(font).lineSpacing()) for text, font, ink in lines]
    tall = sum(height for *_, height in laid) + theme.px(_GAP) * (len(laid) - 1) + 2 * pad
    box = QRect(0, 0, inner + 2 * pad, tall)
    _settle(box, area, cell, theme.px(8))
    return Card(box, laid)


def _settle(box: QRect, area: QRect, cell: QRect, away: int) -> None:
    """Below and right of the cell; on the other side where there is no room."""
    right, below = cell.right() + away, cell.bottom() + away
    x = right if right + box.width() <= area.right() else cell.left() - away - box.width()
    y = below if below + box.height() <= area.bottom() else cell.top() - away - box.height()
    x = max(area.left(), min(x, area.right() - box.width()))
    y = max(area.top(), min(y, area.bottom() - box.height()))
    box.moveTo(x, y)
