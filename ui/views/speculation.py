"""Drafted tokens: the last passes as chips, how much is accepted at which position, and whether it pays.

While the engine runs fast the rows and figures change four times a second, so that they can be read; paused,
slowed or pinned they are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtGui import QPainter, QPixmap

from ui import explain
from ui.changes import Kinds
from ui.context import ViewContext
from ui.history import Pass
from ui.paint.labels import layer
from ui.payoff import Payoff, measure
from ui.views import acceptance, payoff_card
from ui.views.acceptance import Counts
from ui.views.pace import Pace
from ui.views.painted import PaintedView
from ui.views.pass_rows import PassRows

WINDOW = 200  # steps that acceptance and pay-off are measured over
METHODS = {"ngram": "n-gram"}
HINTS = {
    "off": "raise the draft length γ to see tokens drafted and verified here",
    "method_off": "switch drafts on to see them verified here",
    "no_matches": "text that repeats itself (code, lists, quotations) gives n-grams to match",
}


@dataclass(frozen=True)
class Shown:
    """What is on the screen until the next look."""

    passes: list[Pass]
    counts: Counts
    figures: Payoff


class SpeculationView(PaintedView):
    """Hovering a chip explains its decision; clicking a row chooses its sequence.

    Attributes:
        shown: what is drawn, for one moment; None before the first step.
    """

    key = "speculation"
    title, short = "Speculation", "Drafts"
    kinds = Kinds.DRAFTS | Kinds.STEPS | Kinds.SETTINGS | Kinds.CURSOR | Kinds.SELECTION | Kinds.THEME | Kinds.SOURCE

    rate = 10.0

    def __init__(self, context: ViewContext, parent=None):
        super().__init__(context, parent)
        self.shown: Shown | None = None
        self.rows = PassRows(self)
        self._pace = Pace()
        self._picture: QPixmap | None = None
        self._figures: list[tuple[QRect, str]] = []
        self._lit: QRect | None = None

    def refresh(self, kinds: Kinds) -> None:
        if self._pace.due(self.context) or kinds & (Kinds.SELECTION | Kinds.THEME | Kinds.SETTINGS | Kinds.CURSOR):
            self._look()
            self._repaint()

    def _repaint(self) -> None:
        self._picture = None
        self.update()

    def _look(self) -> None:
        cursor, history = self.context.cursor, self.context.mirror.history
        settings, step = cursor.state.settings, cursor.step
        if settings is None or not history.last:
            self.shown = None
            self.summarise("")
            return
        gamma, method = settings.draft_length, settings.draft_method
        columns = history.slice(max(history.first, step - WINDOW + 1), step)
        examined, accepted = history.acceptance(WINDOW, step)
        figures = measure(columns, examined, accepted, gamma, method)
        off = method == "off" or gamma == 0
        # a row is a line of text high at least; more than fit are never asked for
        fits = max(1, self.height() // self.line())
        passes = list(islice(history.passes.until(step), fits))
        self.shown = Shown(passes, Counts(examined, accepted, 0 if off else gamma, WINDOW), figures)
        words = "drafts off" if off else f"{METHODS.get(method, method)} · γ {gamma}"
        if figures.passes:
            words += f" · {figures.tokens_per_pass:.2f} tokens per pass"
        self.summarise(words)

    # --- painting ---

    def draw(self, painter: QPainter, area: QRect) -> None:
        theme = self.theme
        inner = area.adjusted(theme.px(12), theme.px(4), -theme.px(12), -theme.px(10))
        if self.shown is None:
            self.draw_empty(painter, inner, "No pass yet", "Drafted tokens appear here as the engine verifies them.")
            return
        if self._picture is None:
            picture = layer(self, self.size())
            inside = QPainter(picture)
            try:
                inside.setRenderHint(QPainter.RenderHint.Antialiasing)
                self._draw_all(inside, inner, self.shown)
            finally:
                inside.end()
            self._picture = picture
        painter.drawPixmap(0, 0, self._picture)
        if self._lit is not None:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(theme.pen("selection"))
            radius = self._lit.height() / 2
            painter.drawRoundedRect(self._lit.adjusted(0, 0, -1, -1), radius, radius)

    def _draw_all(self, painter: QPainter, inner: QRect, shown: Shown) -> None:
        px = self.theme.px
        self.rows.hits, self.rows.rows = [], []
        card = payoff_card.draw(self, painter, inner, shown.figures)
        headline, because = explain.payoff(shown.figures)
        self._figures = [(card, f"<p><b>{headline}</b></p><p>{because}</p>")]
        above = QRect(inner.left(), inner.top(), inner.width(), card.top() - inner.top() - px(8))
        if above.height() < self.line():
            return
        side = min(px(320), max(px(206), above.width() * 36 // 100))
        left, figures = above, QRect()
        if above.width() >= px(420):
            left = above.adjusted(0, 0, -side - px(16), 0)
            figures = above.adjusted(above.width() - side, 0, 0, 0)
        elif above.height() >= px(260):
            left = above.adjusted(0, 0, 0, -above.height() // 2)
            figures = above.adjusted(0, left.height() + px(8), 0, 0)
        if figures.isValid():
            self._figures += acceptance.draw(self, painter, figures, shown.counts, shown.figures)
        if shown.passes:
            self.rows.draw(painter, left, shown.passes, self.context.selection.seq)
        elif left.height() > 3 * self.line():
            hint = HINTS.get(shown.figures.state, "passes appear here as soon as a draft is verified")
            self.draw_empty(painter, left, "No pass to show", hint)

    # --- Qt ---

    def mouseMoveEvent(self, event) -> None:
        at = event.position().toPoint()
        chip = next((hit for hit in self.rows.hits if hit[0].contains(at)), None)
        other = next((hit for hit in self._figures if hit[0].contains(at)), None)
        self.tip(at, chip[1]() if chip else other[1] if other else "")
        self._light(chip[0] if chip else None)

    def leaveEvent(self, event) -> None:
        super().leaveEvent(event)
        self._light(None)

    def _light(self, box: QRect | None) -> None:
        if box != self._lit:
            self._lit = box
            self.update()

    def mousePressEvent(self, event) -> None:
        at: QPoint = event.position().toPoint()
        seq = next((seq for box, seq in self.rows.rows if box.contains(at)), None)
        if seq is not None and event.button() == Qt.MouseButton.LeftButton:
            self.context.selection.toggle(seq)

    def resizeEvent(self, event) -> None:
        self._pace.reset()
        self._lit = None
        if self.shown is not None:
            self._look()
        self._repaint()
