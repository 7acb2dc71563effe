"""Verification passes as rows of chips: what was kept, what was rejected and replaced, what nobody looked at."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from numpy.typing import NDArray
from PySide6.QtCore import QRect
from PySide6.QtGui import QPainter

from engine.records import ACCEPTED, BONUS, DISCARDED, REJECTED, RESAMPLED
from ui import explain
from ui.history import Pass
from ui.paint import chips
from ui.paint.chips import Chip, ChipStyle
from ui.paint.labels import RIGHT, write
from ui.theme import Theme
from ui.views.painted import PaintedView

COLORS = {ACCEPTED: "accepted", REJECTED: "rejected", DISCARDED: "text_faint", RESAMPLED: "bonus", BONUS: "bonus"}
_RANK = {ACCEPTED: 0, REJECTED: 1, RESAMPLED: 2, BONUS: 2, DISCARDED: 3}


class PassRows:
    """Draws the rows and remembers where they are.

    Attributes:
        hits: (box, what makes its explanation as rich text) of each chip drawn.
        rows: (box, sequence) of each row drawn.
    """

    def __init__(self, view: PaintedView):
        self._view = view
        self.hits: list[tuple[QRect, Callable[[], str]]] = []
        self.rows: list[tuple[QRect, int]] = []

    def draw(self, painter: QPainter, area: QRect, passes: list[Pass], chosen: int | None) -> None:
        view, theme = self._view, self._view.theme
        self.hits, self.rows = [], []
        style = chip_style(view, area.height())
        pitch = style.height + style.note_height + theme.px(6)
        word = "seq " if area.width() >= theme.px(340) else ""
        longest = max(len(str(one.seq)) for one in passes)
        name_width = view.advance(word + "9" * longest, "mono_small") + theme.px(6)
        y = area.top()
        for one in passes:
            if y + pitch - theme.px(6) > area.bottom() + 1:
                return
            row = QRect(area.left(), y, area.width(), pitch - theme.px(4))
            self.rows.append((row, one.seq))
            lit = chosen == one.seq
            if lit:
                painter.fillRect(row.adjusted(-theme.px(4), -1, theme.px(4), 1), theme.color("hover"))
            swatch = QRect(area.left(), y + theme.px(2), theme.px(4), style.height - theme.px(4))
            painter.fillRect(swatch, theme.sequence_color(one.seq))
            name = QRect(area.left() + theme.px(8), y, name_width, style.height)
            ink = theme.color("text" if lit else "text_dim")
            write(painter, name, f"{word}{one.seq}", theme.font("mono_small"), ink)
            self._draw_chips(painter, one, style, QRect(name.right() + 1, y, area.right() - name.right(), style.height))
            y += pitch

    def _draw_chips(self, painter: QPainter, one: Pass, style: ChipStyle, box: QRect) -> None:
        theme, verdicts = self._view.theme, one.drafts["verdict"]
        order = reading_order(verdicts)
        made = [chip(theme, one, index) for index in order]
        if box.width() < theme.px(150):  # the symbols alone
            made = [Chip(c.symbol, "", c.color, "", c.dashed) for c in made]
        told = verdicts.tolist()
        unseen = told.count(DISCARDED)
        kept = len(told) - told.count(REJECTED) - unseen
        gain = f"= {kept}"
        tail = self._view.advance(gain, "strong") + theme.px(8)
        limit = box.right() - tail
        if unseen > 1 and chips.place(made, style, box.left(), box.top(), limit)[1]:  # one chip for all of them
            made = made[:-unseen]
            made.append(Chip(explain.SYMBOLS[DISCARDED], f"{unseen}", theme.color("text_faint"), "", True))
        places, left_out = chips.place(made, style, box.left(), box.top(), limit)
        if left_out:
            more = self._view.advance("+9", "mono_small") + style.gap
            places, left_out = chips.place(made, style, box.left(), box.top(), limit - more)
        for spot, one_chip, index in zip(places, made, order, strict=False):
            chips.draw(painter, one_chip, spot, style)
            self.hits.append((spot, partial(tip, one, index)))
        if left_out:
            end = (places[-1].right() + style.gap) if places else box.left()
            rest = QRect(end, box.top(), limit - end + 1, style.height)
            write(painter, rest, f"+{left_out}", style.font, style.dim)
        room = QRect(limit, box.top(), tail, style.height)
        write(painter, room, gain, theme.font("strong"), theme.color("text_dim"), RIGHT)
        self.hits.append((room, partial("<p>this pass gave {}</p>".format, explain.count(kept, "token"))))


def chip(theme: Theme, one: Pass, index: int) -> Chip:
    entry = one.drafts[index]
    kind, p, q = int(entry["verdict"]), float(entry["p"]), float(entry["q"])
    note = f"p {p:.2f}"
    if kind == DISCARDED:
        note = ""
    elif kind in (ACCEPTED, REJECTED) and q != 1:
        note = f"{p:.2f} / {q:.2f}"
    text = explain.visible(one.texts[index]) or "·"
    color = theme.color(COLORS[kind])
    return Chip(explain.SYMBOLS[kind], text, color, note, dashed=kind == DISCARDED, struck=kind == REJECTED)


def tip(one: Pass, index: int) -> str:
    """The decision in words, as rich text."""
    entry = one.drafts[index]
    words = explain.verdict(
        int(entry["verdict"]), one.texts[index], float(entry["p"]), float(entry["q"]), float(entry["draw"])
    )
    safe = words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"<p>{safe}</p><p>seq {one.seq} · step {one.step:,} · position {int(entry['position']):,}</p>"


def chip_style(view: PaintedView, height: int) -> ChipStyle:
    """Probabilities go under the chips where at least three such rows fit."""
    theme = view.theme
    box, note = view.line("mono_small") + theme.px(4), view.line("mono_small")
    font = theme.font("mono_small")
    return ChipStyle(
        font=font,
        text=theme.color("text"),
        dim=theme.color("text_faint"),
        height=box,
        note_height=note if height >= 3 * (box + note + theme.px(6)) else 0,
        pad=theme.px(7),
        gap=theme.px(5),
        longest=theme.px(150),
        key=font.key(),
    )


def reading_order(verdicts: NDArray) -> list[int]:
    """Kept drafts, the rejected one, what took its place, then what was discarded unexamined."""
    return sorted(range(len(verdicts)), key=lambda i: _RANK[int(verdicts[i])])
