"""The card that says whether drafting pays, and why: a headline, whole clauses as far as they fit, a badge; above it,
loudly, what is wrong with the draft or that its acceptance is simulated."""

from __future__ import annotations

from PySide6.QtCore import QRect
from PySide6.QtGui import QColor, QPainter

from ui import draft_words
from ui.paint.labels import badge, paragraph, wrap, write
from ui.payoff import Payoff
from ui.theme import Theme
from ui.views.painted import PaintedView
from ui.views.speculation_shown import Said


def band_height(view: PaintedView, width: int, said: Said) -> int:
    """Pixels of the band for what must be said loudly, 0 where nothing must."""
    if said.loud is None:
        return 0
    lines = len(wrap(_loud(said), view.theme.font("strong"), width - view.theme.px(20)))
    return min(2, lines) * view.line("strong") + 2 * view.theme.px(5)


def draw_band(view: PaintedView, painter: QPainter, box: QRect, said: Said) -> None:
    """A filled band: seen from the last row, whatever it says."""
    assert said.loud is not None
    theme = view.theme
    color = theme.color(said.loud[2])
    painter.fillRect(box, color)
    inside = box.adjusted(theme.px(10), theme.px(5), -theme.px(10), 0)
    paragraph(painter, inside, _loud(said), theme.font("strong"), theme.ink_on(color))


def _loud(said: Said) -> str:
    assert said.loud is not None
    return f"⚠ {said.loud[0]}: {said.loud[1]}"


def draw(
    view: PaintedView, painter: QPainter, inner: QRect, figures: Payoff, said: Said, top: bool, spare: int
) -> QRect:
    """Drawn at the bottom of `inner` or at its top, `spare` pixels kept free at its right; returns its box."""
    theme, line = view.theme, view.line()
    role = "headline" if top else "title"
    head = view.line(role)
    small, title = theme.font("body" if top else "small"), theme.font(role)
    line = view.line("body" if top else "small")
    pad = theme.px(10)
    room = inner.width() - 2 * pad - spare
    wide = view.advance(said.headline, role) + theme.px(14)
    tag = view.source_of(figures.plain_from) if figures.ratio is not None and said.tone in ("", "simulated") else ""
    tag_width = view.advance(tag) + line + theme.px(8) if tag else 0
    beside = room - wide - tag_width >= theme.px(220)
    text_width = room - wide - tag_width if beside else room
    most = 3 if inner.height() > theme.px(200) else 2 if inner.height() > theme.px(120) else 1
    told = said.because
    while len(wrap(told, small, text_width)) > most and "; " in told:
        told = told.rpartition("; ")[0]
    lines = len(wrap(told, small, text_width))
    if lines > most:
        lines = 0 if "; " in said.because else most
    if inner.height() < theme.px(90) and not beside:
        lines = 0
    height = (max(head, lines * line) if beside else head + lines * line) + 2 * theme.px(7)
    card = QRect(inner.left(), inner.top() if top else inner.bottom() - height + 1, inner.width(), height)
    color = tone(theme, figures, said)
    painter.setPen(theme.pen("border"))
    painter.setBrush(theme.brush("raised"))
    painter.drawRoundedRect(card.adjusted(0, 0, -1, -1), theme.px(6), theme.px(6))
    painter.fillRect(QRect(card.left(), card.top() + theme.px(6), theme.px(3), height - theme.px(12)), color)
    above = card.top() + ((height - head) // 2 if beside or not lines else theme.px(6))
    first = QRect(card.left() + pad, above, min(wide, room), head)
    write(painter, first, said.headline, title, color)
    if tag and (beside or room - wide > tag_width):
        right = card.right() - pad + 1 - spare
        tall = view.line()
        badge(painter, right, first.center().y() - tall // 2, tall, tag, theme.font("small"), theme.color(tag))
    if lines:
        at = card.top() + (height - lines * line) // 2 if beside else first.bottom() + 1
        left = first.right() if beside else card.left() + pad
        paragraph(painter, QRect(left, at, text_width, lines * line + 1), told, small, theme.color("text_dim"))
    return card


def tone(theme: Theme, figures: Payoff, said: Said) -> QColor:
    """Green where it pays, magenta where it costs, plain where nothing is known or neither; a what-if is neither."""
    if said.tone:
        return theme.color(said.tone)
    if figures.ratio is None:
        return theme.color("text_dim")
    if abs(figures.ratio - 1) < draft_words.EVEN:
        return theme.color("text")
    return theme.color("accepted" if figures.ratio > 1 else "rejected")
