"""What of speculation has room, and where: a dock shows passes and acceptance, a tall one adds bars and chart below
each other, a filled window is a stage of three columns in larger text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from PySide6.QtCore import QRect

Form = Literal["dock", "tall", "stage"]
STAGE = (1000, 400)  # pixels at text scale 1, from which there is room for an audience
TALL = (300, 520)
DESIGNED = (1240, 500)  # pixels that the stage looks right at; larger ones get larger text
LARGEST = 3.5  # text scale
ROWS, FIGURES = 46, 23  # per cent of the stage's width: a draft of four and its bonus fit


def form(width: int, height: int, scale: float) -> Form:
    wide, high = width / scale, height / scale
    if wide >= STAGE[0] and high >= STAGE[1]:
        return "stage"
    return "tall" if wide >= TALL[0] and high >= TALL[1] else "dock"


def stage_scale(width: int, height: int, scale: float) -> float:
    """The text scale at which the stage fills so many pixels."""
    fits = min(width / DESIGNED[0], height / DESIGNED[1])
    return max(scale, min(LARGEST, fits))


@dataclass
class Places:
    """Boxes of the parts; an empty one has no room."""

    rows: QRect
    positions: QRect = field(default_factory=QRect)
    lengths: QRect = field(default_factory=QRect)
    per_pass: QRect = field(default_factory=QRect)
    costs: QRect = field(default_factory=QRect)
    crossover: QRect = field(default_factory=QRect)


def dock(area: QRect, px, narrow: int, costs: int, per_pass: int, line: int) -> Places:
    """Passes at the left, figures at the right or below; `narrow`: pixels of the figures' column."""
    if area.width() >= px(420):
        rows = area.adjusted(0, 0, -narrow - px(16), 0)
        figures = area.adjusted(area.width() - narrow, 0, 0, 0)
    elif area.height() >= px(260):
        rows = area.adjusted(0, 0, 0, -area.height() // 2)
        figures = area.adjusted(0, rows.height() + px(8), 0, 0)
    else:
        return Places(area)
    places = Places(rows, figures)
    for name, height, least in (("per_pass", per_pass, 3 * line), ("costs", costs, 3 * line)):
        if height and places.positions.height() - height - px(6) >= least:
            setattr(places, name, _cut_bottom(places.positions, height, px(6)))
    if places.costs.isValid() and places.per_pass.isValid():  # the bar was cut off last, and stands below
        first = places.costs.top()
        places.per_pass.moveTop(first)
        places.costs.moveTop(places.per_pass.bottom() + 1 + px(6))
    return places


def tall(area: QRect, px, costs: int, per_pass: int, chart: int) -> Places:
    """One below the other, the passes first."""
    gap = px(14)
    rest = area.adjusted(0, 0, 0, 0)
    figures = px(150)
    wanted = [height for height in (costs, per_pass, chart) if height]
    rows = max(area.height() * 30 // 100, area.height() - figures - sum(wanted) - (len(wanted) + 1) * gap)
    places = Places(_cut_top(rest, rows, gap))
    both = _cut_top(rest, min(figures, rest.height()), gap)
    half = (both.width() - px(20)) // 2
    places.positions = QRect(both.left(), both.top(), half, both.height())
    places.lengths = QRect(both.right() + 1 - half, both.top(), half, both.height())
    for name, height in (("per_pass", per_pass), ("costs", costs), ("crossover", chart)):
        if height and rest.height() >= height:
            setattr(places, name, _cut_top(rest, height, gap))
    if places.crossover.isValid():
        places.crossover.setBottom(area.bottom())
    return places


def stage(area: QRect, px, costs: int, per_pass: int) -> Places:
    """Three columns: passes; what became of drafts; what they cost and where they pay."""
    gap = px(24)
    room = area.width() - 2 * gap
    left, middle = room * ROWS // 100, room * FIGURES // 100
    rows = QRect(area.left(), area.top(), left, area.height())
    second = QRect(rows.right() + 1 + gap, area.top(), middle, area.height())
    third = QRect(second.right() + 1 + gap, area.top(), area.right() - second.right() - gap, area.height())
    places = Places(rows)
    if per_pass:
        places.per_pass = _cut_bottom(second, per_pass, px(12))
    half = (second.height() - px(12)) // 2
    places.positions = QRect(second.left(), second.top(), second.width(), half)
    places.lengths = QRect(second.left(), second.top() + half + px(12), second.width(), half)
    if costs:
        places.costs = _cut_top(third, costs, px(14))
    places.crossover = third
    return places


def _cut_top(area: QRect, height: int, gap: int) -> QRect:
    """So much of `area`, which keeps the rest."""
    cut = QRect(area.left(), area.top(), area.width(), height)
    area.setTop(area.top() + height + gap)
    return cut


def _cut_bottom(area: QRect, height: int, gap: int) -> QRect:
    cut = QRect(area.left(), area.bottom() + 1 - height, area.width(), height)
    area.setBottom(area.bottom() - height - gap)
    return cut
