"""Which checkpoint drafts: a path or a hub id, typed or looked for. Knows no engine; whoever owns it listens to
`wanted`."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFileDialog, QHBoxLayout, QLabel, QLineEdit, QMenu, QPushButton, QVBoxLayout, QWidget

from ui.theme import Theme

_TITLE = "A model that drafts"
_HINT = "Any checkpoint with the same vocabulary; steps wait while it loads."


class DraftModelRow(QWidget):
    """A line to type into, a button to look with, and what it must be.

    Signals:
        wanted: draft with this checkpoint.

    Attributes:
        box, browse: the line and the button.
    """

    wanted = Signal(str)

    def __init__(self, theme: Theme, parent: QWidget | None = None):
        super().__init__(parent)
        self._theme = theme
        self._pending, self._meanwhile = False, ""
        self.box = QLineEdit()
        self.box.setPlaceholderText("folder, .gguf file or hub id")
        self.box.setAccessibleName("Draft model")
        self.browse = QPushButton("Browse")
        self.browse.setProperty("kind", "tight")
        self.browse.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        menu = QMenu(self.browse)
        menu.addAction("A .gguf file…").triggered.connect(lambda _=False: self._take(self._file()))
        menu.addAction("A folder with safetensors…").triggered.connect(lambda _=False: self._take(self._folder()))
        self.browse.setMenu(menu)
        self._hint = QLabel(_HINT)
        self._hint.setProperty("role", "hint")
        self._hint.setWordWrap(True)
        self._row = QHBoxLayout()
        self._row.addWidget(self.box, 1)
        self._row.addWidget(self.browse)
        self._column = QVBoxLayout(self)
        self._column.addLayout(self._row)
        self._column.addWidget(self._hint)
        self.box.returnPressed.connect(lambda: self._take(self.box.text()))
        self.restyle()

    def restyle(self) -> None:
        px = self._theme.px
        self._column.setContentsMargins(0, px(2), 0, px(6))
        self._column.setSpacing(px(2))
        self._row.setSpacing(px(4))

    def set_value(self, path: str) -> None:
        """From outside: shown, not echoed. Left alone while the user types, or has something else in mind."""
        if not self.box.hasFocus() and not self.box.isModified():
            self.box.setText(path)
            self.box.setCursorPosition(len(path))  # the end of a path tells more than its beginning
            self.box.setToolTip(path)

    def set_pending(self, pending: bool) -> None:
        self._pending = pending
        self._say()

    def set_meanwhile(self, method: str) -> None:
        """What drafts until a checkpoint is named and loaded; "" when one is."""
        self._meanwhile = method
        self._say()

    def _say(self) -> None:
        words = "Loading it…" if self._pending else _HINT
        if self._meanwhile:
            words += f" Until then: {self._meanwhile}."
        if words != self._hint.text():
            self._hint.setText(words)

    def accepted(self) -> None:
        """What was typed is in force."""
        self.box.setModified(False)

    def _take(self, path: str) -> None:
        if path.strip():
            self.box.setText(path.strip())
            self.box.setModified(True)  # until it is in force: a refused one stays, to be mended
            self.wanted.emit(path.strip())

    def _file(self) -> str:
        return QFileDialog.getOpenFileName(self, _TITLE, "", "GGUF files (*.gguf)")[0]

    def _folder(self) -> str:
        return QFileDialog.getExistingDirectory(self, _TITLE)
