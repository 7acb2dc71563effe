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
    tall = look.line("brand") + look.px(14)
    widths = [_width(look, chip) for chip in chips]
    gap = look.px(6)
    needed = sum(widths) + gap * len(widths)
    room = max(area.width() - needed, 0)
    text = _tail(look, " ".join(before.split()), min(room, int(area.width() * _TEXT)))
    x = area.left()
    if text:
        x += put(painter, x, area.top(), tall, text, look.font("brand"), look.color("text_dim")) + look.px(8)
    scale = min(1.0, (area.right() - x - gap * len(chips)) / max(1, sum(widths)))
    for chip, width in zip(chips, widths, strict=True):
        width = int(width * scale)
        _draw(painter, QRect(x, area.top(), width, tall), look, chip)
        x += width + gap


def _words(chip: Chip) -> str:
    return explain.visible(chip.text) or "∅"


def _width(look: Look, chip: Chip) -> int:
    symbol = look.advance("brand", "✓ ")
    return min(look.px(_LONGEST), look.advance("brand", _words(chip)) + symbol + look.px(26))


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
