"""Memory against context length, a curve a variant, with the card's limit: where they cross is the longest context.

The context is on a logarithmic axis, bytes on an even one from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

from PySide6.QtCore import QLineF, QPointF, QRect, Qt
from PySide6.QtGui import QPainter, QPainterPath, QPen, QPolygonF

from engine.capacity import Factors
from engine.formulas import GIB, KIB, MIB
from ui import explain
from ui.calculator import Card, Variant, contexts, levels, short, ticks
from ui.paint.labels import CENTER, LEFT, RIGHT, advance, metrics, write
from ui.theme import Theme

_OTHERS = ("accent", "rest", "text_dim")  # curves beside the one in force, which has the colour of the cache itself
_POINTS = 160  # of a curve


def colours(variants: Sequence[Variant]) -> list[str]:
    """A token for each curve."""
    others = iter(_OTHERS)
    return ["kv_used" if variant.own else next(others) for variant in variants]


def draw(painter: QPainter, area: QRect, theme: Theme, title: str, variants: Sequence[Variant], card: Card) -> None:
    small, line = theme.font("small"), metrics(theme.font("small")).height()
    head = QRect(area.left(), area.top(), area.width(), line)
    used = write(painter, head, title, theme.font("strong"), theme.color("text"))
    write(painter, head.adjusted(used + theme.px(10), 0, 0, 0), "weights + KV against context", small,
          theme.color("text_faint"))  # fmt: skip
    keys = QRect(area.left(), head.bottom() + theme.px(6), area.width(), 2 * line)
    _keys(painter, keys, theme, variants, card)
    own = next((variant for variant in variants if variant.own), variants[0]).factors
    limit = own.usable(card.bytes)
    unit, word = next((u, w) for u, w in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")) if limit >= 1.5 * u or u == KIB)
    tag = f"{limit / unit:,.1f} {word}"
    gutter = max(advance(small, tag), advance(small, "usable")) + theme.px(8)
    top = max(1.28 * limit, 1.12 * (own.weights + own.kv), 1.0)
    axis = advance(small, f"{top / unit:,.0f}") + theme.px(8)
    plot = QRect(area.left() + axis, keys.bottom() + theme.px(12), area.width() - axis - gutter, 0)
    plot.setBottom(area.bottom() - 2 * line)
    if plot.height() < 2 * line or plot.width() < theme.px(80):
        return
    low, high = contexts(own, card.bytes)
    scale = _Scale(plot, low, high, top)
    _ground(painter, theme, scale, own)
    _axes(painter, theme, scale, top, unit, word)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setClipRect(plot.adjusted(0, 0, 1, 1))
    tokens = colours(variants)
    _cache(painter, theme, scale, own)
    for variant, token in zip(variants, tokens, strict=True):
        _curve(painter, theme, scale, variant, token)
    painter.setClipping(False)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
    y = scale.y(limit)
    painter.setPen(theme.pen("limit"))
    painter.drawLine(QLineF(plot.left(), y, plot.right(), y))
    spot = QRect(plot.right() + theme.px(6), round(y) - line, gutter, 2 * line)
    write(painter, QRect(spot.left(), spot.top(), gutter, line), tag, small, theme.color("limit"))
    write(painter, QRect(spot.left(), spot.top() + line, gutter, line), "usable", small, theme.color("text_faint"))
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    for variant, token in zip(variants, tokens, strict=True):
        _crossing(painter, theme, scale, variant, token, limit, card)
    _here(painter, theme, scale, own)


class _Scale:
    def __init__(self, plot: QRect, low: int, high: int, top: float):
        self.plot, self.low, self.high, self.top = plot, low, high, top

    def x(self, tokens: float) -> float:
        share = log2(tokens / self.low) / log2(self.high / self.low)
        return self.plot.left() + share * (self.plot.width() - 1)

    def y(self, count: float) -> float:
        return self.plot.bottom() - min(1.5, count / self.top) * (self.plot.height() - 1)

    def tokens(self, share: float) -> float:
        return self.low * (self.high / self.low) ** share


def _keys(painter: QPainter, area: QRect, theme: Theme, variants: Sequence[Variant], card: Card) -> None:
    """Name and longest context of each, side by side in columns; the one in force is bright."""
    small, line = theme.font("small"), metrics(theme.font("small")).height()
    column = area.width() // len(variants)
    for index, (variant, token) in enumerate(zip(variants, colours(variants), strict=True)):
        left, room = area.left() + index * column, column - theme.px(8)
        bar = QRect(left, area.top() + theme.px(1), theme.px(3), 2 * line - theme.px(2))
        painter.fillRect(bar, theme.color(token))
        ink = theme.color("text" if variant.own else "text_dim")
        text = QRect(left + theme.px(9), area.top(), room - theme.px(9), line)
        used = write(painter, text, variant.name, theme.font("strong") if variant.own else small, ink)
        note = text.adjusted(used + theme.px(6), 0, 0, 0)
        if note.width() >= advance(small, variant.note):
            write(painter, note, variant.note, small, theme.color("text_faint"))
        most = variant.factors.longest_context(card.bytes)
        words = f"up to {most:,} tokens" if most else "does not fit"
        if advance(small, words) > text.width():
            words = f"≤ {most:,}" if most else "too large"
        write(painter, text.translated(0, line), words, small, ink)


def _ground(painter: QPainter, theme: Theme, scale: _Scale, own: Factors) -> None:
    """Weights as the floor that no context takes away."""
    plot = scale.plot
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
    painter.fillRect(plot, theme.color("free"))
    y = max(float(plot.top()), scale.y(own.weights))
    floor = QRect(plot.left(), round(y), plot.width(), plot.bottom() + 1 - round(y))
    painter.fillRect(floor, theme.mix("weights", 0.55))
    line = metrics(theme.font("small")).height()
    if floor.height() >= line + theme.px(4):
        words = f"weights {explain.size(own.weights)}"
        spot = QRect(floor.left() + theme.px(8), floor.top() + theme.px(3), plot.width() - theme.px(16), line)
        write(painter, spot, words, theme.font("small"), theme.ink_on(theme.mix("weights", 0.55)))


def _axes(painter: QPainter, theme: Theme, scale: _Scale, top: float, unit: int, word: str) -> None:
    plot, small = scale.plot, theme.font("small")
    line, faint = metrics(small).height(), theme.color("text_faint")
    painter.setPen(theme.pen("border"))
    for level in levels(top / unit):
        y = round(scale.y(level * unit))
        painter.drawLine(plot.left() - theme.px(3), y, plot.left(), y)
        spot = QRect(plot.left() - theme.px(80), y - line // 2, theme.px(74), line)
        write(painter, spot, f"{level:,g}" if level < 1e4 else f"{level:,.0f}", small, faint, RIGHT)
        painter.setPen(theme.pen("border"))
    below = plot.bottom() + theme.px(3)
    for tokens in ticks(scale.low, scale.high, plot.width() // theme.px(64)):
        x = round(scale.x(tokens))
        painter.drawLine(x, plot.bottom() + 1, x, plot.bottom() + theme.px(3))
        wide = advance(small, short(tokens)) + 4
        left = max(plot.left(), min(x - wide // 2, plot.right() - wide))
        write(painter, QRect(left, below, wide, line), short(tokens), small, faint, CENTER)
        painter.setPen(theme.pen("border"))
    write(painter, QRect(plot.left(), below + line - theme.px(2), plot.width(), line), f"{word} over tokens of context",
          small, faint, LEFT)  # fmt: skip


def _points(scale: _Scale, factors: Factors) -> list[QPointF]:
    """Weights and cache over the span of contexts."""
    contexts = [scale.tokens(step / _POINTS) for step in range(_POINTS + 1)]
    return [
        QPointF(scale.x(s), scale.y(factors.weights + factors.kv_per_token * s * factors.batch)) for s in contexts
    ]


def _cache(painter: QPainter, theme: Theme, scale: _Scale, own: Factors) -> None:
    """What the cache adds to the weights, under the curve in force."""
    points, floor = _points(scale, own), scale.y(own.weights)
    area = QPainterPath(QPointF(points[0].x(), floor))
    for point in points:
        area.lineTo(point)
    area.lineTo(points[-1].x(), floor)
    painter.fillPath(area, theme.mix("kv_used", 0.20, "free"))


def _curve(painter: QPainter, theme: Theme, scale: _Scale, variant: Variant, token: str) -> None:
    painter.setBrush(Qt.BrushStyle.NoBrush)
    pen = QPen(theme.color(token), theme.px(3 if variant.own else 2))
    if not variant.own:
        pen.setDashPattern([3, 2])
    pen.setCapStyle(Qt.PenCapStyle.FlatCap)
    painter.setPen(pen)
    painter.drawPolyline(QPolygonF(_points(scale, variant.factors)))


def _crossing(
    painter: QPainter, theme: Theme, scale: _Scale, variant: Variant, token: str, limit: float, card: Card
) -> None:
    """A dot where the curve reaches the limit."""
    most = variant.factors.longest_context(card.bytes)
    if scale.low <= most <= scale.high:
        radius = theme.px(5 if variant.own else 4)
        painter.setPen(QPen(theme.color("panel"), 2))
        painter.setBrush(theme.color(token))
        painter.drawEllipse(QPointF(scale.x(most), scale.y(limit)), radius, radius)


def _here(painter: QPainter, theme: Theme, scale: _Scale, own: Factors) -> None:
    """The context and batch of the formula, on its own curve."""
    used = own.weights + own.kv
    x, y, plot = scale.x(own.context), max(float(scale.plot.top()), scale.y(used)), scale.plot
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
    painter.setPen(theme.pen("text_dim"))
    floor = min(float(plot.bottom()), max(y, scale.y(own.weights)))  # over the weights stand words
    painter.drawLine(QLineF(x, y, x, floor))
    painter.drawLine(QLineF(x, plot.bottom() - theme.px(6), x, plot.bottom()))
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(QPen(theme.color("panel"), 2))
    painter.setBrush(theme.color("selection"))
    painter.drawEllipse(QPointF(x, y), theme.px(4), theme.px(4))
