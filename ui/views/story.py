"""Both runs of a story on one plot: small multiples over the seconds since each run began."""

from __future__ import annotations

from PySide6.QtCore import QRect
from PySide6.QtGui import QPainter

from ui.changes import Kinds
from ui.contracts import StoryPanel, StoryShown
from ui.labels import PART
from ui.paint.labels import advance, metrics, write
from ui.paint.two_runs import Run, draw, span
from ui.story_strip import RUNS
from ui.views.painted import PaintedView


class StoryView(PaintedView):
    """Closed until a story is over or its curves are asked for."""

    key = "story"
    title = "Story"
    what_if = True
    kinds = Kinds.STEPS | Kinds.SOURCE | Kinds.THEME
    rate = 5.0
    aside = True

    def refresh(self, kinds: Kinds) -> None:
        shown = self.context.stories.shown
        self.summarise(f"{shown.title}{PART}{shown.names[0]} and {shown.names[1]}" if shown else "")
        self.update()

    def draw(self, painter: QPainter, area: QRect) -> None:
        px = self.theme.px
        shown = self.context.stories.shown
        inside = area.adjusted(px(12), px(4), -px(12), -px(8))
        if shown is None:
            hint = "Press 1 to 8 to tell one, S for the list. It runs the same requests under two settings."
            self.draw_empty(painter, inside, "No story is being told", hint)
            return
        if not shown.panels:
            self.draw_empty(painter, inside, shown.title, "The curves come with the first run.")
            return
        used = self._head(painter, inside, shown)
        grid = inside.adjusted(0, used + px(8), 0, 0)
        for box, panel in zip(self._boxes(grid, len(shown.panels)), shown.panels, strict=True):
            self._panel(painter, box, panel, shown)

    def _head(self, painter: QPainter, area: QRect, shown: StoryShown) -> int:
        """Which colour is which; the verdict stands in the strip. Returns the height used."""
        theme, px = self.theme, self.theme.px
        row = QRect(area.left(), area.top(), area.width(), self.line("strong"))
        x = row.left()
        for index, name in enumerate(shown.names):
            painter.fillRect(QRect(x, row.center().y() - px(1), px(18), px(3)), theme.color(RUNS[index]))
            x += px(24)
            x += write(painter, row.adjusted(x - row.left(), 0, 0, 0), name, theme.font("strong"),
                       theme.color(RUNS[index])) + px(20)  # fmt: skip
        words = "time since each run began, on the engine's clock"
        if shown.note:
            words = f"{shown.note}{PART}{words}"
        write(painter, row.adjusted(x - row.left(), 0, 0, 0), words, theme.font("small"), theme.color("text_faint"))
        return row.height()

    def _boxes(self, area: QRect, count: int) -> list[QRect]:
        """Two by two where there is room, else one below the other or side by side."""
        gap = self.theme.px(16)
        across = 2 if count > 1 and area.width() >= self.theme.px(480) else 1
        if across == 2 and area.height() < self.theme.px(280):
            across = count
        down = -(-count // across)
        wide, high = (area.width() - gap * (across - 1)) // across, (area.height() - gap * (down - 1)) // down
        return [
            QRect(area.left() + i % across * (wide + gap), area.top() + i // across * (high + gap), wide, high)
            for i in range(count)
        ]

    def _panel(self, painter: QPainter, box: QRect, panel: StoryPanel, shown: StoryShown) -> None:
        theme, px = self.theme, self.theme.px
        strong, body = theme.font("strong"), theme.font("body")
        line = metrics(strong).height()
        head = QRect(box.left(), box.top(), box.width(), line)
        told = write(painter, head, panel.title, strong, theme.color("text"))
        needed = sum(advance(body, fact) + px(14) for fact in panel.facts)
        crowded = told + needed > box.width()
        below = crowded and box.height() >= px(130)  # a line of their own; in a low plot the curves need it more
        x = box.left() if below else box.right() + 1 + px(14) - needed
        for index, fact in enumerate(panel.facts if below or not crowded else ()):
            room = QRect(x, head.bottom() + 1 if below else head.top(), box.right() + 1 - x, line)
            x += write(painter, room, fact, body, theme.color(RUNS[index])) + px(14)
        runs = [
            Run(name, curve.times, curve.values, theme.color(colour))
            for name, curve, colour in zip(shown.names, panel.curves, RUNS, strict=False)
        ]
        every = [Run("", c.times, c.values, theme.color("text")) for p in shown.panels for c in p.curves]
        plot = box.adjusted(0, (2 if below else 1) * line + px(6), 0, 0)
        draw(painter, plot, theme, runs, panel.kind == "dots", span(every), panel.unit, panel.top)
