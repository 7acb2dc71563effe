"""Lanes by output positions: a cell a token, curves where a lane was taken over, and who lives.

Dead branches are grey and end in a cross, living ones have their sequence's hue, the best path found is outlined
brightly. The prompt stands before the first position; while the request runs, the newest positions are in sight.
"""

from __future__ import annotations

from bisect import bisect_right

from PySide6.QtCore import QPoint, QPointF, QRect, Qt
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPen

from ui import explain
from ui.branch_moment import Moment
from ui.branches import Spot
from ui.paint.labels import CENTER, LEFT, paragraph, write
from ui.views.painted import PaintedView

PROMPT = 132  # pixels at text scale 1
LABEL = 58  # of a lane's name
NARROWEST, WIDEST = 26, 104  # a cell
GAP = 20  # between positions, where curves are
LOWEST, HIGHEST = 20, 58  # a row
CELL = 36  # the highest cell
RANK = 13  # from one rank to the next
LIVING, BRIGHT = 0.18, 0.34  # share of its hue in a living cell, and in one of the path that is lit


class BeamsGrid:
    """Draws a moment and remembers where its cells are.

    Attributes:
        hits: (box, cell) of each token drawn. names: (box, sequence) of each lane's name.
        scroll: pixels that the beginning is out of sight; None: the newest position is in sight, and once a search is
            over the end of the best it found. furthest: the most.
    """

    def __init__(self, view: PaintedView):
        self._view = view
        self.hits: list[tuple[QRect, Spot]] = []
        self.names: list[tuple[QRect, int]] = []
        self.scroll: int | None = None
        self.furthest = 0
        self.shown_from = 0  # the scroll in force
        self._lefts: list[int] = []
        self._widths: list[int] = []
        self._widths_of: object = None
        self._rows: dict[int, int] = {}
        self._high = 0
        self._role = "mono_small"

    def height(self, lanes: int, room: int) -> int:
        """What so many lanes take of the room."""
        view = self._view
        axis = view.line("mono_small") + view.theme.px(2)
        row = min(view.theme.px(HIGHEST), max(view.theme.px(LOWEST), (room - axis) // max(1, lanes)))
        return axis + row * lanes

    def draw(self, painter: QPainter, area: QRect, moment: Moment, lit: set[Spot]) -> None:
        view, theme, tree = self._view, self._view.theme, moment.tree
        self.hits, self.names = [], []
        axis = view.line("mono_small") + theme.px(2)
        lanes = sorted(tree.lanes)
        row = max(theme.px(8), (area.height() - axis) // max(1, len(lanes)))
        self._high = min(theme.px(CELL), max(theme.px(8), row - theme.px(6)))
        self._role = "mono" if self._high >= theme.px(30) else "mono_small"
        self._rows = {lane: area.top() + axis + i * row + row // 2 for i, lane in enumerate(lanes)}
        area, lanes = self._fit(painter, area, axis, row, lanes)
        label = theme.px(LABEL) if area.width() > theme.px(300) else theme.px(10)
        self._draw_names(painter, QRect(area.left(), area.top(), label, area.height()), moment, lanes)
        grid = area.adjusted(label, 0, 0, 0)
        self._place(grid, moment)
        painter.save()
        painter.setClipRect(grid)
        self._draw_axis(painter, grid, axis, moment)
        self._draw_prompt(painter, moment)
        first = max(0, bisect_right(self._lefts, grid.left()) - 2)
        last = min(moment.length, bisect_right(self._lefts, grid.right()))
        spots = [
            (lane, position)
            for position in range(first, last)
            for lane in lanes
            if (cell := tree.cell((lane, position))) is not None and cell.step <= moment.step
        ]
        spots.sort(key=lambda spot: (spot in moment.best or spot in lit, spot in moment.alive))
        for spot in spots:
            self._draw_line(painter, moment, spot, lit)
        for spot in spots:
            self._draw_cell(painter, moment, spot, lit)
        painter.restore()

    # --- where things are ---

    def _fit(self, painter: QPainter, area: QRect, axis: int, row: int, lanes: list[int]) -> tuple[QRect, list[int]]:
        """The lanes that there is room for, and the room that they take; below it stands how many are left out."""
        if axis + row * len(lanes) <= area.height() + row // 2:
            return area, lanes
        theme, note = self._view.theme, self._view.line()
        count = max(1, (area.height() - axis - note) // row)
        tall = axis + count * row
        words = f"{explain.count(len(lanes) - count, 'more lane')} in a higher view"
        box = QRect(area.left(), area.top() + tall, area.width(), min(note, area.height() - tall))
        write(painter, box, words, theme.font("small"), theme.color("text_faint"))
        return QRect(area.left(), area.top(), area.width(), tall), lanes[:count]

    def _place(self, grid: QRect, moment: Moment) -> None:
        """The left end of each position, and of the one after the last."""
        theme, gap = self._view.theme, self._view.theme.px(GAP)
        x, lefts = theme.px(PROMPT) + gap, []
        for width in self._measured(moment):
            lefts.append(x)
            x += width + gap
        lefts.append(x)
        ranks = max((len(r) for spot, r in moment.marks.items() if spot[1] == moment.length - 1), default=0)
        end = x - gap + max(theme.px(46), ranks * theme.px(RANK) + theme.px(8))  # the ranks stand after the last cells
        self.furthest = max(0, end - grid.width())
        wanted = self.scroll
        if wanted is None:
            wanted = self.furthest
            if moment.best:  # its end stands at two thirds, or where the beginning lets it
                wanted = lefts[max(position for _, position in moment.best) + 1] - grid.width() * 2 // 3
        self.shown_from = max(0, min(self.furthest, wanted))
        self._start = grid.left() - self.shown_from
        self._lefts = [self._start + left for left in lefts]

    def _measured(self, moment: Moment) -> list[int]:
        """Width of each position's cells. Kept where every lane has its token already."""
        view, theme, tree = self._view, self._view.theme, moment.tree
        key = (tree, self._role, theme.scale)
        if key != self._widths_of:
            self._widths, self._widths_of = [], key
        written = [len(lane.cells) for lane in tree.lanes.values() if not lane.ended]
        for position in range(max(0, min([len(self._widths), *written]) - 1), moment.length):
            texts = [shown(cell.text) for lane in tree.lanes if (cell := tree.cell((lane, position))) is not None]
            widest = max((view.advance(text, self._role) for text in texts), default=0)
            width = min(theme.px(WIDEST), max(theme.px(NARROWEST), widest + theme.px(12)))
            self._widths[position:] = [width]
        return self._widths[: moment.length]

    def reveal(self, path: list[Spot], width: int) -> None:
        """Scroll so that the end of a path stands in the middle of so many pixels."""
        if path:
            self.scroll = self._lefts[path[-1][1]] - self._start - width // 2

    def _box(self, spot: Spot) -> QRect:
        lane, position = spot
        width = self._lefts[position + 1] - self._lefts[position] - self._view.theme.px(GAP)
        return QRect(self._lefts[position], self._rows[lane] - self._high // 2, width, self._high)

    def _prompt_box(self) -> QRect:
        rows = self._rows.values()
        top, bottom = min(rows) - self._high // 2, max(rows) + self._high // 2
        return QRect(self._start, top, self._view.theme.px(PROMPT), bottom - top)

    # --- painting ---

    def _draw_names(self, painter: QPainter, area: QRect, moment: Moment, lanes: list[int]) -> None:
        view, theme, chosen = self._view, self._view.theme, self._view.context.selection.seq
        for lane in lanes:
            y = self._rows[lane]
            seq = moment.tree.lanes[lane].seq
            box = QRect(area.left(), y - self._high // 2, area.width(), self._high)
            self.names.append((box, seq))
            painter.fillRect(QRect(box.left(), box.top() + 2, theme.px(4), box.height() - 4), theme.sequence_color(seq))
            words = box.adjusted(theme.px(9), 0, -theme.px(4), 0)
            name = f"seq {seq}" if words.width() >= view.advance(f"seq {seq}", "mono_small") else str(seq)
            ink = "selection" if seq == chosen else "text_dim"
            write(painter, words, name, theme.font("mono_small"), theme.color(ink))

    def _draw_axis(self, painter: QPainter, grid: QRect, height: int, moment: Moment) -> None:
        view, theme, taken = self._view, self._view.theme, grid.left()
        font, ink = theme.font("mono_small"), theme.color("text_faint")
        title = QRect(self._start, grid.top(), theme.px(PROMPT), height)
        write(painter, title, "prompt", font, ink, CENTER)
        for position in range(moment.length):
            left, right = self._lefts[position], self._lefts[position + 1] - theme.px(GAP)
            word = str(position + 1)
            if (position == 0 or (position + 1) % 5 == 0) and left >= taken and right <= grid.right():
                width = max(right - left, view.advance(word, "mono_small"))
                write(painter, QRect(left, grid.top(), width, height), word, font, ink, CENTER)
                taken = left + width

    def _draw_prompt(self, painter: QPainter, moment: Moment) -> None:
        view, theme, tree = self._view, self._view.theme, moment.tree
        box = self._prompt_box()
        if box.right() < view.rect().left():
            return
        painter.setPen(QPen(theme.color("prefill"), 1))
        painter.setBrush(theme.mix("prefill", 0.12))
        painter.drawRoundedRect(box, theme.px(5), theme.px(5))
        inside = box.adjusted(theme.px(8), theme.px(4), -theme.px(8), -theme.px(4))
        line = view.line()
        lines = [(explain.count(tree.prompt_tokens, "token"), "strong", "prefill")]
        if moment.blocks is not None and moment.blocks.whole:
            shared = f"{explain.count(moment.blocks.whole, 'block')} in {len(tree.lanes)} tables"
            lines.append((shared, "small", "text"))
        used = 0
        for words, role, ink in lines:
            if inside.height() - used >= line:
                row = QRect(inside.left(), inside.top() + used, inside.width(), view.line(role))
                write(painter, row, words, theme.font(role), theme.color(ink), LEFT)
                used += row.height()
        rest = inside.adjusted(0, used + theme.px(3), 0, 0)
        if rest.height() >= line:
            words = explain.visible(tree.prompt) or "…"
            paragraph(painter, rest, words, theme.font("small"), theme.color("text_dim"), LEFT)

    def _draw_line(self, painter: QPainter, moment: Moment, spot: Spot, lit: set[Spot]) -> None:
        """From the cell before to this one."""
        box, before = self._box(spot), moment.tree.before(spot)
        if before is None:
            prompt = self._prompt_box()
            start = QPointF(prompt.right() + 1, self._rows[spot[0]])
        else:
            start = QPointF(self._box(before).right() + 1, self._rows[before[0]])
        end = QPointF(box.left(), self._rows[spot[0]])
        painter.setPen(self._pen(moment, spot, lit))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        if start.y() == end.y():
            painter.drawLine(start, end)
            return
        half = (end.x() - start.x()) * 0.55
        path = QPainterPath(start)
        path.cubicTo(start + QPointF(half, 0), end - QPointF(half, 0), end)
        painter.drawPath(path)

    def _pen(self, moment: Moment, spot: Spot, lit: set[Spot]) -> QPen:
        theme = self._view.theme
        if spot in lit:
            return QPen(theme.color("selection"), theme.px(2.5))
        if spot in moment.best and not lit:
            return QPen(theme.color("selection"), theme.px(2.5))
        if spot in moment.alive:
            return QPen(self._hue(moment, spot), theme.px(1.5))
        return QPen(theme.mix("text_faint", 0.45), 1)

    def _hue(self, moment: Moment, spot: Spot) -> QColor:
        return self._view.theme.sequence_color(moment.tree.lanes[spot[0]].seq)

    def _draw_cell(self, painter: QPainter, moment: Moment, spot: Spot, lit: set[Spot]) -> None:
        view, theme = self._view, self._view.theme
        cell, box = moment.tree.cell(spot), self._box(spot)
        assert cell is not None
        self.hits.append((box, spot))
        bright = spot in lit or (spot in moment.best and not lit)
        lives = spot in moment.alive
        if lives or bright:
            hue, panel = self._hue(moment, spot), theme.color("panel")
            painter.setPen(QPen(theme.color("selection"), theme.px(1.5)) if bright else QPen(blend(hue, panel, 0.7), 1))
            painter.setBrush(blend(hue, panel, BRIGHT if bright else LIVING))
        else:
            painter.setPen(QPen(theme.mix("text_faint", 0.30), 1))
            painter.setBrush(theme.color("panel"))
        painter.drawRoundedRect(box.adjusted(0, 0, -1, -1), theme.px(4), theme.px(4))
        ink = theme.color("text" if lives or bright else "text_faint")
        inside = box.adjusted(theme.px(4), 0, -theme.px(4), 0)
        write(painter, inside, shown(cell.text), theme.font(self._role), ink, CENTER)
        ranks = moment.marks.get(spot)
        if ranks:
            self._draw_ranks(painter, box, ranks)
        elif spot not in moment.ends and not moment.continued(spot):
            self._draw_cross(painter, QPoint(box.right() + theme.px(5), box.center().y()))
        if view.context.selection.seq == moment.tree.lanes[spot[0]].seq and spot in moment.ends:
            painter.fillRect(QRect(box.left(), box.bottom() + 1, box.width(), theme.px(2)), theme.color("selection"))

    def _draw_cross(self, painter: QPainter, middle: QPoint) -> None:
        """A branch that nobody continued: a shape beside its grey."""
        theme, arm = self._view.theme, self._view.theme.px(2.5)
        painter.setPen(QPen(theme.color("text_faint"), theme.px(1.2)))
        painter.drawLine(middle + QPoint(-arm, -arm), middle + QPoint(arm, arm))
        painter.drawLine(middle + QPoint(-arm, arm), middle + QPoint(arm, -arm))

    def _draw_ranks(self, painter: QPainter, box: QRect, ranks: list[int]) -> None:
        """After the last cell of each sequence found: its place among them."""
        theme = self._view.theme
        size = min(theme.px(16), box.height())
        x = box.right() + theme.px(3)
        for rank in ranks:
            spot = QRect(x, box.center().y() - size // 2, size, size)
            first = rank == 0
            painter.setPen(QPen(theme.color("selection" if first else "text_faint"), 1))
            painter.setBrush(theme.color("selection" if first else "panel"))
            painter.drawEllipse(spot)
            ink = theme.color("panel" if first else "text_dim")
            write(painter, spot.adjusted(-2, 0, 2, 0), str(rank + 1), theme.font("mono_small"), ink, CENTER)
            x += min(size, theme.px(RANK))


def shown(text: str) -> str:
    """A token's text in a cell; an unfinished character has none yet."""
    return explain.visible(text) if text else "…"


def blend(color: QColor, surface: QColor, share: float) -> QColor:
    """`share` of a colour over a surface, opaque."""
    pairs = zip(color.getRgb()[:3], surface.getRgb()[:3], strict=True)
    return QColor(*(round(a * share + b * (1 - share)) for a, b in pairs))
