"""Draws as a needle on a line from 0 to 1: left of the odds it accepts, or it falls on the token whose part it hits."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtGui import QPainter, QPen, QPolygon

from ui.paint.labels import CENTER, RIGHT, advance, put, write
from ui.paint.labels import LEFT as AT_LEFT
from ui.verification import ACCEPT, REJECT, Row
from ui.verification_words import apart, equals, number
from ui.views.verification_bars import shown
from ui.views.verification_look import LEFT, TARGET, Look, hatch

_BAR = 40  # pixels at size 1


def height(look: Look) -> int:
    return look.line("brand") + look.px(12 + _BAR + 4) + look.line("body")


def _bar(area: QRect, look: Look) -> QRect:
    return QRect(area.left(), area.top() + look.line("brand") + look.px(12), area.width(), look.px(_BAR))


def test(painter: QPainter, area: QRect, look: Look, odds: float, draw: float, name: str) -> None:
    """`odds`: the chance to be accepted; `name`: what it is called."""
    bar = _bar(area, look)
    edge = bar.left() + round(bar.width() * odds)
    yes = QRect(bar.left(), bar.top(), edge - bar.left(), bar.height())
    no = QRect(edge, bar.top(), bar.right() + 1 - edge, bar.height())
    digits = apart(odds, draw)
    x = bar.left() + round((bar.width() - 1) * draw)
    for box, token, sign, share in ((yes, "accepted", ACCEPT, odds), (no, "rejected", REJECT, 1 - odds)):
        if box.width() <= 0:
            continue
        hit = (draw < odds) == (token == "accepted")
        painter.fillRect(box, look.theme.mix(token, 0.34 if hit else 0.14))
        if token == "rejected":
            hatch(painter, box, look.theme.mix(token, 0.5), look.px(9), look.size * 1.4)
        word = "accept" if token == "accepted" else "reject"
        texts = (f"{sign} {word} {number(share, digits)}", f"{sign} {number(share, digits)}", sign)
        _name(painter, box, look, texts, "text" if hit else token, x, token == "rejected")
    painter.setPen(QPen(look.color("text"), look.size * 2.5))
    painter.drawLine(edge, bar.top(), edge, bar.bottom() + look.px(4))
    _scale(painter, bar, look, odds, f"{name} {equals(odds, digits)}" if odds < 1 else "")
    _needle(painter, bar, look, draw, f"drew {number(draw, digits)}", "text")


def _name(
    painter: QPainter, box: QRect, look: Look, texts: tuple[str, ...], ink: str, needle: int, ground: bool
) -> None:
    """The longest text that fits into a box beside the needle, on a ground where lines would cross it."""
    font, pad, line = look.font("brand"), look.px(8), look.line("brand")
    for text in texts:
        width = advance(font, text) + pad
        for left in (box.left() + pad, box.right() - pad - width, needle + pad, needle - pad - width):
            place = QRect(left, box.center().y() - line // 2, width, line)
            clear = place.right() < needle - pad // 2 or place.left() > needle + pad // 2
            if clear and box.left() < place.left() and place.right() < box.right():
                if ground:
                    painter.fillRect(place, look.color("panel"))
                put(painter, place.left() + pad // 2, place.top(), line, text, font, look.color(ink))
                return


def landing(painter: QPainter, area: QRect, look: Look, rows: list[Row], draw: float, kind: str) -> None:
    """Parts of the distribution drawn from, in the order of token ids. `kind`: "left" or "p"."""
    bar = _bar(area, look)
    token = LEFT if kind == "left" else TARGET
    painter.fillRect(bar, look.color("raised"))
    parts = sorted((row for row in rows if not row.others), key=lambda row: row.below)
    place = 0
    for row in parts:
        share = row.left if kind == "left" else row.p
        if share <= 0:
            continue
        low = bar.left() + round(bar.width() * row.below)
        high = bar.left() + round(bar.width() * (row.below + share))
        box = QRect(low, bar.top(), max(look.px(2), high - low), bar.height())
        painter.fillRect(box, look.theme.mix(token, 0.55 if row.drawn else 0.30 if place % 2 else 0.20))
        if row.drawn:
            painter.setPen(QPen(look.color(LEFT), look.size * 2.5))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(box.adjusted(1, 1, -2, -2))
        else:
            painter.fillRect(QRect(box.right(), box.top(), 1, box.height()), look.color("panel"))
        text = shown(row.text)
        if row.drawn:
            _name(painter, box, look, (text,), "text", bar.left() + round((bar.width() - 1) * draw), False)
        elif advance(look.font("brand"), text) + look.px(8) <= box.width():
            write(painter, box, text, look.font("brand"), look.color("text"), CENTER)
        place += 1
    _scale(painter, bar, look, 0.5, "each token as wide as its share, in the order of their ids")
    drawn = next((row for row in parts if row.drawn), None)
    landed = f" → {shown(drawn.text)}" if drawn else ""
    _needle(painter, bar, look, draw, f"drew {number(draw)}{landed}", "text")


def _scale(painter: QPainter, bar: QRect, look: Look, at: float, words: str) -> None:
    """A frame from 0 to 1, and words under the place that they are about."""
    painter.setPen(QPen(look.color("text_faint"), look.size))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawRect(bar.adjusted(0, 0, -1, -1))
    line = QRect(bar.left(), bar.bottom() + look.px(4), bar.width(), look.line("body"))
    font, ink = look.font("body"), look.color("text_dim")
    write(painter, line, "0", font, ink, AT_LEFT)
    write(painter, line, "1", font, ink, RIGHT)
    if words:
        width = advance(font, words)
        x = bar.left() + round(bar.width() * at) - width // 2
        x = min(max(x, bar.left() + look.px(20)), bar.right() - width - look.px(20))
        put(painter, x, line.top(), line.height(), words, font, ink)


def _needle(painter: QPainter, bar: QRect, look: Look, draw: float, words: str, token: str) -> None:
    x = bar.left() + round((bar.width() - 1) * draw)
    wing, color = look.px(8), look.color(token)
    painter.setPen(QPen(look.color("panel"), look.size * 6))
    painter.drawLine(x, bar.top(), x, bar.bottom())
    painter.setPen(QPen(color, look.size * 3))
    painter.drawLine(x, bar.top() - look.px(4), x, bar.bottom() + look.px(1))
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(color)
    tip = QPoint(x, bar.top() + look.px(1))
    painter.drawPolygon(
        QPolygon([tip, tip + QPoint(-wing, -wing - look.px(3)), tip + QPoint(wing, -wing - look.px(3))])
    )
    font = look.font("brand")
    width = advance(font, words)
    left = min(max(x - width // 2, bar.left()), bar.right() - width)
    put(painter, left, bar.top() - look.px(12) - look.line("brand"), look.line("brand"), words, font, color)
