"""Figures beside the roofline: what the batch computes, in the largest letters; what one stream could get and what it
gets, with bars to compare; the ridge and what it is made of. Where one comes from is said unless the view says it."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from PySide6.QtCore import QRect
from PySide6.QtGui import QPainter

from engine.roof import Roof
from ui import explain
from ui.paint.labels import badge, wrap, write
from ui.roofline import DECODES, VERIFIES, Shown, few, si
from ui.views.roofline_marks import TOKENS

if TYPE_CHECKING:
    from ui.views.roofline import RooflineView


@dataclass(frozen=True)
class Figure:
    """`tag`: where it comes from. `brief`: its name in a line with others, "" = not there. `bar`: tokens/s to be
    compared with those of other figures, 0 = none; `colour`: a token, its bar's."""

    name: str
    value: str
    unit: str
    note: str
    tag: str
    brief: str = ""
    bar: float = 0.0
    colour: str = "limit"


def figures(view: RooflineView, shown: Shown) -> list[Figure]:
    roof, stream = shown.roof, shown.stream
    assert roof is not None and stream is not None
    measured = view.context.source.provenance
    derived = "derived" if measured == "measured" else measured
    told = [_now(shown, roof, derived), _most(shown, roof, derived)]
    if stream.steps:
        note = f"median of {explain.count(stream.steps, 'step')} with one row"
        if roof.known:
            note = f"{100 * stream.alone / stream.most:.0f} % of that; {note}"
        told.append(
            Figure("one stream, alone", explain.rate(stream.alone), "tok/s", note, measured, "alone", stream.alone,
                   TOKENS[DECODES])
        )  # fmt: skip
    drafts = shown.here is not None and shown.here.kind == VERIFIES
    if stream.of and isfinite(stream.each) and (stream.of > 1 or drafts or not stream.steps):
        tag = "simulated" if view.simulated_drafts else measured
        name, note = f"each of {stream.of:,} now", f"together {explain.rate(stream.each * stream.of)} tok/s"
        if stream.of == 1:
            name = "one stream, with drafts" if drafts else "one stream now"
            note = "whole steps, drafting included: a pass may give several tokens"
        brief, colour = name.removeprefix("one stream, "), TOKENS[VERIFIES if drafts else DECODES]
        told.append(Figure(name, explain.rate(stream.each), "tok/s", note, tag, brief, stream.each, colour))
    if not stream.steps and not stream.of:
        told.append(Figure("one stream, measured", "–", "", "no step has decoded yet", "unavailable"))
    told.append(_ridge(roof, derived))
    return told


def _now(shown: Shown, roof: Roof, derived: str) -> Figure:
    here = shown.here
    if here is None:
        return Figure("arithmetic", "–", "", "nothing was computed", "unavailable")
    value, unit = si(here.rate, "FLOP/s").split(" ")
    note = ""
    if roof.known:
        allowed = si(roof.allows(here.intensity), "FLOP/s")
        note = f"of {allowed} that the roof allows at {few(here.intensity)} FLOP a byte"
    return Figure("arithmetic", value, unit, note, derived)


def _most(shown: Shown, roof: Roof, derived: str) -> Figure:
    stream = shown.stream
    assert stream is not None
    if not roof.known:
        return Figure("one stream, at most", "–", "", roof.note, "unavailable")
    read = f"{si(roof.bandwidth, 'B/s')} ÷ {si(stream.bytes, 'B')} read a token"
    note = f"{read}: weights, and K/V of {stream.context:,}; drafts may give more"
    most = explain.rate(stream.most)
    return Figure("one stream, at most", most, "tok/s", note, derived, "one stream at most", stream.most)


def _ridge(roof: Roof, derived: str) -> Figure:
    if not roof.known:
        return Figure("ridge", "–", "", roof.note, "unavailable")
    tag = roof.source
    note = f"{si(roof.flops, 'FLOP/s')} ÷ {si(roof.bandwidth, 'B/s')}: {roof.note}"
    return Figure("ridge", few(roof.ridge), "FLOP a byte", note, derived if tag == "measured" else tag, "")


def in_a_line(told: list[Figure]) -> str:
    """'one stream at most 312 tok/s · alone 221 tok/s · each of 8 now 79.1 tok/s'."""
    return " · ".join(f"{one.brief} {one.value} {one.unit}" for one in told if one.brief)


def draw_figures(painter: QPainter, view: RooflineView, column: QRect, told: list[Figure]) -> None:
    """One under the other, as many as have room; their notes as long as all of them can be."""
    line = view.line()
    small, step = view.theme.font("small"), line + 1
    gap = view.theme.px(14)
    most_bar = max(one.bar for one in told)
    roles = ["headline", *["brand"] * (len(told) - 1)]
    bare = [line + view.line(role) + (_bar(view) if one.bar else 0) for one, role in zip(told, roles, strict=True)]
    wrapped = [wrap(one.note, small, column.width()) for one in told]
    for most in (3, 2, 1, 0):
        notes = [_shortened(lines, most) for lines in wrapped]
        if sum(bare) + sum(len(lines) * step + gap for lines in notes) - gap <= column.height():
            break
    y = column.top()
    for one, role, least, lines in zip(told, roles, bare, notes, strict=True):
        high = least + len(lines) * step
        if y + high > column.bottom() + 1:
            return
        share = one.bar / most_bar if one.bar else 0.0
        _draw_one(painter, view, QRect(column.left(), y, column.width(), high), one, role, share, lines)
        y += high + gap


def _bar(view: RooflineView) -> int:
    """Height of a bar and what is left above and below it, pixels."""
    return 3 * view.theme.px(3)


def _draw_one(
    painter: QPainter, view: RooflineView, box: QRect, one: Figure, role: str, share: float, lines: list[str]
) -> None:
    """`share`: of the column, how long its bar is."""
    theme, line, head = view.theme, view.line(), view.line(role)
    small, used = theme.font("small"), 0
    if one.tag != view.provenance:
        used = badge(painter, box.right() + 1, box.top(), line, one.tag, small, theme.color(_colour(one.tag)))
        used += theme.px(8)
    row = QRect(box.left(), box.top(), box.width() - used, line)
    write(painter, row, one.name, small, theme.color("text_dim"))
    row = QRect(box.left(), box.top() + line, box.width(), head)
    wide = write(painter, row, one.value, theme.font(role), theme.color("text"))
    rise = theme.px(3) if role == "headline" else theme.px(2)  # its letters stand on the value's line
    unit = QRect(row.left() + wide + theme.px(6), row.bottom() - line - rise, row.width() - wide, line)
    write(painter, unit, one.unit, theme.font("body"), theme.color("text_dim"))
    if one.bar:
        thick = theme.px(3)
        bar = QRect(box.left(), row.bottom() + 1 + thick, max(1, round(share * box.width())), thick)
        painter.fillRect(bar, theme.color(one.colour))
        row.setBottom(row.bottom() + _bar(view))
    for index, text in enumerate(lines):
        spot = QRect(box.left(), row.bottom() + 1 + index * (line + 1), box.width(), line + 1)
        write(painter, spot, text, small, theme.color("text_faint"))


def _shortened(lines: list[str], most: int) -> list[str]:
    """The last line takes what is left, and is elided where it is drawn."""
    return lines if len(lines) <= most else [*lines[: most - 1], " ".join(lines[most - 1 :])] if most else []


def _colour(tag: str) -> str:
    return "derived" if tag == "data sheet" else tag
