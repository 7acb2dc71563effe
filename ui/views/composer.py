"""Where a prompt is typed: the text, how much may come, how it is sampled and how often, and sending it."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QEvent, QSize, Qt, Signal
from PySide6.QtGui import QFontMetrics, QKeyEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QHBoxLayout,
    QLabel,
    QPlainTextEdit,
    QPushButton,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from ui.theme import Theme
from ui.views.number_box import NumberBox

MOST_WAYS = 8
_PROMPT = 220  # pixels at text scale 1 that a prompt beside its sampling needs


class PromptBox(QPlainTextEdit):
    """Enter sends; Shift+Enter makes a new line; Escape lets go of the keyboard.

    Signals:
        sent: Enter or Ctrl+Enter was pressed.
    """

    sent = Signal()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if enter and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.sent.emit()
        elif event.key() == Qt.Key.Key_Escape:
            self.clearFocus()  # so that the window's keys act again
        else:
            super().keyPressEvent(event)


@dataclass(frozen=True)
class Asked:
    """What is sent. `ways`: answers to the one prompt; `beams`: they are those of a beam search of that width."""

    prompt: str
    most: int  # tokens
    temperature: float
    ways: int = 1
    beams: bool = False


class Composer(QWidget):
    """A prompt and its sampling.

    Signals:
        submitted: an `Asked`.
    """

    submitted = Signal(object)

    def __init__(self, theme: Theme, parent: QWidget | None = None):
        super().__init__(parent)
        self._theme = theme
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.prompt = PromptBox()
        self.prompt.setPlaceholderText("Type a prompt, Enter sends")
        self.prompt.setToolTip("Enter sends, Shift+Enter begins a new line")
        self.prompt.setAccessibleName("Prompt")
        self.prompt.setTabChangesFocus(True)
        self.prompt.sent.connect(self.submit)
        self.tokens = NumberBox(theme, 128, 1, 8192, 16, 0, name="max ", tip="Most tokens of the answer")
        self.temperature = NumberBox(
            theme, 0.0, 0.0, 5.0, 0.1, 1, name="temp ", tip="Temperature; 0 is greedy: always the likeliest token"
        )
        self.ways = NumberBox(theme, 1, 1, MOST_WAYS, 1, 0, name="×", tip="Answers to a prompt; they share its blocks")
        self.beams = QPushButton("beams")
        self.beams.setProperty("kind", "segment")
        self.beams.setCheckable(True)
        self.beams.setToolTip("Beam search: the likeliest texts, found by following as many at once; draws nothing")
        self.beams.toggled.connect(self._beams_toggled)
        self.button = QPushButton("Send")
        self.button.setProperty("kind", "primary")
        self.button.clicked.connect(self.submit)
        self.problem = QLabel()
        self.problem.setProperty("role", "danger")
        self.problem.setWordWrap(True)
        self.problem.setTextFormat(Qt.TextFormat.PlainText)  # a model's own template may say what stands there
        self.problem.hide()
        self._row = QHBoxLayout()
        self._boxes = (self.tokens, self.temperature, self.ways, self.beams)
        for widget in self._boxes:
            self._row.addWidget(widget)
        self._row.addStretch(1)
        self._row.addWidget(self.button)
        self._line = QBoxLayout(QBoxLayout.Direction.TopToBottom)
        self._line.addWidget(self.prompt, 1)
        self._line.addLayout(self._row)
        self._column = QVBoxLayout(self)
        self._column.addLayout(self._line)
        self._column.addWidget(self.problem)
        self._lines = 2
        self.restyle()

    def submit(self) -> None:
        """Send what is typed; an empty prompt says so instead."""
        text = self.prompt.toPlainText()
        if not text.strip():
            self.complain("The prompt is empty: type something to send.")
            return
        self.complain("")
        self.prompt.clear()
        ways, beams = int(self.ways.value()), self.beams.isChecked()
        self.submitted.emit(Asked(text, int(self.tokens.value()), self.temperature.value(), ways, beams))

    def _beams_toggled(self, on: bool) -> None:
        """A search of one beam is nothing to look at."""
        self.temperature.setEnabled(not on)
        if on and self.ways.value() == 1:
            self.ways.setValue(4)

    def give_back(self, prompt: str, why: str) -> None:
        """It wasn't taken: say why, and put it back unless something else was typed meanwhile."""
        if not self.prompt.toPlainText().strip():
            self.prompt.setPlainText(prompt)
        self.complain(why)

    def complain(self, text: str) -> None:
        self.problem.setText(text)
        self.problem.setVisible(bool(text))

    def restyle(self) -> None:
        px = self._theme.px
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(px(6))
        self._row.setSpacing(px(6))
        self._line.setSpacing(px(6))
        color = self._theme.color
        self.prompt.setStyleSheet(
            f"QPlainTextEdit {{ background: {color('bg').name()}; border: 1px solid {color('border').name()};"
            f" border-radius: {px(4)}px; padding: {px(4)}px {px(6)}px; }}"
            f"QPlainTextEdit:focus {{ border-color: {color('accent').name()}; }}"
        )
        for box in (self.tokens, self.temperature, self.ways):
            box.restyle()
        self._height()

    def set_room(self, width: int, lines: int, row: bool) -> None:
        """How much of it there is room for: lines of the prompt, and whether its sampling and its button show. They
        stand beside the prompt where that leaves it room, else under it."""
        self._lines = lines
        send = self.button.sizeHint().width()
        boxes = sum(max(box.width(), box.minimumWidth()) for box in self._boxes[:3]) + send + self._theme.px(30)
        boxes += self.beams.sizeHint().width()
        beside = width - boxes >= self._theme.px(_PROMPT)
        way = QBoxLayout.Direction.LeftToRight if beside else QBoxLayout.Direction.TopToBottom
        if self._line.direction() != way:
            self._line.setDirection(way)
        for box in self._boxes:
            box.setVisible(row and width >= boxes)
        self.button.setVisible(row)
        self._height()

    def _height(self) -> None:
        line = QFontMetrics(self._theme.font("body")).lineSpacing()
        self.prompt.setFixedHeight(line * self._lines + self._theme.px(20))

    def minimumSizeHint(self) -> QSize:
        return QSize(0, super().minimumSizeHint().height())

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.StyleChange:
            self._height()
