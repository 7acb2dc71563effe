"""The pass on top: the text so far, the drafted tokens after it, and under the current one a pointer."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QRect, QRectF, Qt
from PySide6.QtGui import QPainter, QPen, QPolygon

from engine.records import DISCARDED, REJECTED
from ui import explain
from ui.paint.labels import CENTER, metrics, put, write
from ui.verification import Chip
from ui.views.verification_look import VERDICTS, Look

_LONGEST = 180  # pixels at size 1 that a token may take
_TEXT = 0.36  # of the width that the text before may take


def height(look: Look) -> int:
    return look.line("brand") + look.px(14) + look.px(9)


def draw(painter: QPainter, area: QRect, look: Look, before: str, chips: list[Chip]) -> None:
    tall, gap = look.line("brand") + look.px(14), look.px(6)
    widths = [_width(look, chip) for chip in chips]
    first, last = _in_sight(widths, gap, area.width(), 2 * look.advance("brand", "+16"), _focus(chips))
    x = area.left()
    room = area.width() - sum(widths) - gap * len(widths)
    text = _tail(look, " ".join(before.split()), min(room, int(area.width() * _TEXT))) if room > 0 else ""
    if first:
        text = f"+{first}"
    font = look.font("brand")
    if text:
        x += put(painter, x, area.top(), tall, text, font, look.color("text_dim")) + look.px(8)
    for chip, width in zip(chips[first:last], widths[first:last], strict=True):
        _draw(painter, QRect(x, area.top(), width, tall), look, chip)
        x += width + gap
    if last < len(chips):
        rest = QRect(x, area.top(), area.right() - x, tall)
        write(painter, rest, f"+{len(chips) - last}", font, look.color("text_dim"))


def _focus(chips: list[Chip]) -> int:
    """The chip that must be in sight: the current one, else the last that was decided, else the first."""
    current = [place for place, chip in enumerate(chips) if chip.current]
    decided = [place for place, chip in enumerate(chips) if chip.symbol]
    return [0, *decided, *current][-1]


def _in_sight(widths: list[int], gap: int, room: int, marks: int, focus: int) -> tuple[int, int]:
    """First and last + 1 of the chips shown around one of them; `marks`: pixels for how many are left out."""
    if sum(widths) + gap * len(widths) <= room:
        return 0, len(widths)
    room -= marks + gap
    first, last = focus, focus + 1
    used = widths[focus] + gap if widths else 0
    while True:
        # what comes next is worth more than what was
        if last < len(widths) and used + widths[last] + gap <= room:
            used, last = used + widths[last] + gap, last + 1
        elif first and used + widths[first - 1] + gap <= room:
            first -= 1
            used += widths[first] + gap
        else:
            return first, last


def _words(chip: Chip) -> str:
    return explain.visible(chip.text) or "∅"


def _width(look: Look, chip: Chip) -> int:
    symbol = look.advance("brand", "✓ ")
    return min(look.px(_LONGEST), look.advance("brand", _words(chip)) + symbol + look.px(28))


def _draw(painter: QPainter, box: QRect, look: Look, chip: Chip) -> None:
    token = "text_dim" if chip.verdict is None else VERDICTS[chip.verdict]
    color = look.color(token)
    gone = chip.verdict == DISCARDED
    pen = QPen(look.color("selection") if chip.current else color, look.size * (3 if chip.current else 1.6))
    if gone:
        pen.setStyle(Qt.PenStyle.DashLine)
    painter.setPen(pen)
    painter.setBrush(look.theme.mix(token, 0.2) if chip.verdict is not None and not gone else look.color("panel"))
    half = pen.widthF() / 2
    radius = box.height() / 2 - half
    painter.drawRoundedRect(QRectF(box).adjusted(half, half, -half, -half), radius, radius)
    font, inner = look.font("brand"), box.adjusted(look.px(12), 0, -look.px(12), 0)
    if chip.symbol:
        used = put(painter, inner.left(), box.top(), box.height(), chip.symbol, font, color)
        inner.setLeft(inner.left() + used + look.px(6))
    ink = look.color("text_faint" if gone else "text")
    text = metrics(font).elidedText(_words(chip), Qt.TextElideMode.ElideRight, inner.width() + look.px(4))
    used = write(painter, inner.adjusted(0, 0, look.px(6), 0), text, font, ink, 0.0 if chip.symbol else CENTER)
    if chip.verdict == REJECTED:
        painter.setPen(QPen(color, look.size * 2))
        y = box.center().y() + look.px(1)
        painter.drawLine(inner.left() - look.px(2), y, inner.left() + used + look.px(2), y)
    if chip.current:
        tip, wing = QPoint(box.center().x(), box.bottom() + look.px(3)), look.px(6)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(look.color("selection"))
        painter.drawPolygon(QPolygon([tip, tip + QPoint(-wing, wing), tip + QPoint(wing, wing)]))


def _tail(look: Look, text: str, room: int) -> str:
    """The end of a text that fits."""
    measure = metrics(look.font("brand"))
    if measure.horizontalAdvance(text) <= room:
        return text
    text = text[-200:]
    while text and measure.horizontalAdvance("…" + text) > room:
        _, _, text = text.partition(" ")
    return f"…{text}" if text else ""
