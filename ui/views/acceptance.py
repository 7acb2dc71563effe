"""Acceptance by draft position, tokens per pass beside the formula, and where a pass spends its time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QRect
from PySide6.QtGui import QPainter

from ui import explain
from ui.paint import stacked_bar
from ui.paint.labels import CENTER, RIGHT, badge, write
from ui.payoff import Payoff
from ui.views.painted import PaintedView


@dataclass(frozen=True)
class Counts:
    """Drafted tokens examined and accepted by position over `steps` steps; `depth` positions can be drafted now."""

    examined: NDArray
    accepted: NDArray
    depth: int
    steps: int


def draw(view: PaintedView, painter: QPainter, area: QRect, counts: Counts, figures: Payoff) -> list[tuple[QRect, str]]:
    """Returns (box, explanation) of what was drawn."""
    theme, line = view.theme, view.line()
    small = theme.font("small")
    below = 3 * (line + theme.px(3)) + theme.px(6) if figures.passes else 0
    if area.height() < below + 3 * line:
        below = 0
    depth = max(int(np.max(np.flatnonzero(counts.examined), initial=-1)) + 1, counts.depth)
    pitch = line + theme.px(2)
    fit = min(depth, (area.height() - below - pitch) // pitch)
    hits: list[tuple[QRect, str]] = []
    y = area.top()
    if fit > 0:
        head = QRect(area.left(), y, area.width(), line)
        used = write(painter, head, "accepted by position", small, theme.color("text_dim"))
        if figures.passes and area.width() - used > view.advance("α 0.00") + theme.px(10):
            write(painter, head, f"α {figures.alpha:.2f}", small, theme.color("text"), RIGHT)
        y += pitch
        if fit < depth:  # side by side rather than some left out
            columns = QRect(area.left(), y, area.width(), fit * pitch)
            hits += _draw_columns(view, painter, columns, counts, depth)
            y += columns.height()
        else:
            for position in range(fit):
                hits.append(_draw_position(view, painter, QRect(area.left(), y, area.width(), line), counts, position))
                y += pitch
    if below:
        rest = QRect(area.left(), y + theme.px(6), area.width(), below)
        hits += _draw_per_pass(view, painter, rest, figures)
    return hits


def _draw_position(
    view: PaintedView, painter: QPainter, row: QRect, counts: Counts, position: int
) -> tuple[QRect, str]:
    theme = view.theme
    small = theme.font("small")
    tried, kept = int(counts.examined[position]), int(counts.accepted[position])
    write(painter, row, str(position + 1), small, theme.color("text_faint"))
    left = row.left() + view.advance("16") + theme.px(6)
    width = row.right() - view.advance("0.00") - theme.px(8) - left
    high = row.height() // 2
    painter.fillRect(QRect(left, row.top() + (row.height() - high) // 2, width, high), theme.color("free"))
    if tried:
        bar = QRect(left, row.top() + (row.height() - high) // 2, round(width * kept / tried), high)
        painter.fillRect(bar, theme.color("accepted"))
    write(painter, row, f"{kept / tried:.2f}" if tried else "–", small, theme.color("text"), RIGHT)
    return row, _told(counts, position)


def _told(counts: Counts, position: int) -> str:
    tried, kept = int(counts.examined[position]), int(counts.accepted[position])
    words = (
        f"position {position + 1}: {kept:,} of {tried:,} examined drafts accepted over the last {counts.steps} steps"
    )
    return f"<p>{words}; a draft is examined only when all before it were accepted</p>"


def _draw_columns(
    view: PaintedView, painter: QPainter, area: QRect, counts: Counts, depth: int
) -> list[tuple[QRect, str]]:
    """A column a position, its number below and, where there is room, its share above."""
    theme, line = view.theme, view.line()
    small, faint = theme.font("small"), theme.color("text_faint")
    hits, width = [], area.width() // depth
    gap = max(1, min(theme.px(6), width // 4))
    shares = width - gap >= view.advance(".00") and area.height() >= 3 * line
    track = area.adjusted(0, line if shares else 0, 0, -line)
    for position in range(depth):
        tried, kept = int(counts.examined[position]), int(counts.accepted[position])
        box = QRect(area.left() + position * width, area.top(), width - gap, area.height())
        column = QRect(box.left(), track.top(), box.width(), track.height())
        painter.fillRect(column, theme.color("free"))
        if tried:
            tall = round(column.height() * kept / tried)
            top = column.bottom() + 1 - tall
            painter.fillRect(QRect(column.left(), top, column.width(), tall), theme.color("accepted"))
        if shares:
            share = (f"{kept / tried:.2f}".removeprefix("0") if tried else "–")
            row = QRect(box.left() - gap, box.top(), width + gap, line)
            write(painter, row, share, small, theme.color("text"), CENTER)
        if view.advance(str(position + 1)) <= width:
            row = QRect(box.left() - gap, box.bottom() + 1 - line, width + gap, line)
            write(painter, row, str(position + 1), small, faint, CENTER)
        hits.append((box, _told(counts, position)))
    return hits


def _draw_per_pass(view: PaintedView, painter: QPainter, area: QRect, figures: Payoff) -> list[tuple[QRect, str]]:
    theme, line = view.theme, view.line()
    small = theme.font("small")
    tags = area.width() >= theme.px(200)
    hits, y = [], area.top()
    expected = f"what α {figures.alpha:.2f} and drafts of {figures.draft_length:.1f} tokens let expect"
    for words, value, tag, told in (
        ("tokens per pass", figures.tokens_per_pass, "measured", "accepted drafts and the one that each pass adds"),
        ("(1−α^(γ+1))/(1−α)", figures.expected, "derived", expected),
    ):
        row, tag = QRect(area.left(), y, area.width(), line), view.source_of(tag)
        hits.append((row, f"<p>{told}</p>"))
        room = badge(painter, row.right() + 1, y, line, tag, small, theme.color(tag)) + theme.px(8) if tags else 0
        row = row.adjusted(0, 0, -room, 0)
        used = write(painter, row, f"{value:.2f}", theme.font("strong"), theme.color("text"), RIGHT)
        write(painter, row.adjusted(0, 0, -used - theme.px(6), 0), words, small, theme.color("text_dim"))
        y += line + theme.px(3)
    if figures.draft + figures.verify > 0:
        row = QRect(area.left(), y, area.width(), line)
        words = f"draft {explain.duration(figures.draft / 1e9)} · verify {explain.duration(figures.verify / 1e9)}"
        used = write(painter, row, words, small, theme.color("text_dim"), RIGHT)
        bar = QRect(row.left(), y + line // 4, row.width() - used - theme.px(10), line // 2)
        if bar.width() >= theme.px(30):
            colors = [theme.color("accent"), theme.color("weights")]
            stacked_bar.draw(painter, bar, [figures.draft, figures.verify], colors, theme.color("panel"))
        hits.append((row, "<p>mean time of a step with drafts and no prefill: proposing, and everything else</p>"))
    return hits
