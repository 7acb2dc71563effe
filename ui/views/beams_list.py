"""What the lanes of a request say: while they run a line each, and at the end of a search what it found, best first."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QRect
from PySide6.QtGui import QColor, QPainter

from ui import explain
from ui.branches import Spot, Tree
from ui.paint.labels import LEFT, RIGHT, write
from ui.views.painted import PaintedView


@dataclass(frozen=True, slots=True)
class Line:
    """One sequence of tokens: a lane's so far, or one that was found."""

    name: str
    figures: tuple[str, ...]
    text: str
    path: list[Spot]
    seq: int  # whose hue it has
    best: bool = False


HEADS_FOUND = ("", "score", "Σ log p", "tokens", "end")
HEADS_LANES = ("", "tokens", "")


def lines_of(tree: Tree, step: int, ends: set[Spot]) -> tuple[tuple[str, ...], list[Line]]:
    """The columns' names, and a line each."""
    if tree.over and step >= tree.over:
        found = []
        for rank, (hypothesis, path) in enumerate(zip(tree.found, tree.paths, strict=True)):
            lane = path[-1][0] if path else min(tree.lanes)
            figures = (
                f"{hypothesis.score:.3f}".replace("-", "−"),
                f"{hypothesis.log_probability:.3f}".replace("-", "−"),
                f"{len(hypothesis.token_ids):,}",
                hypothesis.reason,
            )
            text = explain.visible(hypothesis.text)
            found.append(Line(str(rank + 1), figures, text, path, tree.lanes[lane].seq, rank == 0))
        return HEADS_FOUND, found
    lines = []
    for end in sorted(ends):
        lane, path = tree.lanes[end[0]], tree.path(end)
        state = lane.reason if lane.ended and lane.ended <= step else ""
        text = explain.visible(tree.text(path))
        lines.append(Line(f"seq {lane.seq}", (f"{end[1] + 1:,}", state), text, path, lane.seq))
    return HEADS_LANES, lines


class BeamsList:
    """Draws the lines and remembers where they are.

    Attributes:
        hits: (box, path) of each line drawn.
    """

    def __init__(self, view: PaintedView):
        self._view = view
        self.hits: list[tuple[QRect, list[Spot]]] = []

    def height(self, lines: int) -> int:
        return (lines + 1) * self._step if lines else 0

    @property
    def _step(self) -> int:
        return self._view.line("mono_small") + self._view.theme.px(5)

    def draw(self, painter: QPainter, area: QRect, heads: tuple[str, ...], lines: list[Line], lit: int | None) -> None:
        """`lit`: the line that is pointed at."""
        view, theme = self._view, self._view.theme
        self.hits = []
        rows = [(line.name, *line.figures) for line in lines]
        pad = theme.px(14)
        widths = [max(view.advance(row[i], "mono_small") for row in (heads, *rows)) + pad for i in range(len(heads))]
        y = area.top()
        self._cells(painter, area, y, heads, "text of the sequence", widths, theme.color("text_faint"))
        for index, (line, row) in enumerate(zip(lines, rows, strict=True)):
            y += self._step
            if y + self._step > area.bottom() + 1:
                return
            box = QRect(area.left(), y, area.width(), self._step)
            self.hits.append((box, line.path))
            if index == lit:
                painter.fillRect(box.adjusted(-theme.px(4), 0, theme.px(4), 0), theme.color("hover"))
            mark = QRect(area.left(), y + theme.px(2), theme.px(4), self._step - theme.px(4))
            painter.fillRect(mark, theme.color("selection") if line.best else theme.sequence_color(line.seq))
            ink = theme.color("text" if line.best else "text_dim")
            self._cells(painter, area, y, row, line.text, widths, ink)

    def _cells(
        self, painter: QPainter, area: QRect, y: int, row: tuple[str, ...], text: str, widths: list[int], ink: QColor
    ) -> None:
        """One line of the table: the name from the left, figures from the right, then the text."""
        theme = self._view.theme
        font, x, gap = theme.font("mono_small"), area.left() + theme.px(9), theme.px(14)
        for index, (word, width) in enumerate(zip(row, widths, strict=True)):
            write(painter, QRect(x, y, width - gap, self._step), word, font, ink, RIGHT if index else LEFT)
            x += width
        room = max(0, area.right() - x)
        fits = room // max(1, self._view.advance("0", "mono_small"))  # all characters are as wide
        if len(text) > fits > 3:  # sequences begin alike: what tells them apart is at their end
            text = f"…{text[len(text) - fits + 1 :]}"
        write(painter, QRect(x, y, room, self._step), text, font, ink)
