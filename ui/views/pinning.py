"""A click that pins a moment may be the first of two, which fill the window with the view and choose no moment: the
second takes back what the first did. Hand it both events; whoever pins does so with the cursor, as ever."""

from __future__ import annotations

from PySide6.QtGui import QMouseEvent

from ui.cursor import Cursor


class Pinning:
    def __init__(self, cursor: Cursor):
        self._cursor = cursor
        self._before: int | None = None  # what was pinned when a button went down

    def pressed(self) -> None:
        self._before = self._cursor.pinned

    def double_clicked(self, event: QMouseEvent) -> None:
        """Leaves the event to the panel, which fills the window."""
        if self._before is None:
            self._cursor.live()
        else:
            self._cursor.pin(self._before)
        event.ignore()
