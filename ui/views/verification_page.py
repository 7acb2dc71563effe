"""One stage of a verification, painted: the pass on top, distributions, the draw, what it came to, and where one is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QPainter, QPen

from engine.records import ACCEPTED, BONUS
from ui import explain
from ui.paint.labels import CENTER, advance, metrics, put, wrap, write
from ui.verification import ACCEPT, EXTRA, REJECT, REPLACE, Kind, Row, Walk, chips, rows
from ui.verification_words import METHODS, Words, chance, distribution, words
from ui.views import verification_bars as bars
from ui.views import verification_ruler as ruler
from ui.views import verification_strip as strip
from ui.views.verification_bars import Column
from ui.views.verification_look import LEFT, Look

_MOST = 10  # rows of a chart: more can't be taken in


@dataclass
class Page:
    """Paints a walk's stage. `before`: the text that the pass continued."""

    walk: Walk
    before: str
    hits: list[tuple[QRect, int]] = field(default_factory=list)  # (box, stage) of each name in the trail

    def draw(self, painter: QPainter, area: QRect, look: Look, trail: QRect) -> None:
        """`trail`: where the stages' names go, between the buttons."""
        gap, stage = look.px(10), self.walk.stage
        head = QRect(area.left(), area.top(), area.width(), strip.height(look))
        strip.draw(painter, head, look, self.before, chips(self.walk))
        self._trail(painter, trail, look)
        said = words(self.walk)
        tall = _words_height(look, area.width(), said)
        foot = QRect(area.left(), area.bottom() + 1 - tall, area.width(), tall)
        middle = QRect(area.left(), head.bottom() + gap, area.width(), foot.top() - gap - head.bottom() - gap)
        self._words(painter, foot, look, said)
        if stage.kind is Kind.DRAFT:
            self._draft(painter, middle, look)
        elif stage.kind is Kind.COMMIT:
            self._output(painter, middle, look)
        else:
            self._position(painter, middle, look)

    # --- the middle ---

    def _draft(self, painter: QPainter, area: QRect, look: Look) -> None:
        told = self.walk.told
        drafted = [Row(one.text, 0.0, one.q, 0.0, 0.0) for one in told.drafted]
        fits = bars.fitting(look, area.height())
        if len(drafted) > fits > 0:
            more = f"and {len(drafted) - fits + 1} more"
            drafted = [*drafted[: fits - 1], Row(more, math.nan, math.nan, math.nan, 0.0, others=True)]
        drafted = drafted[:fits]
        columns = [Column("q", f"{METHODS.get(told.method, told.method)}: probability q of each token it proposes")]
        if drafted:
            box = _centred(area, bars.height(look, len(drafted)))
            bars.draw(painter, box, look, drafted, columns, "", top=1.0)

    def _position(self, painter: QPainter, area: QRect, look: Look) -> None:
        told, stage = self.walk.told, self.walk.stage
        one, greedy = told.verification.positions[stage.place], told.verification.greedy
        number = one.draw if stage.kind is Kind.TEST else told.last.draw
        drawing = number is not None
        low = ruler.height(look) if drawing else 0
        gap = look.px(14) if drawing else 0
        fits = min(_MOST, bars.fitting(look, area.height() - low - gap))
        if fits < 3 and drawing:  # the draw says more than bars that can't be read
            low, gap = ruler.height(look), 0
        shown = rows(one, fits) if fits >= 2 else []
        block = bars.height(look, len(shown)) + gap + low
        area = _centred(area, min(block, area.height()))
        if shown:
            mark = {Kind.LEFTOVER: REPLACE, Kind.BONUS: EXTRA}.get(stage.kind, "")
            best = greedy and stage.kind is Kind.TEST and not told.simulated
            bars.draw(painter, area, look, shown, self._columns(), mark, best=best)
        line = QRect(area.left(), area.bottom() + 1 - low, area.width(), low)
        if not drawing or number is None or line.top() < area.top():
            return
        if stage.kind is Kind.TEST:
            ruler.test(painter, line, look, chance(told, stage.place), number, "rate" if told.simulated else "p/q")
        else:
            kind = "left" if stage.kind is Kind.LEFTOVER else "p"
            every = rows(one, len(one.candidates) + 1)
            ruler.landing(painter, line, look, every, number, kind)

    def _columns(self) -> list[Column]:
        told, stage = self.walk.told, self.walk.stage
        target = f"target p, {distribution(told.verification)}"
        if stage.kind is Kind.BONUS:
            return [Column("p", target)]
        if stage.kind is Kind.LEFTOVER and not told.verification.greedy:
            return [
                Column("over", "p, hatched: what it has over q (outlined)"),
                Column("left", "max(0, p − q), renormalised"),
            ]
        draft = "draft q: it gives one token" if told.verification.certain else "draft q"
        return [Column("p", target), Column("q", draft)]

    def _output(self, painter: QPainter, area: QRect, look: Look) -> None:
        """The text with the pass's tokens in it, as it stands now."""
        told = self.walk.told
        font, line = look.font("headline"), look.line("headline")
        pitch, space = line + look.px(16), advance(font, " ")
        signs = {one.position: ACCEPT for one in told.drafted if one.verdict == ACCEPTED}
        signs[told.ending.position] = EXTRA if told.ending.verdict == BONUS else REPLACE
        new = [(text, signs.get(position, ACCEPT)) for position, text in sorted(told.kept.items())]
        items = [(word, "") for word in self.before[-600:].split()] + new
        placed = _flow(items, look, area.width(), space)
        while len(placed) > max(1, area.height() // pitch):
            placed = placed[1:]
        y = area.top() + max(0, (area.height() - pitch * len(placed)) // 2)
        for row in placed:
            for x, width, word, sign in row:
                box = QRect(area.left() + x, y, width, line + look.px(6))
                if not sign:
                    put(painter, box.left(), box.top(), box.height(), word, font, look.color("text_dim"))
                    continue
                token = "accepted" if sign == ACCEPT else LEFT
                painter.setPen(QPen(look.color(token), look.size * 2))
                painter.setBrush(look.theme.mix(token, 0.18))
                painter.drawRoundedRect(box, look.px(6), look.px(6))
                used = put(painter, box.left() + look.px(8), box.top(), box.height(), sign, look.font("brand"),
                           look.color(token))  # fmt: skip
                put(painter, box.left() + look.px(14) + used, box.top(), box.height(), word, font, look.color("text"))
            y += pitch

    # --- what stands below ---

    def _words(self, painter: QPainter, area: QRect, look: Look, said: Words) -> None:
        """The step with its numbers, then what it came to, large."""
        font = look.font("brand")
        y = area.top()
        for text in wrap(said.line, font, area.width())[:2]:
            write(painter, QRect(area.left(), y, area.width(), look.line("brand")), text, font, look.color("text"))
            y += look.line("brand")
        y += look.px(2)
        box = QRect(area.left(), y, area.width(), look.line("headline"))
        sign, token = self._verdict()
        x = box.left()
        if sign:
            x += put(painter, x, box.top(), box.height(), sign, look.font("headline"), look.color(token)) + look.px(10)
        x += put(painter, x, box.top(), box.height(), said.outcome, look.font("headline"), look.color(token))
        x += look.px(18)
        note = QRect(x, box.top() + look.px(4), area.right() - x, box.height() - look.px(4))
        write(painter, note, said.note, look.font("body"), look.color("text_dim"))

    def _verdict(self) -> tuple[str, str]:
        told, stage = self.walk.told, self.walk.stage
        if stage.kind is Kind.TEST:
            accepted = told.verification.positions[stage.place].verdict == ACCEPTED
            return (ACCEPT, "accepted") if accepted else (REJECT, "rejected")
        if stage.kind is Kind.LEFTOVER:
            return REPLACE, LEFT
        return (EXTRA, LEFT) if stage.kind is Kind.BONUS else ("", "text")

    def _trail(self, painter: QPainter, area: QRect, look: Look) -> None:
        """Where one is: the stages in a row, those behind filled."""
        self.hits = []
        stages, at, font = self.walk.stages, self.walk.at, look.font("strong")
        names = [stage.name for stage in stages]
        gap = look.px(10)
        if sum(advance(font, name) + look.px(18) for name in names) + gap * len(names) > area.width():
            names = [name.removeprefix("test ") for name in names]
        widths = [advance(font, name) + look.px(18) for name in names]
        if sum(widths) + gap * len(names) > area.width():  # a word where one is
            names = [f"{at + 1} of {len(names)}: {stages[at].name}"]
            write(painter, area, names[0], font, look.color("text"), CENTER)
            return
        x = area.left() + (area.width() - sum(widths) - gap * (len(names) - 1)) // 2
        tall = look.line("strong") + look.px(8)
        y = area.center().y() - tall // 2
        for place, (name, width) in enumerate(zip(names, widths, strict=True)):
            box = QRect(x, y, width, tall)
            if place == at:
                painter.setPen(Qt.PenStyle.NoPen)
                painter.setBrush(look.color("text"))
                painter.drawRoundedRect(box, tall / 2, tall / 2)
            ink = look.color("panel" if place == at else "text_dim" if place < at else "text_faint")
            write(painter, box, name, font, ink, CENTER)
            if place:
                painter.setPen(QPen(look.color("text_dim" if place <= at else "border"), look.size * 1.5))
                painter.drawLine(x - gap, box.center().y(), x - look.px(1), box.center().y())
            self.hits.append((box, place))
            x += width + gap


def _words_height(look: Look, width: int, said: Words) -> int:
    lines = min(2, max(1, len(wrap(said.line, look.font("brand"), width))))
    return lines * look.line("brand") + look.px(2) + look.line("headline")


def _centred(area: QRect, height: int) -> QRect:
    return QRect(area.left(), area.top() + max(0, (area.height() - height) // 2), area.width(), height)


def _flow(items: list[tuple[str, str]], look: Look, width: int, space: int) -> list[list[tuple[int, int, str, str]]]:
    """Words in lines: (x, width, word, sign) each. A word with a sign stands in a box."""
    font = look.font("headline")
    lines: list[list[tuple[int, int, str, str]]] = [[]]
    x = 0
    for text, sign in items:
        word = explain.visible(text) or "∅" if sign else text
        wide = metrics(font).horizontalAdvance(word)
        if sign:
            wide += advance(look.font("brand"), sign) + look.px(24)
        if x and x + wide > width:
            lines.append([])
            x = 0
        lines[-1].append((x, wide, word, sign))
        x += wide + (look.px(8) if sign else space)
    return lines
