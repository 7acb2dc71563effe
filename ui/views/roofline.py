"""The roofline: how much arithmetic each step does for a byte that it moves, how fast, under what its device allows.

Where a step stands says what would make it faster: left of the ridge more tokens at once cost nearly nothing, right of
it they cost their time. In words at the top, what binds it first; beside it one stream's ceiling, and what it really
gets.
"""

from __future__ import annotations

from PySide6.QtCore import QPoint, QPointF, QRect, Qt
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QWidget

from ui import simulated
from ui.changes import Kinds
from ui.context import ViewContext
from ui.contracts import Provenance
from ui.paint.labels import badge, wrap, write
from ui.roofline import DECODES, PREFILLS, VERIFIES, Shown, few, look, sentence, si, tell, verdict
from ui.views.painted import PaintedView
from ui.views.pinning import Pinning
from ui.views.roofline_chart import RooflineChart
from ui.views.roofline_figures import draw_figures, figures, in_a_line
from ui.views.roofline_marks import WORDS, outline

SIDE, WIDE, HIGH = 250, 700, 250  # pixels at text scale 1: the figures' column; what it needs beside and under it
LARGE, MIDDLE, LOW = 420, 240, 160  # of height, from which on the verdict is so large; lower, a sentence says it


class RooflineView(PaintedView):
    """Hovering tells a step, a click pins it.

    Attributes:
        shown: what is drawn. chart: where. told: what it says in words.
    """

    key = "roofline"
    title = "Roofline"
    kinds = Kinds.STEPS | Kinds.SETTINGS | Kinds.SOURCE | Kinds.CURSOR | Kinds.THEME
    rate = 10.0
    aside = True

    def __init__(self, context: ViewContext, parent: QWidget | None = None):
        super().__init__(context, parent)
        self.shown: Shown | None = None
        self.told = ""
        self._verdict = ("", "")
        self.chart = RooflineChart(self)
        self._hovered: int | None = None  # a step
        self._pinning = Pinning(context.cursor)

    @property
    def provenance(self) -> Provenance:
        source = self.context.source.provenance
        if self.shown is not None and self.shown.roof is None and self.context.mirror.ready is not None:
            return "unavailable"
        return "derived" if source == "measured" else source  # work is counted, only its time is measured

    def refresh(self, kinds: Kinds) -> None:
        mirror, cursor = self.context.mirror, self.context.cursor
        self.shown = look(mirror.history, mirror.roofs, cursor.step, cursor.is_live)
        self.summarise(self._brief())
        idle = not cursor.state.sequences
        self.told, self._verdict = sentence(self.shown, idle), verdict(self.shown, idle)
        self.update()

    def _brief(self) -> str:
        """Of the roof: where the batch stands under it is said in larger letters below."""
        roof = self.shown.roof if self.shown else None
        if roof is None or not roof.known:
            return ""
        return f"{si(roof.bandwidth, 'B/s')}, {si(roof.flops, 'FLOP/s')} · ridge {few(roof.ridge)} FLOP a byte"

    # --- painting ---

    def draw(self, painter: QPainter, area: QRect) -> None:
        theme, shown = self.theme, self.shown
        inner = area.adjusted(theme.px(12), theme.px(6), -theme.px(12), -theme.px(8))
        if shown is None or shown.roof is None or shown.points is None:
            self.chart.plot = QRect()
            self.draw_empty(painter, inner, *self._missing())
            return
        y = self._say(painter, inner)
        line = self.line()
        aside = inner.width() >= theme.px(WIDE) and inner.bottom() - y >= theme.px(HIGH)
        told = figures(self, shown)
        room = QRect(inner.left(), y, inner.width(), inner.bottom() - y)
        if aside:
            column = QRect(room.right() - theme.px(SIDE), room.top(), theme.px(SIDE), room.height())
            room.setRight(column.left() - theme.px(24))
            draw_figures(painter, self, column, told)
        elif room.height() >= theme.px(110):
            write(painter, QRect(room.left(), room.top(), room.width(), line), in_a_line(told), theme.font("small"),
                  theme.color("text_dim"))  # fmt: skip
            room.setTop(room.top() + line + theme.px(4))
        if room.height() >= theme.px(140):
            self._keys(painter, QRect(room.left(), room.top(), room.width(), line))
            room.setTop(room.top() + line + theme.px(6))
        self.chart.draw(painter, room, shown, self._index())

    def _role(self, inner: QRect, words: str) -> str:
        """The largest font in which the words are one line, or as large as the height bears."""
        for role, high in (("headline", LARGE), ("brand", MIDDLE), ("title", LOW)):
            fits = self.advance(words, role) <= inner.width() - self.theme.px(40) or role == "title"
            if fits and inner.height() >= self.theme.px(high):
                return role
        return "body"

    def _missing(self) -> tuple[str, str]:
        if self.context.mirror.ready is None:
            return "No engine yet", "What its device allows comes with it; then every step finds its place under it."
        return (
            "Nothing is known of this device",
            "This source doesn't say how fast the device reads and multiplies, nor what its model makes a step move: "
            "there is no roof to stand under.",
        )

    def _say(self, painter: QPainter, inner: QRect) -> int:
        """The verdict and, where there is room, what it is of in smaller letters, after the mark of what it speaks of;
        returns where it ends."""
        theme, left = self.theme, inner.left()
        assert self.shown is not None
        told, rest = self._verdict
        if inner.height() < theme.px(LOW):
            whole = self.advance(self.told, "body") <= inner.width() - theme.px(40)
            told, rest = self.told if whole else told, ""
        role = self._role(inner, told)
        font, step = theme.font(role), self.line(role)
        if self.shown.here is not None:
            size = theme.px(13)
            middle = QPointF(left + size / 2 + theme.px(2), inner.top() + step / 2 + 0.5)
            outline(painter, self, self.shown.here.kind, middle, size, "selection")
            left += size + theme.px(12)
        lines = wrap(told, font, inner.right() - left)
        most = 2 if inner.height() >= theme.px(130) else 1
        if len(lines) > most:
            lines = [*lines[: most - 1], " ".join(lines[most - 1 :])]
        for index, text in enumerate(lines):
            box = QRect(left, inner.top() + index * step, inner.right() - left, step)
            write(painter, box, text, font, theme.color("text"))
        y = inner.top() + len(lines) * step
        if rest:
            role = "body" if inner.height() >= theme.px(LARGE) else "small"
            write(painter, QRect(left, y, inner.right() - left, self.line(role)), rest, theme.font(role),
                  theme.color("text_dim"))  # fmt: skip
            y += self.line(role)
        return y + theme.px(8)

    def _keys(self, painter: QPainter, row: QRect) -> None:
        theme, small, dim = self.theme, self.theme.font("small"), self.theme.color("text_dim")
        roof = self.shown.roof if self.shown else None
        tag = self.provenance
        used = badge(painter, row.right() + 1, row.top(), row.height(), tag, small, theme.color(tag)) + theme.px(8)
        x, right, middle = row.left(), row.right() - used, row.center().y()
        for kind in (DECODES, VERIFIES, PREFILLS):
            words = WORDS[kind]
            if x + self.chart.marks.side + theme.px(4) + self.advance(words) > right:
                return
            x += self.chart.marks.key(painter, x, middle, kind) + theme.px(4)
            x += write(painter, QRect(x, row.top(), right - x, row.height()), words, small, dim) + theme.px(14)
        if roof is not None and roof.known and roof.bandwidth_share < 1:
            words = (
                f"what good programs reach: {100 * roof.bandwidth_share:.0f} % of the bandwidth, "
                f"{100 * roof.flops_share:.0f} % of the products"
            )
            if x + theme.px(28) + self.advance(words) <= right:
                pen = theme.pen("limit", max(1, theme.px(1.2)))
                pen.setStyle(Qt.PenStyle.DashLine)
                painter.setPen(pen)
                painter.drawLine(x, middle, x + theme.px(22), middle)
                x += theme.px(28)
                x += write(painter, QRect(x, row.top(), right - x, row.height()), words, small, dim) + theme.px(14)
        words = "older steps are paler"
        if x + self.advance(words) <= right:
            write(painter, QRect(x, row.top(), right - x, row.height()), words, small, theme.color("text_faint"))

    @property
    def simulated_drafts(self) -> bool:
        return bool(simulated.rates(self.context.cursor.state))

    # --- the mouse ---

    def _index(self) -> int | None:
        """Of the hovered step among those drawn."""
        if self._hovered is None or self.shown is None or self.shown.points is None:
            return None
        steps = self.shown.points.step
        at = int(steps.searchsorted(self._hovered))
        return at if at < len(steps) and steps[at] == self._hovered else None

    def _under(self, at: QPoint) -> int | None:
        return self.chart.nearest(at) if not self.chart.plot.isEmpty() else None

    def mouseMoveEvent(self, event) -> None:
        at = event.position().toPoint()
        index = self._under(at)
        if index is None or self.shown is None or self.shown.points is None or self.shown.roof is None:
            hovered, text = None, ""
        else:
            hovered, text = int(self.shown.points.step[index]), tell(self.shown.points, index, self.shown.roof)
        self.tip(at, text)
        if hovered != self._hovered:
            self._hovered = hovered
            self.update()

    def mousePressEvent(self, event) -> None:
        self._pinning.pressed()
        index = self._under(event.position().toPoint())
        if event.button() != Qt.MouseButton.LeftButton or index is None or self.shown is None:
            return
        self.context.cursor.pin(int(self.shown.points.step[index]))

    def mouseDoubleClickEvent(self, event) -> None:
        self._pinning.double_clicked(event)

    def leaveEvent(self, event) -> None:
        super().leaveEvent(event)
        self._hovered = None
        self.update()
