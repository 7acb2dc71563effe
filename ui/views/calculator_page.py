"""The calculator's page: the formula at the top, the verdict below it, charts and tables under that.

Places its inputs and paints the rest; what is chosen and calculated is its owner's business.
"""

from __future__ import annotations

from PySide6.QtCore import QPoint, QRect, QSize, Qt, Signal
from PySide6.QtGui import QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QPushButton, QToolTip, QWidget

from engine.formulas import GIB, MIB
from ui import calculator, explain
from ui.calculator import Card, Shown
from ui.labels import as_plain
from ui.paint.guard import painting
from ui.paint.labels import advance, metrics, wrap, write
from ui.theme import Theme
from ui.views import calculator_chart, calculator_tables, calculator_verdict
from ui.views.calculator_equation import Equation, Term
from ui.views.calculator_inputs import Choice, FactorBox

# factor: lowest, highest, step, digits, the widest text that its box shows whole, what it is
_BOXES = {
    "layers": (1, 2_000, 1, 0, "00,000", "Layers of the model, L"),
    "kv_heads": (1, 2_000, 1, 0, "0,000", "Heads that keys and values have, H_kv: fewer than query heads are shared"),
    "head_dim": (1, 8_192, 16, 0, "0,000", "Numbers of a head, d_h"),
    "context": (1, 16_777_216, 1024, 0, "00,000,000", "Tokens of each sequence, prompt and output, s"),
    "batch": (1, 1_000_000, 1, 0, "00,000", "Sequences at once, b"),
    "kv_bytes": (0.0625, 8, 0.5, 4, "0.0000", "Bytes of one number of a key or value, n: 2 for fp16 and bf16, 1 for "
                 "fp8, 0.5 for int4"),
    "parameters": (1, 10**13, 10**8, 0, "000,000,000,000", "Parameters of the model, N"),
    "weight_bytes": (0.0625, 8, 0.5, 4, "0.0000", "Bytes of a parameter: 4, 2 for bf16, 1 for int8, 0.5 for 4 bits; "
                     "with a scale for every 32: 1.0625 and 0.5625"),
    "block_size": (1, 4_096, 16, 0, "0,000", "Tokens of a block: a sequence's last block counts whole"),
    "headroom": (0, 90, 1, 1, "00.0", "Share of the card for activations, CUDA context, graphs and slack"),
}  # fmt: skip


class CalculatorPage(QWidget):
    """Signals:
        edited: (factor, value) by the user. chosen: a card, by number.
        failed: painting raised this exception.

    Attributes:
        boxes: the inputs by factor. models, card: the lists. open: the button for a config.json.
        shown: what is drawn.
    """

    edited = Signal(str, float)
    chosen = Signal(int)
    failed = Signal(object)

    def __init__(self, theme: Theme, parent: QWidget | None = None):
        super().__init__(parent)
        self._theme = theme
        self.shown: Shown | None = None
        self.setMouseTracking(True)
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.models = Choice(theme, "Model", 280, self)
        self.open = QPushButton("Open config.json…", self)
        self.open.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.open.setToolTip("Take the sizes from a model's own description on this machine")
        self.card = Choice(theme, "Card", 160, self)
        self.boxes = {
            key: FactorBox(theme, low, high, step, digits, widest, tip, " %" if key == "headroom" else "", self)
            for key, (low, high, step, digits, widest, tip) in _BOXES.items()
        }
        for key, box in self.boxes.items():
            box.valueChanged.connect(lambda value, key=key: self.edited.emit(key, value))
        self.card.activated.connect(self.chosen)
        self._build_equations()
        self._areas: dict[str, QRect] = {}
        self._tiles: list[tuple[int, int]] = []  # left and width of the columns of the four figures
        self._rows: list[QRect] = []
        self._hits: list[tuple[QRect, str]] = []
        self._under = -1
        self._tip = ""
        self.restyle()

    def restyle(self) -> None:
        for widget in (self.models, self.card, *self.boxes.values()):
            widget.restyle()
        self.open.setFixedHeight(self.models.height())
        self.open.setStyleSheet(f"QPushButton {{ padding: 0 {self._theme.px(12)}px; }}")
        self.open.adjustSize()
        for equation in (self._kv, self._weights, self._card):
            equation.restyle()

    def show_figures(self, shown: Shown) -> None:
        """Take what is shown from now on; the owner places the page again."""
        self.shown = shown
        factors = shown.factors
        for key, box in self.boxes.items():
            value = 100 * factors.headroom if key == "headroom" else getattr(factors, key)
            box.show_value(value)
        self.card.setCurrentIndex(shown.card)
        self._terms["kv"].text = explain.size(factors.kv)
        self._terms["held"].text = explain.size(factors.kv_held)
        self._terms["weights"].text = explain.size(factors.weights)
        self._terms["total"].text = explain.size(shown.chosen.bytes)
        self._terms["usable"].text = explain.size(factors.usable(shown.chosen.bytes))
        self.card.setToolTip(sold(shown.chosen))
        self.update()

    def _build_equations(self) -> None:
        box, theme = self.boxes, self._theme
        self._terms = {
            "kv": Term("stored", "=", text="–", result=True),
            "held": Term("held", "=", text="–", result=True),
            "weights": Term("held", "=", text="–", result=True),
            "total": Term("driver's total", "", text="–"),
            "usable": Term("usable", "=", text="–", result=True),
        }
        self._kv = Equation(theme, "KV cache", "kv_used", [
            Term("K and V", text="2"), Term("layers L", "×", box["layers"]), Term("KV heads H", "×", box["kv_heads"]),
            Term("head width d", "×", box["head_dim"]), Term("context s, tokens", "×", box["context"]),
            Term("sequences b", "×", box["batch"]), Term("bytes n", "×", box["kv_bytes"]), self._terms["kv"],
            Term("tokens a block", "in blocks of", box["block_size"]), self._terms["held"],
        ])  # fmt: skip
        self._weights = Equation(theme, "Weights", "weights", [
            Term("parameters N", "", box["parameters"]), Term("bytes each", "×", box["weight_bytes"]),
            self._terms["weights"],
        ])  # fmt: skip
        self._card = Equation(theme, "Card", "kv_free", [
            Term("sold as", "", self.card), self._terms["total"],
            Term("headroom", "× (1 −", box["headroom"], after=")"), self._terms["usable"],
        ])  # fmt: skip

    # --- placing ---

    def place(self, size: QSize) -> None:
        """Lay everything out for a viewport of this size; the page grows beyond it downwards only."""
        if self.shown is None:
            return
        theme, px = self._theme, self._theme.px
        left, right = px(14), size.width() - px(14)
        y = px(6)
        self.models.move(left, y)
        x = left + self.models.width() + px(8)
        if x + self.open.width() > right:
            x, y = left, y + self.models.height() + px(6)
        self.open.move(x, y)
        x += self.open.width() + px(12)
        row = self.models.height()
        words = self._words()[0]
        if words and (advance(theme.font("small"), words) <= right - x or right - x > px(420)):
            self._areas["words"] = QRect(x, y, right - x, row)
            y += row
        else:
            y += row
            lines = len(wrap(words, theme.font("small"), right - left)) if words else 0
            high = lines * metrics(theme.font("small")).lineSpacing()
            self._areas["words"] = QRect(left, y + px(4), right - left, high)
            y += high + (px(4) if lines else 0)
        y = self._place_equations(left, y + px(8), right)
        self._areas["verdict"] = verdict = QRect(left, y, right - left, calculator_verdict.height(theme, right - left))
        bottom = self._place_lower(left, verdict.bottom() + px(12), right, size.height() - px(12))
        self.resize(size.width(), max(size.height(), bottom + px(12)))
        self.update()

    def _place_equations(self, left: int, y: int, right: int) -> int:
        px = self._theme.px
        panel_top, left, right = y, left + px(12), right - px(12)
        indent = max(equation.title_width for equation in (self._kv, self._weights, self._card))
        if right - left < px(420):
            indent = px(18)
        y += px(8)
        together = indent + self._weights.width() + px(28) + indent + self._card.width()
        if indent == px(18):  # names stand on a line of their own
            indent = self._card.title_width
        y += self._kv.place(left, y, right, indent)
        if together <= right - left:
            self._weights.place(left, y, right, indent)
            y += self._card.place(left + indent + self._weights.width() + px(28), y, right, self._card.title_width)
        else:
            y += self._weights.place(left, y, right, indent)
            y += self._card.place(left, y, right, indent)
        self._areas["equations"] = QRect(left - px(12), panel_top, right - left + px(24), y - panel_top)
        return y + px(10)

    def _place_lower(self, left: int, y: int, right: int, bottom: int) -> int:
        """Charts and tables, in as many columns as there is room for. Returns where the last one ends."""
        assert self.shown is not None
        px, width = self._theme.px, right - left
        cards = calculator_tables.cards_height(self._theme, self.shown)
        engine = calculator_tables.engine_height(self._theme, self.shown)
        least, gap = px(200), px(28)
        if width >= px(1180) and bottom - y < cards + engine + gap:  # wide and low: all four beside each other
            shares, high = (0.235, 0.235, 0.255, 0.275), max(least, cards, engine, bottom - y)
            self._tiles = places = _across(left, right, shares, gap)
            self._set(("attention", "precision", "cards", "engine"), places, y, high)
            return y + max(cards, engine, least)
        if width >= px(1180):
            places = _across(left, right, (0.34, 0.34, 0.32), gap)
            self._tiles = [*_across(left, sum(places[0]), (0.5, 0.5), px(12)), *places[1:]]
            high = max(least, bottom - y, cards + engine + gap)
            self._set(("attention", "precision"), places, y, high)
            side, across = places[2]
            self._areas["cards"] = QRect(side, y, across, cards)
            self._areas["engine"] = QRect(side, y + cards + gap, across, engine)
            return y + cards + gap + engine
        pairs = 2 if width >= px(620) else 1
        halves = _across(left, right, (0.5, 0.5), gap)
        self._tiles = halves
        if width >= px(calculator_verdict.FOUR):
            self._tiles = [part for x, wide in halves for part in _across(x, x + wide, (0.5, 0.5), px(12))]
        for names, high in ((("attention", "precision"), max(least, px(250))), (("cards", "engine"), 0)):
            if pairs == 2:
                high = high or max(cards, engine)
                self._set(names, halves, y, high)
                y += high + gap
            else:
                for name in names:
                    one = high or (cards if name == "cards" else engine)
                    self._set((name,), [(left, width)], y, one)
                    y += one + gap
        return y - gap

    def _set(self, names: tuple[str, ...], places: list[tuple[int, int]], y: int, high: int) -> None:
        for name, (x, wide) in zip(names, places, strict=False):
            self._areas[name] = QRect(x, y, wide, high)

    # --- painting ---

    def _draw(self, painter: QPainter) -> None:
        shown, theme = self.shown, self._theme
        self._hits = []
        if shown is None or "engine" not in self._areas:
            return
        words, token = self._words()
        self._draw_words(painter, self._areas["words"], words, token)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme.color("raised"))
        painter.drawRoundedRect(self._areas["equations"], theme.px(6), theme.px(6))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        for equation in (self._kv, self._weights, self._card):
            equation.draw(painter)
        self._hits += calculator_verdict.draw(painter, self._areas["verdict"], theme, shown, self._tiles)
        card = shown.chosen
        calculator_chart.draw(painter, self._areas["attention"], theme, "Attention",
                              calculator.by_attention(shown.factors), card)  # fmt: skip
        calculator_chart.draw(painter, self._areas["precision"], theme, "KV precision",
                              calculator.by_precision(shown.factors), card)  # fmt: skip
        self._rows = calculator_tables.draw_cards(painter, self._areas["cards"], theme, shown, self._under)
        self._hits += [(row, sold(one)) for row, one in zip(self._rows, shown.cards, strict=True)]
        area = self._areas["engine"]
        calculator_tables.draw_engine(painter, area, theme, shown)
        told = "<br>".join(calculator_tables.told(one) for one in shown.engine)
        if told:
            self._hits.append((area, f"<p>{told}</p>"))

    def _words(self) -> tuple[str, str]:
        """A problem with a file before notes on a model, and the colour."""
        shown = self.shown
        if shown is None:
            return "", "text_dim"
        if shown.problem:
            return shown.problem, "danger"
        notes = list(shown.notes)
        if shown.trained and shown.factors.context > shown.trained:
            notes.insert(0, f"trained for contexts of {shown.trained:,} tokens")
        return (f"{shown.name}: {'; '.join(notes)}" if notes else ""), "warning"

    def _draw_words(self, painter: QPainter, area: QRect, words: str, token: str) -> None:
        font = self._theme.font("small")
        lines = wrap(words, font, area.width())
        step = metrics(font).lineSpacing()
        if len(lines) == 1 or step * len(lines) > area.height() + 2:
            write(painter, area, words, font, self._theme.color(token))
        else:
            for index, line in enumerate(lines):
                spot = QRect(area.left(), area.top() + index * step, area.width(), step)
                write(painter, spot, line, font, self._theme.color(token))
        if words:
            self._hits.append((area, as_plain(words)))

    # --- Qt ---

    def paintEvent(self, event: QPaintEvent) -> None:
        def draw(painter: QPainter) -> None:
            painter.fillRect(event.rect(), self._theme.color("panel"))
            self._draw(painter)

        painting(self, draw, self.failed.emit)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        at = event.position().toPoint()
        text = next((text for box, text in self._hits if box.contains(at)), "")
        if text:
            QToolTip.showText(self.mapToGlobal(at + QPoint(self._theme.px(12), self._theme.px(12))), text, self)
        elif self._tip:
            QToolTip.hideText()
        self._tip = text
        self._hover(next((i for i, row in enumerate(self._rows) if row.contains(at)), -1))

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if self._under >= 0 and event.button() == Qt.MouseButton.LeftButton:
            self.chosen.emit(self._under)
        super().mousePressEvent(event)  # else the dock would not take the focus from an input

    def leaveEvent(self, event) -> None:
        self._hover(-1)

    def _hover(self, row: int) -> None:
        if row != self._under:
            self._under = row
            self.setCursor(Qt.CursorShape.PointingHandCursor if row >= 0 else Qt.CursorShape.ArrowCursor)
            self.update()


def sold(card: Card) -> str:
    """A shop's GB and a driver's GiB, told apart."""
    listed = f"the driver lists {card.bytes // MIB:,} MiB = {card.bytes / GIB:.1f} GiB = {card.bytes / 1e9:.1f} GB"
    if not card.sold_as:
        return f"{card.name}: the driver's figure on this machine, {card.bytes:,} B"
    return f"{card.name}: sold as {card.sold_as} GB, {listed} (1 GiB = 2³⁰ B, 1 GB = 10⁹ B)"


def _across(left: int, right: int, shares: tuple[float, ...], gap: int) -> list[tuple[int, int]]:
    """Left and width of columns with a gap between them."""
    room, x, places = right - left - gap * (len(shares) - 1), float(left), []
    for share in shares:
        places.append((round(x), round(room * share)))
        x += room * share + gap
    return places
