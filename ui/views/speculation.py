"""Drafted tokens: the last passes as chips, what became of them, where the time goes, and whether it pays.

While the engine runs fast the rows and figures change four times a second, so that they can be read; paused, slowed
or pinned they are exact, and scrolled rows hold still. In a filled window everything is larger, for an audience.
"""

from __future__ import annotations

from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtGui import QPainter, QPixmap
from PySide6.QtWidgets import QPushButton

from ui import draft_words
from ui.changes import Kinds
from ui.context import ViewContext
from ui.contracts import Provenance
from ui.paint.labels import write
from ui.payoff import Payoff
from ui.theme import Theme
from ui.views import acceptance, cost_bars, crossover_chart, payoff_card, speculation_places
from ui.views.pace import Pace
from ui.views.painted import PaintedView
from ui.views.pass_rows import PassRows
from ui.views.speculation_places import Places
from ui.views.speculation_shown import Said, Shown, look

LARGER = 1.25  # chips against the text around them, on a stage


class SpeculationView(PaintedView):
    """Hovering a chip explains its decision; clicking a row chooses its sequence; the wheel scrolls the passes.

    Attributes:
        shown: what is drawn, for one moment; None before the first step.
        measure: alternates γ with 0, so that the speed-up is measured.
    """

    key = "speculation"
    title, short = "Speculation", "Drafts"
    kinds = Kinds.DRAFTS | Kinds.STEPS | Kinds.SETTINGS | Kinds.CURSOR | Kinds.SELECTION | Kinds.THEME | Kinds.SOURCE

    rate = 10.0

    def __init__(self, context: ViewContext, parent=None):
        super().__init__(context, parent)
        self.shown: Shown | None = None
        self.rows = PassRows(self)
        self.measure = QPushButton("Measure", self)
        self.measure.setCheckable(True)
        self.measure.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.measure.setToolTip("Run 32 of every 256 steps without drafts, and so measure what drafting gains")
        self.measure.clicked.connect(self._toggle)
        self.measure.hide()
        self._button = QRect()
        self._form: speculation_places.Form = "dock"
        self._large: Theme | None = None
        self._pace = Pace()
        self._picture: QPixmap | None = None
        self._stale = True
        self._figures: list[tuple[QRect, str]] = []
        self._lit: QRect | None = None

    @property
    def provenance(self) -> Provenance:
        settings = self.context.cursor.state.settings
        return "simulated" if settings and settings.simulated_acceptance else super().provenance

    def source_of(self, tag: str) -> str:
        return "simulated" if self.shown is not None and self.shown.simulated else super().source_of(tag)

    def refresh(self, kinds: Kinds) -> None:
        if self._pace.due(self.context) or kinds & (Kinds.SELECTION | Kinds.THEME | Kinds.SETTINGS | Kinds.CURSOR):
            self._dress()
            self._look()
            self._repaint()

    def _repaint(self) -> None:
        """The picture is made here, not in a paint event: the button moves with it."""
        self._stale = not self.isVisible() or self.shown is None
        if not self._stale:
            self._picture = self._render()
        self._place_button()
        self.update()

    def _dress(self) -> None:
        """On a stage the text grows with the room."""
        base = self.context.theme
        self._form = speculation_places.form(self.width(), self.height(), base.scale)
        scale = base.scale
        if self._form == "stage":
            scale = speculation_places.stage_scale(self.width(), self.height(), base.scale)
        if scale == base.scale:
            self.theme = base
            return
        if self._large is None or (self._large.name, self._large.scale) != (base.name, scale):
            self._large = Theme(base.name, scale, largest=scale)
        self.theme = self._large

    def _look(self) -> None:
        # who has scrolled down reads on undisturbed
        held = self.shown.passes if self.shown and self.rows.first and self.context.cursor.is_live else None
        self.shown = look(self.context, held)
        self.summarise(self.shown.summary if self.shown else "")

    # --- painting ---

    def draw(self, painter: QPainter, area: QRect) -> None:
        theme = self.theme
        if self.shown is None:
            hint = "Drafted tokens appear here as the engine verifies them."
            self.draw_empty(painter, self._inner(area), "No pass yet", hint)
            return
        if self._stale or self._picture is None:
            self._picture, self._stale = self._render(), False
        painter.drawPixmap(0, 0, self._picture)
        if self._lit is not None:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(theme.pen("selection", 2))
            radius = self._lit.height() / 5
            painter.drawRoundedRect(self._lit.adjusted(0, 0, -1, -1), radius, radius)

    def _render(self) -> QPixmap:
        assert self.shown is not None
        picture, ratio = self._picture, self.devicePixelRatioF()
        if picture is None or picture.size() != self.size() * ratio:
            picture = QPixmap(self.size() * ratio)
            picture.setDevicePixelRatio(ratio)
        picture.fill(self.theme.color("panel"))  # opaque: copied, not blended
        painter = QPainter(picture)
        try:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            self._draw_all(painter, self._inner(self.rect()), self.shown)
        finally:
            painter.end()
        return picture

    def _inner(self, area: QRect) -> QRect:
        px = self.theme.px
        return area.adjusted(px(12), px(4), -px(12), -px(10))

    def _draw_all(self, painter: QPainter, inner: QRect, shown: Shown) -> None:
        px, figures, said = self.theme.px, shown.figures, shown.said
        self.rows.clear()
        staged = self._form == "stage"
        band = payoff_card.band_height(self, inner.width(), said)
        if band and inner.height() < px(170):  # no room for both: what is wrong comes first
            assert said.loud is not None
            band = 0
            if said.loud[2] != "simulated":
                said = Said(said.loud[0], said.loud[1], said.loud, tone=said.loud[2])
        spare = self._button_room(inner)
        if band and staged:
            payoff_card.draw_band(self, painter, QRect(inner.left(), inner.top(), inner.width(), band), said)
            inner = inner.adjusted(0, band + px(8), 0, 0)
        card = payoff_card.draw(self, painter, inner, figures, said, staged, spare)
        if band and not staged:
            box = QRect(inner.left(), card.top() - px(6) - band, inner.width(), band)
            payoff_card.draw_band(self, painter, box, said)
            card_top = box.top()
        else:
            card_top = card.top()
        self._button = self._button_box(card) if spare else QRect()
        headline, because = draft_words.payoff(figures, shown.simulated)
        story = draft_words.formula_story(figures)
        self._figures = [(card, f"<p><b>{headline}</b></p><p>{because}</p><p>{story}</p>")]
        area = QRect(inner.left(), inner.top(), inner.width(), card_top - inner.top() - px(8))
        if staged:
            area = inner.adjusted(0, card.height() + px(14), 0, 0)
        if area.height() >= self.line():
            self._draw_parts(painter, self._places(area, shown), shown)

    def _places(self, area: QRect, shown: Shown) -> Places:
        px, figures = self.theme.px, shown.figures
        told = self._form != "dock"
        width = area.width() if self._form == "tall" else area.width() * (speculation_places.FIGURES - 1) // 100
        per_pass = acceptance.per_pass_height(self, width, figures, shown.counts, told) if figures.passes else 0
        costs = cost_bars.height(self, told) if figures.costs else 0
        if self._form == "stage":
            return speculation_places.stage(area, px, costs, per_pass)
        if self._form == "tall":
            rows = len(crossover_chart.axes(shown.cells, None)[1])
            return speculation_places.tall(area, px, costs, per_pass, (rows + 2) * (self.line() + px(6)))
        side = min(px(320), max(px(206), area.width() * 36 // 100))
        return speculation_places.dock(area, px, side, costs, per_pass, self.line())

    def _draw_parts(self, painter: QPainter, places: Places, shown: Shown) -> None:
        figures, counts, told = shown.figures, shown.counts, self._form != "dock"
        if told and not figures.passes:
            self._draw_unknown(painter, places, figures)
        elif places.positions.isValid():
            self._figures += acceptance.draw_positions(self, painter, places.positions, counts, figures)
        if places.lengths.isValid() and figures.passes:
            self._figures += acceptance.draw_lengths(self, painter, places.lengths, counts, figures)
        if places.per_pass.isValid() and figures.passes:
            self._figures += acceptance.draw_per_pass(self, painter, places.per_pass, counts, figures, told)
        if places.costs.isValid():
            self._figures += cost_bars.draw(self, painter, places.costs, figures, told)
        if places.crossover.isValid():
            self._figures += crossover_chart.draw(
                self, painter, places.crossover, shown.cells, shown.gamma, figures.batch
            )
        self._draw_rows(painter, places.rows, shown)

    def _draw_unknown(self, painter: QPainter, places: Places, figures: Payoff) -> None:
        """In the place of acceptance, while there is none: what would bring it."""
        hint = draft_words.OFF.get(figures.state, "acceptance appears here as soon as a draft is verified")
        self.draw_empty(painter, places.positions.united(places.lengths), "Nothing verified", hint)

    def _draw_rows(self, painter: QPainter, area: QRect, shown: Shown) -> None:
        if not shown.passes:
            if area.height() > 3 * self.line():
                hint = draft_words.OFF.get(shown.figures.state, "passes appear here as soon as a draft is verified")
                self.draw_empty(painter, area, "No pass to show", hint)
            return
        if self._form != "dock":
            head = QRect(area.left(), area.top(), area.width(), self.line())
            held = self.rows.first
            count = len(shown.passes)
            words = "the last pass" if count == 1 else f"the last {count} passes, newest first"
            if shown.passes[0].step < shown.since:
                words = f"under earlier settings: {words}"
            if held:
                last = min(held + self.rows.fitting, len(shown.passes))
                words = f"passes {held + 1} to {last}, held still: scroll up for the newest"
            write(painter, head, words, self.theme.font("small"), self.theme.color("text_dim"))
            area = area.adjusted(0, self.line() + self.theme.px(6), 0, 0)
        larger = LARGER if self._form == "stage" else 1.0
        self.rows.draw(painter, area, shown.passes, self.context.selection.seq, larger, shown.simulated)

    # --- Measure ---

    def _button_room(self, inner: QRect) -> int:
        """Pixels that the button takes of the card, 0 where it has no room or nothing to measure."""
        shown = self.shown
        usable = shown is not None and shown.figures.state not in ("off", "method_off") and self.context.cursor.is_live
        if not usable or inner.width() < self.theme.px(400) or inner.height() < self.theme.px(90):
            return 0
        on = self.context.mirror.alternation.on
        self.measure.setChecked(on)
        self.measure.setText("Measuring" if on else "Measure")
        return self.measure.sizeHint().width() + self.theme.px(10)

    def _button_box(self, card: QRect) -> QRect:
        size = self.measure.sizeHint()
        left = card.right() + 1 - self.theme.px(10) - size.width()
        return QRect(QPoint(left, card.center().y() - size.height() // 2), size)

    def _place_button(self) -> None:
        shown = self.shown is not None and self._button.isValid()
        if shown:
            self.measure.setGeometry(self._button)
        self.measure.setVisible(shown)

    def _toggle(self, on: bool) -> None:
        mirror, settings = self.context.mirror, self.context.mirror.settings
        if on and settings is not None:
            mirror.alternation.begin(settings, mirror.last_step)
        else:
            mirror.alternation.end(self.context.source)
        self._repaint()

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

    def wheelEvent(self, event) -> None:
        notches = event.angleDelta().y()
        if notches and self.rows.scroll(-1 if notches > 0 else 1):
            self._light(None)
            self.tip(QPoint(), "")
            self._repaint()
        event.accept()

    def resizeEvent(self, event) -> None:
        self._pace.reset()
        self._lit = None
        self._dress()
        if self.shown is not None:
            self._look()
        self._repaint()
