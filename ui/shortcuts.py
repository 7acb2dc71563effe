"""The window's keys. They act only while no input has the focus: text, numbers and sliders keep their own.

Esc is the exception inside an input: it leaves the input. F11 works anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractSlider,
    QAbstractSpinBox,
    QApplication,
    QComboBox,
    QLineEdit,
    QPlainTextEdit,
    QTextEdit,
    QWidget,
)

_INPUTS = (QLineEdit, QPlainTextEdit, QTextEdit, QAbstractSpinBox, QComboBox, QAbstractSlider, QAbstractButton)


@dataclass(frozen=True)
class Key:
    """One action and the keys that do it; the first is the one that is shown."""

    action: str  # name in `Keyboard`'s table of actions
    keys: tuple[str, ...]
    shown: str
    meaning: str
    repeats: bool = False
    numbered: bool = False  # the action is called with the place of the key that was pressed, from 0


KEYS = (
    Key("pause", ("Space",), "Space", "Pause or resume the engine"),
    Key("step", ("Right",), "→", "One step (pauses first)", repeats=True),
    Key("back", ("Shift+Left",), "Shift ←", "Look one step further back", repeats=True),
    Key("forward", ("Shift+Right",), "Shift →", "Look one step further on", repeats=True),
    Key("live", ("Escape",), "Esc", "Back to live; out of a filled view"),
    Key("larger", ("+", "="), "+", "Larger text"),
    Key("smaller", ("-",), "−", "Smaller text"),
    Key("fill", ("F",), "F, double-click", "Fill the window with the view under the mouse, and back"),
    Key("check", ("V",), "V", "Check the request shown: run it again without drafts, compare the tokens"),
    Key("verification", ("W",), "W", "Walk one verification: how each drafted token is accepted or rejected"),
    Key("beams", ("B",), "B", "Beams and samples: how the lanes of a request part and die"),
    Key("roofline", ("R",), "R", "Roofline: where each step stands under what the device allows"),
    Key("calculator", ("C",), "C", "Memory calculator: what fits on which card"),
    Key("story", tuple("12345678"), "1 … 8", "Tell a story: the same requests under two settings", numbered=True),
    Key("stories", ("S",), "S", "List of stories"),
    Key("next", ("N",), "N", "In a story: go on without waiting for the caption"),
    Key("leave", ("L",), "L", "Leave a story; the settings from before come back"),
    Key("full_screen", ("F11",), "F11", "Full screen"),
    Key("help", ("?", "Shift+/"), "?", "Show or hide these keys"),
)


def is_input(widget: QWidget | None) -> bool:
    """Whether a widget wants keys for itself."""
    if isinstance(widget, QPlainTextEdit | QTextEdit) and widget.isReadOnly():
        return False
    return isinstance(widget, _INPUTS)


class Keyboard(QObject):
    """Turns keys into calls of `actions`, by the names in KEYS."""

    def __init__(self, window: QWidget, actions: dict[str, Callable[..., None]]):
        super().__init__(window)
        self._window = window
        self._shortcuts: list[tuple[Key, QShortcut]] = []
        for key in KEYS:
            for place, sequence in enumerate(key.keys):
                shortcut = QShortcut(QKeySequence(sequence), window)
                # views float in windows of their own; the keys work there too
                shortcut.setContext(Qt.ShortcutContext.ApplicationShortcut)
                shortcut.setAutoRepeat(key.repeats)
                action = actions[key.action]
                shortcut.activated.connect(partial(action, place) if key.numbered else action)
                self._shortcuts.append((key, shortcut))
        QApplication.instance().focusChanged.connect(self._focus_moved)

    def close(self) -> None:
        """Let go of the application's signal: a closed window has no keys."""
        QApplication.instance().focusChanged.disconnect(self._focus_moved)
        for _, shortcut in self._shortcuts:
            shortcut.setEnabled(False)

    def _focus_moved(self, old: QWidget | None, new: QWidget | None) -> None:
        typing = is_input(new)
        for key, shortcut in self._shortcuts:
            shortcut.setEnabled(not typing or key.action == "full_screen")
