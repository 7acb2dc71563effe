"""The form of the model's weights: what it is now, and another one, for which the engine is started again.

Choosing asks first, in place: it costs a load of the model, and what runs starts over. Knows no engine; whoever owns
it listens to `wanted`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from engine.config import Dtype, Model
from ui.controls.choice_list import PlainList
from ui.explain import count, size
from ui.labels import as_plain
from ui.theme import Theme

# form: what the list says, and what it means
CHOICES: dict[Dtype, tuple[str, str]] = {
    "auto": ("auto", "What suits the device and the model"),
    "file": ("as in the file", "A GGUF file's own 4 or 8 bits a weight, none rounded again"),
    "int8": ("int8", "Rounded to 8 bits a weight, with a scale for every 32"),
    "bfloat16": ("bfloat16", "16 bits a weight"),
    "float32": ("float32", "32 bits a weight: the most exact, and the most to read"),
}


@dataclass(frozen=True)
class Held:
    """How the source stands."""

    form: Dtype  # asked for last
    model: Model | None = None  # of the engine that is up, or was last
    absent: dict[str, str] = field(default_factory=dict)  # forms that can't be had, and why
    unfinished: int = 0  # requests
    fixed: str = ""  # why nothing can be chosen


class WeightsControl(QWidget):
    """A list of forms in the row of a section's title, and below it a question with its two answers.

    Signals:
        wanted: start the engine again with this form.

    Attributes:
        combo: the list. reload, keep: the answers.
    """

    wanted = Signal(str)

    def __init__(self, theme: Theme, title: QLabel, parent: QWidget | None = None):
        super().__init__(parent)
        self._theme = theme
        self._held: Held | None = None
        self.combo = PlainList()
        self.combo.setAccessibleName("Weights")
        for form, (text, meaning) in CHOICES.items():
            self.combo.addItem(text, form)
            self.combo.setItemData(self.combo.count() - 1, meaning, Qt.ItemDataRole.ToolTipRole)
        self._question = QLabel()
        self._question.setProperty("role", "warning")
        self._question.setWordWrap(True)
        self.reload, self.keep = QPushButton("Reload"), QPushButton("Keep")
        self.reload.setProperty("kind", "primary")
        self.reload.setToolTip("Start the engine again with these weights; what was seen stays")
        self.keep.setToolTip("Leave the weights as they are")
        self._head, self._answers = QHBoxLayout(), QHBoxLayout()
        self._title, self._name = title, QLabel("Weights")
        self._name.setProperty("role", "small")
        self._head.addWidget(title, 1)
        self._head.addWidget(self._name)
        self._head.addWidget(self.combo)
        self._asking = QWidget()
        asking = QVBoxLayout(self._asking)
        asking.setContentsMargins(0, 0, 0, 0)
        asking.addWidget(self._question)
        asking.addLayout(self._answers)
        for button in (self.reload, self.keep):
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            self._answers.addWidget(button, 1)
        self._asking.hide()
        self._column = QVBoxLayout(self)
        self._column.addLayout(self._head)
        self._column.addWidget(self._asking)
        self.combo.activated.connect(lambda _: self._ask())
        self.reload.clicked.connect(self._answered)
        self.keep.clicked.connect(self._forget)
        self.restyle()

    @property
    def chosen(self) -> str:
        return self.combo.currentData()

    @property
    def question(self) -> str:
        """What is asked; "" for nothing."""
        return self._question.text() if not self._asking.isHidden() else ""

    def restyle(self) -> None:
        px = self._theme.px
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(px(4))
        self._head.setSpacing(px(6))
        self._answers.setSpacing(px(4))
        self._fit()

    def minimumSizeHint(self) -> QSize:
        """Without the word before the list, which goes where large text leaves it no room."""
        return QSize(self._needed(self._title, self.combo), super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._fit()
        super().resizeEvent(event)

    def _fit(self) -> None:
        self._name.setVisible(self._needed(self._title, self._name, self.combo) <= self.width())

    def _needed(self, *row: QWidget) -> int:
        """Pixels that these take beside each other."""
        return sum(one.sizeHint().width() for one in row) + self._head.spacing() * (len(row) - 1)

    def show_held(self, held: Held, enabled: bool) -> None:
        """`enabled`: there is an engine that can be started again, and the present is shown."""
        changed = self._held is None or held.form != self._held.form
        self._held = held
        self.combo.setEnabled(enabled and not held.fixed)
        self.combo.setToolTip(f"Not to be chosen: {held.fixed}" if held.fixed else in_words(held.model))
        self.combo.setItemText(0, f"auto: {held.model.dtype}" if held.model and held.form == "auto" else "auto")
        self._fit()
        for index, (form, (_, meaning)) in enumerate(CHOICES.items()):
            why = held.absent.get(form)
            self.combo.model().item(index).setEnabled(why is None)
            tip = meaning if why is None else f"Not of this model: {why}"
            self.combo.setItemData(index, as_plain(tip), Qt.ItemDataRole.ToolTipRole)
        if changed or not self.combo.isEnabled():
            self._forget()
        elif self.question:
            self._ask()

    def _ask(self) -> None:
        held = self._held
        if held is None or self.chosen == held.form:
            self._forget()
            return
        runs = f" and starts {count(held.unfinished, 'request')} over" if held.unfinished else ""
        self._question.setText(f"This loads the model again{runs}.")
        self._asking.show()

    def _answered(self) -> None:
        form = self.chosen
        self._asking.hide()
        self.wanted.emit(form)

    def _forget(self) -> None:
        self._asking.hide()
        if self._held is not None:
            self.combo.setCurrentIndex(list(CHOICES).index(self._held.form))


def in_words(model: Model | None) -> str:
    """'Q4_1 · 89.7 MiB · 5.6 bits a weight'."""
    if model is None:
        return ""
    parts = [model.dtype, size(model.weight_bytes)]
    if model.parameters:
        parts.append(f"{8 * model.weight_bytes / model.parameters:.2g} bits a weight")
    return " · ".join(parts)
