"""Where time goes, in ms per emitted token: drafting, verifying, work on drafts that were rejected, the rest; and
below it what a token takes without drafts, on the same scale. No colour is needed to read it: parts carry their
numbers, and rejected work is hatched."""

from __future__ import annotations

from PySide6.QtCore import QLineF, QRect
from PySide6.QtGui import QColor, QPainter, QPen

from ui import explain
from ui.paint import stacked_bar
from ui.paint.labels import RIGHT, badge, write
from ui.payoff import Payoff
from ui.views.painted import PaintedView

Hits = list[tuple[QRect, str]]
NAMES = ("draft", "verify", "rejected work", "other")
COLORS = ("accent", "weights", "rejected", "slack")
MEANT = (
    "proposing tokens",
    "the target's pass and the verification, as far as its tokens came out",
    "the part of both that was spent on tokens rejected or discarded, by their share of the pass",
    "scheduling, block tables, copies",
)


def height(view: PaintedView, full: bool) -> int:
    """Pixels; without `full`, of the bar of drafting steps alone."""
    px, line = view.theme.px, view.line()
    bar = px(16)
    return line + px(2) + bar + (bar + px(4) + 2 * line + px(6) if full else 0)


def draw(view: PaintedView, painter: QPainter, area: QRect, figures: Payoff, full: bool) -> Hits:
    """A token's time by what it goes to, with `full` beside that of a token without drafts; where what is, and what to
    say of it."""
    costs = figures.costs
    if costs is None:
        return []
    theme, px, line = view.theme, view.theme.px, view.line()
    small, dim = theme.font("small"), theme.color("text_dim")
    parts = [costs.draft, costs.verify, costs.rejected, costs.other]
    plain = figures.plain / figures.batch if figures.plain and figures.batch else 0.0
    head = QRect(area.left(), area.top(), area.width(), line)
    used = badge(painter, head.right() + 1, head.top(), line, view.source_of("derived"), small,
                 theme.color(view.source_of("derived"))) if full else 0  # fmt: skip
    title = "time per emitted token"
    write(painter, head.adjusted(0, 0, -used, 0), title, small, dim)
    scale = max(costs.total, plain)
    number = max(view.advance(_ms(value), "strong") for value in (costs.total, plain)) + px(8)
    name = view.advance("without drafts") + px(8) if full and area.width() >= px(300) else 0
    tall, y = px(16), head.bottom() + 1 + px(2)
    room = area.width() - name - number
    hits: Hits = []
    bar = QRect(area.left() + name, y, max(1, round(room * costs.total / scale)), tall)
    boxes = stacked_bar.draw(painter, bar, parts, [theme.color(token) for token in COLORS], theme.color("panel"))
    _hatch(painter, boxes[2], theme.color("panel"), px(5))
    for box, value, word, meant in zip(boxes, parts, NAMES, MEANT, strict=True):
        hits.append((box, f"<p><b>{word}</b> {_ms(value)} per emitted token</p><p>{meant}</p>"))
    rows = [("with drafts", y, costs.total)]
    if full:
        below = y + tall + px(4)
        if plain:
            bar = QRect(area.left() + name, below, max(1, round(room * plain / scale)), tall)
            painter.fillRect(bar, theme.color("weights"))
            hits.append((bar, f"<p><b>without drafts</b> {_ms(plain)}: a plain step over its batch</p>"))
            rows.append(("without drafts", below, plain))
        _legend(view, painter, QRect(area.left(), below + tall + px(4), area.width(), 2 * line + px(2)), parts)
    for word, top, value in rows:
        row = QRect(area.left(), top, area.width(), tall)
        if name:
            write(painter, row, word, small, dim)
        write(painter, row, _ms(value), theme.font("strong"), theme.color("text"), RIGHT)
    return hits


def _legend(view: PaintedView, painter: QPainter, area: QRect, parts: list[float]) -> None:
    """Swatch, name and number of each part; over two lines where one is too short."""
    theme, px, line = view.theme, view.theme.px, view.line()
    small, swatch = theme.font("small"), px(10)
    x, y = area.left(), area.top()
    for word, value, token in zip(NAMES, parts, COLORS, strict=True):
        text = f"{word} {_ms(value)}"
        wide = swatch + px(5) + view.advance(text) + px(14)
        if x + wide - px(14) > area.right() + 1 and x > area.left():
            x, y = area.left(), y + line + px(2)
        if y + line > area.bottom() + 1 + px(2):
            return
        box = QRect(x, y + (line - swatch) // 2, swatch, swatch)
        painter.fillRect(box, theme.color(token))
        if word == "rejected work":
            _hatch(painter, box, theme.color("panel"), px(5))
        write(painter, QRect(x + swatch + px(5), y, area.right() - x - swatch, line), text, small, theme.color("text"))
        x += wide


def _hatch(painter: QPainter, box: QRect, color: QColor, pitch: int) -> None:
    if box.width() < 3:
        return
    painter.save()
    painter.setClipRect(box)
    painter.setPen(QPen(color, 1.5))
    painter.drawLines([
        QLineF(x, box.bottom() + 1, x + box.height(), box.top())
        for x in range(box.left() - box.height(), box.right(), pitch)
    ])
    painter.restore()


def _ms(ns: float) -> str:
    return explain.duration(ns / 1e9)
