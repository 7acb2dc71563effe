"""Verification passes as rows of chips: what was kept, what was rejected and replaced, what nobody looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from PySide6.QtCore import QRect
from PySide6.QtGui import QPainter

from engine.records import ACCEPTED, BONUS, DISCARDED, REJECTED, RESAMPLED
from ui import draft_words, explain, fonts
from ui.history import Pass
from ui.paint import chips
from ui.paint.chips import Chip, ChipStyle, Look
from ui.paint.labels import RIGHT, metrics, write
from ui.theme import Theme
from ui.views.painted import PaintedView

COLORS = {ACCEPTED: "accepted", REJECTED: "rejected", DISCARDED: "text_faint", RESAMPLED: "bonus", BONUS: "bonus"}
LOOKS: dict[int, Look] = {ACCEPTED: "solid", REJECTED: "struck", DISCARDED: "dashed"}
Item = tuple[Chip, Callable[[], str]]  # a chip, and what makes its explanation
_RANK = {ACCEPTED: 0, REJECTED: 1, RESAMPLED: 2, BONUS: 2, DISCARDED: 3}


class PassRows:
    """Draws the rows that fit and remembers where they are.

    Attributes:
        hits: (box, what makes its explanation as rich text) of each chip drawn.
        rows: (box, sequence) of each row drawn.
        first: the row at the top. count: rows there are; fitting: rows that have room.
    """

    def __init__(self, view: PaintedView):
        self._view = view
        self.first = self.count = self.fitting = 0
        self.clear()

    def clear(self) -> None:
        self.hits: list[tuple[QRect, Callable[[], str]]] = []
        self.rows: list[tuple[QRect, int]] = []

    def scroll(self, rows: int) -> bool:
        """Down by so many; False where there is no more."""
        first = max(0, min(self.first + rows, self.count - self.fitting))
        moved, self.first = first != self.first, first
        return moved

    def draw(
        self, painter: QPainter, area: QRect, passes: list[Pass], chosen: int | None, larger: float = 1.0,
        simulated: bool = False,
    ) -> None:  # fmt: skip
        """`larger`: chips are this much larger than the text around them."""
        view, theme = self._view, self._view.theme
        self.clear()
        style = chip_style(view, area.height(), larger)
        gap = theme.px(6 * larger)
        pitch = style.height + style.note_height + gap
        self.count, self.fitting = len(passes), max(1, (area.height() + gap) // pitch)
        self.first = max(0, min(self.first, self.count - self.fitting))
        if self.count > self.fitting and area.width() >= theme.px(300):
            self._draw_bar(painter, area)
            area = area.adjusted(0, 0, -theme.px(10), 0)
        word = "seq " if area.width() >= theme.px(340 * larger) else ""
        longest = max(len(str(one.seq)) for one in passes)
        name_width = view.advance(word + "9" * longest, "mono_small") + theme.px(6)
        y = area.top()
        for one in passes[self.first : self.first + self.fitting]:
            if y + pitch - gap > area.bottom() + 1:
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
            box = QRect(name.right() + 1, y, area.right() - name.right(), style.height)
            self._draw_chips(painter, one, style, box, simulated)
            y += pitch

    def _draw_bar(self, painter: QPainter, area: QRect) -> None:
        theme = self._view.theme
        track = QRect(area.right() - theme.px(4), area.top(), theme.px(5), area.height())
        painter.fillRect(track, theme.color("free"))
        tall = max(theme.px(16), track.height() * self.fitting // self.count)
        top = (track.height() - tall) * self.first // max(1, self.count - self.fitting)
        painter.fillRect(QRect(track.left(), track.top() + top, track.width(), tall), theme.color("text_faint"))

    def _draw_chips(self, painter: QPainter, one: Pass, style: ChipStyle, box: QRect, simulated: bool) -> None:
        theme = self._view.theme
        told = one.drafts["verdict"].tolist()
        kept = len(told) - told.count(REJECTED) - told.count(DISCARDED)
        gain = f"= {kept}"
        tail = self._view.advance(gain, "strong") + theme.px(8)
        limit = box.right() - tail
        items = self._items(one, told, box.width(), simulated)
        items = folded(items, told, lambda chosen: not _place(chosen, style, box, limit)[1])
        places, left_out = _place(items, style, box, limit)
        if left_out:
            places, left_out = _place(items, style, box, limit - self._view.advance("+9", "mono_small") - style.gap)
        for spot, (made, words) in zip(places, items, strict=False):
            chips.draw(painter, made, spot, style)
            self.hits.append((spot, words))
        if left_out:
            end = (places[-1].right() + style.gap) if places else box.left()
            rest = QRect(end, box.top(), limit - end + 1, style.height)
            write(painter, rest, f"+{left_out}", theme.font("mono_small"), style.dim)
        room = QRect(limit, box.top(), tail, style.height)
        write(painter, room, gain, theme.font("strong"), theme.color("text_dim"), RIGHT)
        self.hits.append((room, partial("<p>this pass gave {}</p>".format, explain.count(kept, "token"))))

    def _items(self, one: Pass, told: list[int], width: int, simulated: bool) -> list[Item]:
        theme = self._view.theme
        brief, bare = width < theme.px(420), width < theme.px(150)
        entries = one.drafts[["verdict", "p", "q"]].tolist()
        items = []
        for index in reading_order(told):
            made = chip(theme, one.texts[index], *entries[index], brief)
            made = replace(made, text="", note="") if bare else made  # the symbols alone
            items.append((made, partial(tip, one, index, simulated)))
        return items


def folded(items: list[Item], told: list[int], fits: Callable[[list[Item]], bool]) -> list[Item]:
    """Where not all fit: one chip for all that was discarded, then one for the first accepted ones, as few as need be.
    How the pass ended stays in sight."""
    unseen, accepted = told.count(DISCARDED), told.count(ACCEPTED)
    if unseen > 1 and not fits(items):
        items = [*items[:-unseen], (replace(items[-1][0], text=f"×{unseen}"), items[-1][1])]
    whole, count = items, 1
    while count < accepted and not fits(items):
        count += 1
        words = f"<p>the first {count} drafts were accepted</p>"
        items = [(replace(whole[0][0], text=f"×{count}", note=""), partial(str, words)), *whole[count:]]
    return items


def _place(items: list[Item], style: ChipStyle, box: QRect, limit: int) -> tuple[list[QRect], int]:
    return chips.place([made for made, _ in items], style, box.left(), box.top(), limit)


def chip(theme: Theme, text: str, kind: int, p: float, q: float, brief: bool = False) -> Chip:
    """`brief`: a shorter note, for rows with little room."""
    note = f"p {_short(p)}" if brief else f"p {p:.2f}"
    if kind == DISCARDED:
        note = ""
    elif kind in (ACCEPTED, REJECTED) and q != 1:
        note = f"{_short(p)}/{_short(q)}" if brief else f"p {_short(p)} q {_short(q)}"
    text = explain.visible(text) or "·"
    color = theme.color(COLORS[kind])
    look = LOOKS.get(kind, "outlined")
    ink = theme.ink_on(color) if look == "solid" else theme.color("text_faint" if look == "dashed" else "text")
    return Chip(draft_words.SYMBOLS[kind], text, color, ink, look, note)


def tip(one: Pass, index: int, simulated: bool = False) -> str:
    """The decision in words, as rich text."""
    entry = one.drafts[index]
    replaced = one.drafts["verdict"] == RESAMPLED
    words = draft_words.verdict(
        int(entry["verdict"]), one.texts[index], float(entry["p"]), float(entry["q"]), float(entry["draw"]),
        one.texts[int(replaced.argmax())] if replaced.any() else "", simulated,
    )  # fmt: skip
    safe = words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"<p>{safe}</p><p>seq {one.seq} · step {one.step:,} · position {int(entry['position']):,}</p>"


def chip_style(view: PaintedView, height: int, larger: float = 1.0) -> ChipStyle:
    """Probabilities go under the chips where at least three such rows fit."""
    theme = view.theme
    font = fonts.make("mono_small", theme.scale * larger)
    note = font if larger == 1 else fonts.make("mono_small", theme.scale * (1 + (larger - 1) / 2))
    box = metrics(font).height() + theme.px(4 * larger)
    below = metrics(note).height()
    return ChipStyle(
        font=font,
        note=note,
        dim=theme.color("text_faint" if larger == 1 else "text_dim"),
        height=box,
        note_height=below if height >= 3 * (box + below + theme.px(6)) else 0,
        pad=theme.px(6 * larger),
        gap=theme.px(5 * larger),
        line=max(2, theme.px(2 * larger)),
        longest=theme.px(150 * larger),
        key=font.key(),
        note_key=note.key(),
    )


def reading_order(verdicts: Sequence[int]) -> list[int]:
    """Kept drafts, the rejected one, what took its place, then what was discarded unexamined."""
    return sorted(range(len(verdicts)), key=lambda index: _RANK[verdicts[index]])


def _short(share: float) -> str:
    return f"{share:.2f}".removeprefix("0")
