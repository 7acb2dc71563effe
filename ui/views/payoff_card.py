"""The card that says whether drafting pays, and why: a headline, whole clauses as far as they fit, a badge."""

from __future__ import annotations

from PySide6.QtCore import QRect
from PySide6.QtGui import QColor, QPainter

from ui import explain
from ui.paint.labels import badge, paragraph, wrap, write
from ui.payoff import Payoff
from ui.theme import Theme
from ui.views.painted import PaintedView


def draw(view: PaintedView, painter: QPainter, inner: QRect, figures: Payoff) -> QRect:
    """Drawn at the bottom of `inner`; returns its box."""
    theme, line, head = view.theme, view.line(), view.line("title")
    headline, because = explain.payoff(figures)
    small, title = theme.font("small"), theme.font("title")
    pad = theme.px(10)
    room = inner.width() - 2 * pad
    wide = view.advance(headline, "title") + theme.px(14)
    tag = view.source_of(figures.plain_from) if figures.ratio is not None else ""
    tag_width = view.advance(tag) + line + theme.px(8) if tag else 0
    beside = room - wide - tag_width >= theme.px(220)
    text_width = room - wide - tag_width if beside else room
    most = 3 if inner.height() > theme.px(200) else 2 if inner.height() > theme.px(120) else 1
    told = because
    while len(wrap(told, small, text_width)) > most and "; " in told:
        told = told.rpartition("; ")[0]
    lines = len(wrap(told, small, text_width))
    if lines > most:
        lines = 0 if "; " in because else most
    if inner.height() < theme.px(90) and not beside:
        lines = 0
    height = (max(head, lines * line) if beside else head + lines * line) + 2 * theme.px(7)
    card = QRect(inner.left(), inner.bottom() - height + 1, inner.width(), height)
    color = tone(theme, figures)
    painter.setPen(theme.pen("border"))
    painter.setBrush(theme.brush("raised"))
    painter.drawRoundedRect(card.adjusted(0, 0, -1, -1), theme.px(6), theme.px(6))
    painter.fillRect(QRect(card.left(), card.top() + theme.px(6), theme.px(3), height - theme.px(12)), color)
    top = card.top() + ((height - head) // 2 if beside or not lines else theme.px(6))
    first = QRect(card.left() + pad, top, min(wide, room), head)
    write(painter, first, headline, title, color)
    if tag and (beside or room - wide > tag_width):
        right = card.right() - pad + 1
        badge(painter, right, first.center().y() - line // 2, line, tag, small, theme.color(tag))
    if lines:
        at = card.top() + (height - lines * line) // 2 if beside else first.bottom() + 1
        left = first.right() if beside else card.left() + pad
        paragraph(painter, QRect(left, at, text_width, lines * line + 1), told, small, theme.color("text_dim"))
    return card


def tone(theme: Theme, figures: Payoff) -> QColor:
    """Green where it pays, magenta where it costs, plain where nothing is known or neither."""
    if figures.ratio is None:
        return theme.color("text_dim")
    if abs(figures.ratio - 1) < explain.EVEN:
        return theme.color("text")
    return theme.color("accepted" if figures.ratio > 1 else "rejected")
