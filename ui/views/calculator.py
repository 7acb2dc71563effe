"""The memory calculator: what weights and KV cache take, what fits on which card, and that the running engine agrees.

Nothing of it is built before it is first seen, and nothing of it is drawn while it is closed.
"""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFileDialog, QFrame, QScrollArea, QVBoxLayout, QWidget

from engine.capacity import Factors
from engine.shape import BadDescription, read_config
from ui import calculator
from ui.calculator import Card, Entry, Shown
from ui.changes import Kinds
from ui.context import ViewContext
from ui.contracts import Provenance
from ui.views.base import View
from ui.views.calculator_page import CalculatorPage

_MODEL = ("layers", "heads", "kv_heads", "head_dim", "parameters")  # of a model; the rest is the load's
_FLOATS = ("kv_bytes", "weight_bytes")
_EDITED = "edited"
_FIRST_CONTEXT = 8192  # tokens


class CalculatorView(View):
    """Attributes:
        page: inputs and pictures; None before it was first in sight.
        dialog: asks for a config.json; None before it first did.
        factors: what the formula is made of now.
    """

    key = "calculator"
    title = "Memory calculator"
    short = "Calculator"
    kinds = Kinds.MEMORY | Kinds.BLOCKS | Kinds.SOURCE | Kinds.SETTINGS | Kinds.CURSOR | Kinds.THEME
    rate = 2.0
    aside = True

    def __init__(self, context: ViewContext, parent: QWidget | None = None):
        super().__init__(context, parent)
        self.page: CalculatorPage | None = None
        self.dialog: QFileDialog | None = None
        self._problem = ""
        self._files: list[Entry] = []  # descriptions that were opened, the latest first
        self._entries: list[Entry] = []
        self._engine: Entry | None = None
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)

    @property
    def provenance(self) -> Provenance:
        return "derived"

    # --- what the user does ---

    def choose_model(self, index: int) -> None:
        """Take a model of the list; of the load only what the running engine's own forms say."""
        found = self._entries[index]
        changes = {key: getattr(found.factors, key) for key in _MODEL}
        if found is self._engine:
            changes |= {key: getattr(found.factors, key) for key in (*_FLOATS, "block_size")}
        elif self._entry is self._engine:  # its forms were that engine's, not chosen
            changes |= {key: getattr(Factors(1, 1, 1, 1, 1), key) for key in _FLOATS}
        self._entry, self._problem = found, ""
        self._name, self._trained, self._notes = found.name, found.trained, found.notes
        self.factors = self.factors.with_(**changes)
        self._show()

    def choose_card(self, index: int) -> None:
        self._card = self._cards()[index].name
        self._show()

    def edit(self, key: str, value: float) -> None:
        """A factor typed or turned by the user."""
        if key == "headroom":
            value /= 100
        elif key not in _FLOATS:
            value = round(value)
        self.factors = self.factors.with_(**{key: value})
        if key in _MODEL:
            self._name, self._notes = f"{self._entry.name}, {_EDITED}", ()
        self._problem = ""
        self._show()

    def ask_for_config(self) -> None:
        """Asked beside the window, which goes on."""
        if self.dialog is None:
            self.dialog = QFileDialog(self, "A model's config.json", "", "Model description (*.json)")
            self.dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
            self.dialog.fileSelected.connect(lambda name: self.open_config(Path(name)))
        self.dialog.show()

    def open_config(self, path: Path) -> None:
        """Take a model's own description, or say in one line why not."""
        try:
            found = calculator.entry(read_config(path))
        except BadDescription as error:
            self._problem = f"Not taken: {error}."
            self._show()
            return
        self._files = [found, *(one for one in self._files if one.name != found.name)]
        self._list_models()
        self.choose_model(self._entries.index(found))

    # --- showing ---

    def refresh(self, kinds: Kinds) -> None:
        if self.page is None:
            self._build()
        elif kinds & Kinds.THEME:
            self.page.restyle()
        self._show()

    def _build(self) -> None:
        self.page = page = CalculatorPage(self.context.theme)
        self._area = QScrollArea()
        self._area.setFrameShape(QFrame.Shape.NoFrame)
        self._area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._area.setMinimumSize(0, 0)
        self._area.setWidget(page)
        self._column.addWidget(self._area)
        page.models.activated.connect(self.choose_model)
        page.open.clicked.connect(self.ask_for_config)
        page.edited.connect(self.edit)
        page.chosen.connect(self.choose_card)
        page.failed.connect(self.failed)
        self._list_models()
        first = next(one for one in self._entries if one.name == calculator.FIRST_MODEL)
        self._entry, self._name, self._trained, self._notes = first, first.name, first.trained, first.notes
        self.factors = first.factors.with_(context=_FIRST_CONTEXT)
        self._card = calculator.FIRST_CARD
        if (card := calculator.here(self.context.probe.latest())) is not None:
            self._card = card.name

    def _list_models(self) -> None:
        """The running model, files that were opened, presets; rebuilt only when one of them is another."""
        assert self.page is not None
        engine = [self._engine] if self._engine else []
        wanted = [*engine, *self._files, *calculator.presets()]
        if [id(one) for one in wanted] == [id(one) for one in self._entries]:
            return
        self._entries = wanted
        self.page.models.clear()
        for one in wanted:
            self.page.models.addItem(f"This engine: {one.name}" if one is self._engine else one.name)

    def _cards(self) -> tuple[Card, ...]:
        here = calculator.here(self.context.probe.latest())
        return calculator.cards() if here is None else (here, *calculator.cards())

    def _look_at_engine(self) -> tuple[calculator.Line, ...]:
        ready, state = self.context.mirror.ready, self.context.cursor.state
        memory = state.memory
        if ready is None or memory is None:
            return ()
        entry = calculator.of_engine(ready.model, memory.weights, ready.block_size)
        if entry != self._engine:
            if self._entry is self._engine:  # goes on being chosen, with the figures that it has now
                self._entry = entry
            self._engine = entry
            self._list_models()
        return calculator.agreement(ready.model, memory, state.num_blocks, ready.block_size)

    def _show(self) -> None:
        page = self.page
        if page is None:
            return
        lines = self._look_at_engine()
        ready, cards = self.context.mirror.ready, self._cards()
        names = [card.name for card in cards]
        if page.card.count() != len(names):
            page.card.clear()
            page.card.addItems([f"{c.name} · {c.sold_as} GB" if c.sold_as and "GB" not in c.name else c.name
                                for c in cards])  # fmt: skip
        shown = Shown(
            factors=self.factors,
            name=self._name,
            trained=self._trained,
            notes=self._notes,
            problem=self._problem,
            cards=cards,
            card=names.index(self._card) if self._card in names else 0,
            engine=lines,
            engine_name=f"{ready.model.name} · {ready.model.dtype}" if ready else "",
            source=self.context.source.provenance,
        )
        page.models.setCurrentIndex(next((i for i, one in enumerate(self._entries) if one is self._entry), -1))
        if shown != page.shown:
            page.show_figures(shown)
        self._place()
        self.summarise(f"{self._name} · {shown.chosen.name}")

    def _place(self) -> None:
        """The page is as wide as there is room beside its scroll bar, and as high as it needs."""
        if self.page is None:
            return
        size = self.size()
        self.page.place(size)
        if self.page.height() > size.height():
            self.page.place(QSize(size.width() - self.context.theme.px(10), size.height()))

    # --- Qt ---

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place()

    def minimumSizeHint(self) -> QSize:
        return QSize(self.context.theme.px(120), self.context.theme.px(60))
