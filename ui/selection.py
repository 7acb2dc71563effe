"""The one selection that links every view: a sequence, a block, or nothing."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal


class Selection(QObject):
    """One sequence and one block at most, chosen anywhere, lit everywhere.

    Signals:
        changed: the selection is another one now.
        pointed_changed: the mouse is over another block, or over none.

    Attributes:
        seq: the chosen sequence, or None.
        block: the chosen block, or None. Choosing a block chooses its owner too, where it has one.
        pointed: the block under the mouse, in whichever view it is.
    """

    changed = Signal()
    pointed_changed = Signal()

    def __init__(self, parent: QObject | None = None):
        super().__init__(parent)
        self.seq: int | None = None
        self.block: int | None = None
        self.pointed: int | None = None

    def choose(self, seq: int | None = None, block: int | None = None) -> None:
        if (seq, block) != (self.seq, self.block):
            self.seq, self.block = seq, block
            self.changed.emit()

    def toggle(self, seq: int | None = None, block: int | None = None) -> None:
        """Choose, or let go of what is already chosen."""
        if (seq, block) == (self.seq, self.block):
            self.choose()
        else:
            self.choose(seq, block)

    def point(self, block: int | None) -> None:
        """The mouse is over this block now."""
        if block != self.pointed:
            self.pointed = block
            self.pointed_changed.emit()
