"""Runs of styled text that grow at their end: wrapped, selectable, scrolled along while the reader is at the end.

What a style means is the caller's matter. Appending costs what is appended; only another beginning rebuilds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from PySide6.QtCore import QSize
from PySide6.QtGui import QColor, QFont, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QFrame, QTextEdit, QWidget

Run = tuple[str, int]  # text, index of its style
Under = Literal["", "line", "dots"]
_UNDER = {"line": QTextCharFormat.UnderlineStyle.SingleUnderline, "dots": QTextCharFormat.UnderlineStyle.DotLine}


def style(color: QColor, tint: QColor | None = None, under: Under = "") -> QTextCharFormat:
    """A text format: a colour, perhaps a tint behind it and a line in the colour under it."""
    made = QTextCharFormat()
    made.setForeground(color)
    if tint is not None:
        made.setBackground(tint)
    if under:
        made.setUnderlineStyle(_UNDER[under])
        made.setUnderlineColor(color)
    return made


class TextFlow(QTextEdit):
    """Shows runs. `show_runs` takes the whole list each time and writes only what is new.

    Attributes:
        written: how many runs are on the screen.
        rebuilt: how often all was written anew.
    """

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.written = self.rebuilt = 0
        self._key: object = None
        self._last: Run | None = None
        self._styles: list[QTextCharFormat] = []

    def restyle(self, font: QFont, styles: list[QTextCharFormat]) -> None:
        """Other colours or another font; the next `show_runs` writes all anew."""
        self.document().setDefaultFont(font)
        self._styles = styles
        self._key = None

    def show_runs(self, key: object, runs: Sequence[Run]) -> None:
        """Show `runs` of the text named `key`. Runs once shown must stay, else all is written anew."""
        count = len(runs)
        same = key == self._key and self.written <= count
        if same and self.written:
            same = runs[self.written - 1] == self._last
        if same and count == self.written:
            return
        at_end = self._at_end() or key != self._key
        place = self.verticalScrollBar().value()
        if not same:
            self.clear()
            self.written, self._key = 0, key
            self.rebuilt += 1
        self._append(runs[self.written :])
        self.written, self._last = count, runs[-1] if count else None
        bar = self.verticalScrollBar()
        bar.setValue(bar.maximum() if at_end else place)

    def minimumSizeHint(self) -> QSize:
        return QSize(0, 0)

    def _append(self, runs: Sequence[Run]) -> None:
        cursor = QTextCursor(self.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.beginEditBlock()
        pending, kind = "", -1
        for text, index in runs:
            if index != kind and pending:
                cursor.insertText(pending, self._styles[kind])
                pending = ""
            pending, kind = pending + text, index
        if pending:
            cursor.insertText(pending, self._styles[kind])
        cursor.endEditBlock()

    def _at_end(self) -> bool:
        bar = self.verticalScrollBar()
        return bar.value() >= bar.maximum() - 4
