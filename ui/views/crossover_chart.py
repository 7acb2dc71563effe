"""The crossover chart: speed-up by γ (to the right) and batch (upwards), as far as it was measured.

More than 1 is a filled cell with ▲, less a hollow one with ▼, blank what nobody has tried; the present one has an
outline."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRect, Qt
from PySide6.QtGui import QColor, QPainter, QPen, QPolygonF

from engine.config import MAX_DRAFT
from ui.crossover import ADAPTIVE, LEAST, Cell, bucket
from ui.draft_words import EVEN
from ui.explain import count
from ui.paint.labels import CENTER, RIGHT, badge, write
from ui.views.painted import PaintedView

Hits = list[tuple[QRect, str]]
Cells = dict[tuple[int, int], Cell]
LEAST_COLUMNS, LEAST_ROWS = 8, 6  # γ 1..8, batch 1..32: what is worth trying first


def draw(view: PaintedView, painter: QPainter, area: QRect, cells: Cells, gamma: int, batch: float) -> Hits:
    """`gamma`: of the present moment, ADAPTIVE where it looks after itself."""
    theme, px, line = view.theme, view.theme.px, view.line()
    small, dim = theme.font("small"), theme.color("text_dim")
    here = (gamma, bucket(batch)) if gamma and batch else None
    columns, rows = axes(cells, here)
    head = QRect(area.left(), area.top(), area.width(), line)
    tag = view.source_of("measured")
    used = badge(painter, head.right() + 1, head.top(), line, tag, small, theme.color(tag)) + px(8)
    title = "speed-up by γ and batch"
    write(painter, head.adjusted(0, 0, -used, 0), title, small, dim)
    label = view.advance("batch 999") + px(6) if area.width() >= px(330) else view.advance("999") + px(6)
    grid = QRect(area.left() + label, head.bottom() + 1 + px(4), area.width() - label, 0)
    key = line + px(8) if area.height() >= (len(rows) + 5) * line else 0
    grid.setBottom(area.bottom() - line - px(2) - key)
    high = min(grid.height() // len(rows), px(64))
    wide = grid.width() // len(columns)
    if high < line or wide < view.advance("1.0"):
        return []
    top = grid.top()
    hits: Hits = []
    for row, size in enumerate(rows):  # the largest batch on top
        y = top + row * high
        text = f"batch {size}" if area.width() >= px(330) else str(size)
        write(painter, QRect(area.left(), y, label - px(6), high), text, small, dim, RIGHT)
        for place, wanted in enumerate(columns):
            box = QRect(grid.left() + place * wide, y, wide - px(2), high - px(2))
            cell = cells.get((wanted, size))
            _draw_cell(view, painter, box, cell)
            hits.append((box, told(wanted, size, cell)))
            if (wanted, size) == here:
                painter.setPen(theme.pen("selection", px(2)))
                painter.setBrush(Qt.BrushStyle.NoBrush)
                painter.drawRect(box)
    bottom = top + high * len(rows)
    for place, wanted in enumerate(columns):
        text = "auto" if wanted == ADAPTIVE else f"γ {wanted}" if wide >= view.advance("γ 16") else str(wanted)
        write(painter, QRect(grid.left() + place * wide, bottom, wide - px(2), line), text, small, dim, CENTER)
    if key:
        words = "▲ pays   ▼ costs   – even   blank: not tried"
        if not any(cell.speedup for cell in cells.values()):
            words = "blank so far: press Measure, move γ or batch"
        row = QRect(grid.left(), bottom + line + px(8), grid.width(), line)
        write(painter, row, words, small, theme.color("text_faint"))
    return hits


def axes(cells: Cells, here: tuple[int, int] | None) -> tuple[list[int], list[int]]:
    """Columns (γ, then ADAPTIVE where it was seen) and rows (batch, the largest first)."""
    seen = [*cells, *([here] if here else [])]
    lengths = max([LEAST_COLUMNS, *(gamma for gamma, _ in seen)])
    columns = list(range(1, min(lengths, MAX_DRAFT) + 1))
    if any(gamma == ADAPTIVE for gamma, _ in seen):
        columns.append(ADAPTIVE)
    largest = max([1 << (LEAST_ROWS - 1), *(size for _, size in seen)])
    return columns, [1 << power for power in range(largest.bit_length() - 1, -1, -1)]


def _draw_cell(view: PaintedView, painter: QPainter, box: QRect, cell: Cell | None) -> None:
    theme = view.theme
    if cell is None or cell.speedup is None:
        painter.fillRect(box, theme.color("free"))
        if cell is not None:  # tried, not yet to be told
            write(painter, box, "…", theme.font("small"), theme.color("text_faint"), CENTER)
        return
    gain = cell.speedup
    even = abs(gain - 1) < EVEN
    if even:
        fill = theme.color("raised")
    elif gain > 1:  # deeper as it gains more, up to a doubling
        fill = theme.mix("accepted", 0.35 + 0.65 * min(1.0, gain - 1))
    else:
        fill = theme.mix("rejected", 0.10 + 0.25 * min(1.0, 2 * (1 - gain)))
    painter.fillRect(box, fill)
    if not even and gain < 1:
        painter.setPen(QPen(theme.color("rejected"), max(1, theme.px(1.5))))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRect(box.adjusted(0, 0, -1, -1))
    ink = theme.ink_on(fill)
    line = view.line("strong")
    spot = QRect(box)
    if box.height() >= line + theme.px(14):  # the sign above the number
        sign = QRect(box.left(), box.center().y() - (line + theme.px(8)) // 2, box.width(), theme.px(7))
        spot = QRect(box.left(), sign.bottom() + 1, box.width(), line + theme.px(2))
        _draw_sign(painter, sign, theme.px(7), 0 if even else 1 if gain > 1 else -1, ink)
    number = f"{gain:.2f}" if gain < 9.995 else f"{gain:.1f}"
    for text, font in ((number, "strong"), (number, "small"), (f"{gain:.1f}", "small")):
        if view.advance(text, font) <= spot.width() - 4:
            write(painter, spot, text, theme.font(font), ink, CENTER)
            return


def _draw_sign(painter: QPainter, box: QRect, size: int, way: int, ink: QColor) -> None:
    """A triangle upwards or downwards, a bar where neither."""
    middle = box.center().x() + 0.5
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(ink)
    if not way:
        painter.drawRect(QRect(round(middle) - size // 2, box.center().y(), size, max(2, size // 4)))
        return
    base, point = (box.bottom() + 1, box.top()) if way > 0 else (box.top(), box.bottom() + 1)
    wing = size * 0.6
    corners = (QPointF(middle - wing, base), QPointF(middle + wing, base), QPointF(middle, point))
    painter.drawPolygon(QPolygonF(corners))


def told(gamma: int, size: int, cell: Cell | None) -> str:
    where = f"{'adaptive γ' if gamma == ADAPTIVE else f'γ {gamma}'} at a batch of about {size}"
    if cell is None:
        return f"<p>{where}: not tried yet. Set it, and let {count(size, 'sequence')} decode.</p>"
    if cell.speedup is None:
        return (
            f"<p>{where}: {count(cell.steps, 'step')} so far. It takes {LEAST} here and {LEAST} without drafts at the "
            "same batch; Measure makes some.</p>"
        )
    return (
        f"<p>{where}: <b>{cell.speedup:.2f}×</b> the tokens of plain steps</p>"
        f"<p>{count(cell.steps, 'step')}, compared with {cell.plain:,} without drafts at the same batches</p>"
    )
