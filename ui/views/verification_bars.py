"""Target and draft side by side: a row a token, the same rows in every column, bars to one scale.

Target bars are solid, draft bars hatched one way, what is left over cross-hatched: shapes beside the colours.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QPainter, QPen

from ui.paint.labels import RIGHT, advance, write
from ui.verification import Row
from ui.verification_words import number
from ui.views.verification_look import DRAFT, LEFT, TARGET, Look, hatch

ROW = 27  # pixels at size 1
_LABEL = 0.19  # of the width


@dataclass(frozen=True)
class Column:
    """`kind`: "p", "q", "left", or "over" (p, with the part of it above q brought out)."""

    kind: str
    title: str
    share: float = 1.0  # of the width


def fitting(look: Look, height: int) -> int:
    """Rows that fit under the titles."""
    return max(0, (height - look.line("strong") - look.px(4)) // look.px(ROW))


def height(look: Look, rows: int) -> int:
    return look.line("strong") + look.px(4) + rows * look.px(ROW)


def draw(
    painter: QPainter,
    area: QRect,
    look: Look,
    rows: list[Row],
    columns: list[Column],
    mark: str,
    top: float = 0.0,
    best: bool = False,
) -> None:
    """`mark`: the sign of the drawn token's row, "" = it isn't drawn yet. `top`: where the bars' scale ends, 0 = with
    the longest. `best`: say which row is the likeliest, as it decides."""
    title, pitch, gap = look.line("strong"), look.px(ROW), look.px(16)
    label = int(area.width() * _LABEL)
    whole = sum(column.share for column in columns)
    room = area.width() - label - gap * len(columns)
    edges: list[QRect] = []
    x = area.left() + label + gap
    for column in columns:
        width = int(room * column.share / whole)
        edges.append(QRect(x, area.top(), width, area.height()))
        x += width + gap
    for column, edge in zip(columns, edges, strict=True):
        write(painter, QRect(edge.left(), area.top(), edge.width(), title), column.title, look.font("strong"),
              look.color("text_dim"))  # fmt: skip
    value = advance(look.font("brand"), "<.0000") + look.px(4)
    tops = [top or _top(rows, column.kind) for column in columns]
    if {column.kind for column in columns} == {"p", "q"}:  # what stands side by side is compared
        tops = [max(tops)] * len(tops)
    y = area.top() + title + look.px(4)
    for row in rows:
        line = QRect(area.left(), y, area.width(), pitch)
        tag = mark if row.drawn and mark else "draft" if row.drafted else "best" if best and row is rows[0] else ""
        _draw_label(painter, line, label, look, row, tag)
        for column, edge, end in zip(columns, edges, tops, strict=True):
            box = QRect(edge.left(), y + look.px(4), edge.width() - value, pitch - look.px(8))
            if not row.others:  # a sum of many isn't compared with one
                _draw_bar(painter, box, look, row, column.kind, end)
            told = row.left if column.kind == "left" else row.q if column.kind == "q" else row.p
            ink = look.color("text" if told > 0 and not row.others else "text_faint")
            where = QRect(edge.right() - value, y, value - look.px(6), pitch)
            if not isnan(told):
                write(painter, where, number(told) if told else "0", look.font("brand"), ink, RIGHT)
        y += pitch


def _top(rows: list[Row], kind: str) -> float:
    """The value at the end of a column."""
    values = [row.left if kind == "left" else row.q if kind == "q" else max(row.p, row.q) if kind == "over" else row.p
              for row in rows if not row.others]  # fmt: skip
    return max([*values, 1e-9])


def _draw_label(painter: QPainter, line: QRect, width: int, look: Look, row: Row, tag: str) -> None:
    """The token, and at the left what it is here; the drafted and the drawn one are framed."""
    drawn = tag not in ("", "draft", "best")
    token = LEFT if drawn else "selection" if row.drafted else "text_dim"
    if row.drafted or drawn:
        painter.setPen(QPen(look.color(token), look.size * 2))
        painter.setBrush(look.theme.mix(token, 0.10))
        painter.drawRoundedRect(line.adjusted(look.px(1), look.px(1), 0, -look.px(1)), look.px(5), look.px(5))
    inner = line.adjusted(look.px(10), 0, 0, 0)
    inner.setWidth(width - look.px(10))
    if row.others:
        write(painter, inner, row.text, look.font("body"), look.color("text_faint"), RIGHT)
        return
    if tag:
        font = look.font("brand" if drawn else "strong")
        used = write(painter, inner, tag, font, look.color(token))
        inner.setLeft(inner.left() + used + look.px(8))
    write(painter, inner, shown(row.text), look.font("brand"), look.color("text"), RIGHT)


def shown(text: str) -> str:
    """A token with its white space: two that differ in it alone are two rows."""
    core = text.strip(" ").replace("\n", "⏎").replace("\t", "⇥")
    lead = len(text) - len(text.lstrip(" "))
    trail = len(text) - len(text.rstrip(" ")) if core else 0
    return "·" * lead + core + "·" * trail or "∅"


def _draw_bar(painter: QPainter, box: QRect, look: Look, row: Row, kind: str, top: float) -> None:
    def upto(value: float) -> QRect:
        width = round(box.width() * min(1.0, value / top))
        return QRect(box.left(), box.top(), max(width, look.px(1.5) if value > 0 else 0), box.height())

    pitch, thick = look.px(6), look.size * 1.6
    if kind == "p":
        painter.fillRect(upto(row.p), look.color(TARGET))
    elif kind == "q" and row.q > 0:
        _hatched(painter, upto(row.q), look, DRAFT, pitch, thick)
    elif kind == "left" and row.left > 0:
        bar = upto(row.left)
        _hatched(painter, bar, look, LEFT, pitch, thick)
        hatch(painter, bar, look.color(LEFT), pitch, thick, up=False)
    elif kind == "over":
        _draw_over(painter, upto, look, row)


def _draw_over(painter: QPainter, upto, look: Look, row: Row) -> None:
    """What p and q have in common stays dim; what p has over q is brought out, what q has over p is an outline."""
    pitch, thick = look.px(6), look.size * 1.6
    both, p, q = upto(min(row.p, row.q)), upto(row.p), upto(row.q)
    painter.fillRect(both, look.theme.mix(TARGET, 0.35))
    if row.p > row.q:
        over = QRect(both.right() + 1 if row.q > 0 else p.left(), p.top(), 0, p.height())
        over.setRight(p.right())
        painter.fillRect(over, look.theme.mix(LEFT, 0.25))
        hatch(painter, over, look.color(LEFT), pitch, thick)
        hatch(painter, over, look.color(LEFT), pitch, thick, up=False)
    if row.q > 0:
        painter.setPen(QPen(look.color(DRAFT), look.size * 2))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRect(q.adjusted(0, 0, -1, -1))


def _hatched(painter: QPainter, box: QRect, look: Look, token: str, pitch: int, thick: float) -> None:
    painter.fillRect(box, look.theme.mix(token, 0.25))
    hatch(painter, box, look.color(token), pitch, thick)
    painter.setPen(QPen(look.color(token), look.size * 1.5))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawRect(box.adjusted(0, 0, -1, -1))
