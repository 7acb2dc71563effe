"""What the window knows of a view: its name, what it draws, when to redraw it."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from ui import simulated
from ui.changes import Kinds
from ui.context import ViewContext
from ui.contracts import Provenance


class View(QWidget):
    """One panel. It reads the mirror through `context.cursor.state` and holds no engine state of its own.

    Signals:
        summary_changed: the one line at the right of the panel's title.
        failed: painting raised this exception; what was painted before stays.

    Attributes:
        key: stable name, used for the layout that is remembered.
        title: what the panel is called. short: the same where tabs are many; "" = the title.
        aside: closed until it is asked for; no part of the default layout.
        kinds: the changes that this view redraws for.
        rate: redraws a second that are worth their time; words need fewer than pictures. What the user does
            (selection, cursor, theme) is drawn at once whatever the rate.
        what_if: its figures follow from which drafts are accepted, and are simulated where those are.
        provenance: whether what it shows is measured, derived, simulated or unavailable.
    """

    summary_changed = Signal(str)
    failed = Signal(object)

    key: str
    title: str
    short: str = ""
    aside: bool = False
    kinds: Kinds = Kinds.ALL
    rate: float = 60.0
    what_if: bool = False

    def __init__(self, context: ViewContext, parent: QWidget | None = None):
        super().__init__(parent)
        self.context = context
        self._summary = ""

    @property
    def provenance(self) -> Provenance:
        if self.what_if and simulated.rates(self.context.cursor.state):
            return "simulated"
        return self.context.source.provenance

    def refresh(self, kinds: Kinds) -> None:
        """Redraw what `kinds` touch. Called on the window's timer, at most once a frame, only while visible;
        on becoming visible it is called with Kinds.ALL."""
        raise NotImplementedError(type(self).__name__)

    def summarise(self, text: str) -> None:
        if text != self._summary:
            self._summary = text
            self.summary_changed.emit(text)
