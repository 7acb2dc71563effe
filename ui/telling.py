"""Stories as the window tells them: one is begun by a key or the menu, its curves come in sight when it ends, and are
put away. What a story does meanwhile is not known here."""

from __future__ import annotations

from PySide6.QtCore import QObject, QTimer, Signal

from ui.context import ViewContext
from ui.deck import Deck

CURVES = "story"  # key of the view that draws them


class Telling(QObject):
    """Signals:
    curves_wanted: fill the window with the curves, or bring the other views back.
    """

    curves_wanted = Signal()

    def __init__(self, context: ViewContext, deck: Deck, parent: QObject):
        super().__init__(parent)
        self._context, self._deck = context, deck
        self._over = False  # its end was seen

    def begin(self, place: int) -> None:
        """The story at this place in the list, from 0, unless one goes on."""
        stories, mirror = self._context.stories, self._context.mirror
        if place < len(stories.listed) and not (stories.shown and stories.shown.going):
            self.close()
            mirror.alternation.end(self._context.source)  # a story's settings are its own
            self._context.cursor.live()
            stories.start(stories.listed[place].key)

    def close(self) -> None:
        """Put the result away, and its curves."""
        self._context.stories.close()
        if self._deck.filled == CURVES:
            self.curves_wanted.emit()

    def look(self) -> None:
        """Something of it changed: its end brings the curves in sight, once."""
        shown = self._context.stories.shown
        over = shown is not None and shown.stage == "over"
        if over and not self._over and self._deck.filled != CURVES:
            QTimer.singleShot(0, self, self.curves_wanted.emit)  # not in the middle of a frame
        elif shown is None and self._deck.filled == CURVES:  # they went with it
            QTimer.singleShot(0, self, self.close)
        self._over = over
