"""Everything about drafts under one heading: by whom, how many, and what if more of them were accepted. Only what
applies to the method in force is in sight; the rarer settings stand behind a button.

Sends nothing: its controls speak for themselves, and the panel listens to all of them alike.
"""

from __future__ import annotations

from typing import get_args

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QLabel, QPushButton, QVBoxLayout, QWidget

from engine.config import DraftMethod, Limit, LiveSettings
from ui.controls.choice_list import ChoiceList
from ui.controls.draft_model import DraftModelRow
from ui.controls.scale import even
from ui.controls.segments import Segments
from ui.controls.slider import SettingSlider
from ui.controls.toggle import Toggle
from ui.theme import Theme

# method: what the list says, and what it means
METHODS: dict[str, tuple[str, str]] = {
    "off": ("off", "No drafts: each pass of the model gives one token a sequence"),
    "ngram": ("n-gram", "Copies what followed the last few words, where they stand earlier in the same text"),
    "suffix": ("suffix", "Copies what followed the longest match, in this text and in past outputs"),
    "head": ("trained head", "A small network on the model's own states, trained on text that the model wrote"),
    "mixed": ("mixed", "Suffix where it matches long, else the trained head"),
    "model": ("draft model", "Another, smaller checkpoint with the same vocabulary"),
    "layers": ("first layers", "The model's own first layers"),
    "bits": ("fewer bits", "The model's own weights, rounded to fewer bits"),
}
assert tuple(METHODS) == get_args(DraftMethod)
MODELLED = ("head", "mixed", "model", "layers", "bits")  # they have a distribution to draw from
SLIDERS = {"draft_length": "Draft length γ", "draft_layers": "Layers", "ngram_min": "Match at least",
           "ngram_max": "Match at most"}  # fmt: skip
WHAT_IF = 0.8  # share of drafts that is accepted where somebody asks 'what if' for the first time
_RATES = Limit(0.0, 1.0, "of drafted tokens")
_BOUND = "γ, at most"


class DraftingControls(QWidget):
    """Heading with the method, γ with its policy, what the method needs, and a button for the rest.

    Signals:
        model_wanted: draft with this checkpoint. rates_wanted: accept drafts at these rates; none: judge them.

    Attributes:
        sliders, choices: the controls by setting. model: the line for a checkpoint. more: the button.
        simulated, simulate: the what-if, and the button that begins and ends it.
    """

    model_wanted = Signal(str)
    rates_wanted = Signal(list)

    def __init__(self, theme: Theme, parent: QWidget | None = None):
        super().__init__(parent)
        self._theme = theme
        title = QLabel("Drafting")
        title.setProperty("role", "section")
        self.method = ChoiceList(theme, "draft_method", title, METHODS)
        self.sliders = {key: SettingSlider(theme, key, text) for key, text in SLIDERS.items()}
        gamma = self.sliders["draft_length"]
        policy = Toggle("draft_policy", "adaptive", off="fixed", refused=gamma.refuse)
        policy.setToolTip("On: no more drafts than pay, by measured acceptance and step times, up to γ.\n"
                          "Off: γ drafts whenever there are as many")  # fmt: skip
        gamma.add_beside(policy)
        self.sampling = Segments(
            theme, "draft_sampling", "Drafts are", [("likeliest", "greedy"), ("drawn", "probabilistic")],
            "Of requests with a temperature: the likeliest tokens, or a draw from the draft's own distribution, which "
            "is accepted more often",
        )  # fmt: skip
        self.simulated = SettingSlider(theme, "simulated_acceptance", "What if α were", False)
        self.simulated.set_limit(_RATES, even(0.0, 1.0, 0.05))
        self.simulated.set_value(WHAT_IF)
        self.simulate = Toggle("simulated_acceptance", "simulate", off="off", refused=self.simulated.refuse)
        self.simulate.setToolTip("Accept drafts at a given rate, whatever they are, to see what it would bring.\n"
                                 "The text is meaningless then")  # fmt: skip
        self.simulated.add_beside(self.simulate)
        self.simulated.moved.connect(lambda _, rate: self.rates_wanted.emit([rate]))
        self.simulate.chosen.connect(self._simulate)
        self.choices = {"draft_method": self.method, "draft_policy": policy, "draft_sampling": self.sampling}
        self.model = DraftModelRow(theme)
        self.more = QPushButton("…")
        self.more.setCheckable(True)
        self.more.setProperty("kind", "toggle")
        self.more.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.more.setAccessibleName("More about drafting")
        self.more.setToolTip("Matches, how drafts are drawn, and what if more of them were accepted")
        self.method.head.insertWidget(1, self.more)
        self._column = QVBoxLayout(self)
        for widget in (self.method, self.model, gamma, self.sliders["draft_layers"], self.sliders["ngram_min"],
                       self.sliders["ngram_max"], self.sampling, self.simulated):  # fmt: skip
            self._column.addWidget(widget)
        self._settings = LiveSettings()
        self._asked_model = False  # a draft model was chosen, and none is named yet
        self.more.toggled.connect(lambda _: self._arrange())
        self.method.chosen.connect(lambda *_: self._method_chosen())
        self.model.wanted.connect(self.model_wanted)
        self.restyle()
        self._arrange()

    def restyle(self) -> None:
        px = self._theme.px
        self._column.setContentsMargins(0, px(4), 0, 0)
        self._column.setSpacing(px(2))
        for widget in (self.method, self.model, self.sampling, self.simulated):
            widget.restyle()

    def needs_model(self, value: object) -> bool:
        """A draft model was chosen, and it must be said which."""
        return value == "model" and not self._settings.draft_model

    def show_settings(self, settings: LiveSettings) -> None:
        """What is in force. A method that waits for its checkpoint to be named stays chosen meanwhile."""
        self._settings = settings
        if settings.draft_method == "model":
            self._asked_model = False
        self.model.set_value(settings.draft_model)
        self.sliders["draft_length"].set_title(
            _BOUND if settings.draft_policy == "adaptive" else SLIDERS["draft_length"]
        )
        rates = settings.simulated_acceptance
        self.simulate.set_value("simulate" if rates else "off")
        if rates:
            self.simulated.set_value(rates[0])
        self.simulated.set_hint(_rates(rates))
        self.simulated.fold(not rates)
        self._arrange()

    def model_accepted(self) -> None:
        self._asked_model = False
        self.model.accepted()

    def set_absent(self, absent: dict[str, str]) -> None:
        self.method.set_absent(absent)

    def _simulate(self, _: str, value: str) -> None:
        self.simulated.refuse("")
        self.rates_wanted.emit([self.simulated.value] if value == "simulate" else [])

    def _method_chosen(self) -> None:
        self._asked_model = self.needs_model(self.method.value)
        self._arrange()
        if self._asked_model:
            self.model.box.setFocus()

    def _arrange(self) -> None:
        method = "model" if self._asked_model else self._settings.draft_method
        if self._asked_model and self.method.value != "model":
            self.method.combo.setCurrentIndex(self.method.combo.findData("model"))
        drafts, more = method != "off", self.more.isChecked()
        self.more.setVisible(drafts)
        self.model.setVisible(method == "model")
        self.model.set_meanwhile(METHODS[self._settings.draft_method][0] if self._asked_model else "")
        self.sliders["draft_length"].setVisible(drafts)
        self.sliders["draft_layers"].setVisible(method == "layers")
        for key in ("ngram_min", "ngram_max"):
            self.sliders[key].setVisible(more and method == "ngram")
        self.sampling.setVisible(more and method in MODELLED)
        self.simulated.setVisible(drafts and (more or bool(self._settings.simulated_acceptance)))


def _rates(rates: tuple[float, ...]) -> str:
    more = f"by position {', '.join(f'{rate:g}' for rate in rates)}: " if len(rates) > 1 else ""
    return f"{more}the text is meaningless while this is on"
