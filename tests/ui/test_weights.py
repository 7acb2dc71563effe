"""The form of weights in the window: what is held, what can be chosen, and the question before the engine restarts."""

from __future__ import annotations

import msgspec
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication

from engine.records import Died, Loading
from tests.support.synthetic import SyntheticSource
from tests.ui.window_harness import Harness
from ui import explain, figures
from ui.controls.weights import CHOICES, in_words

INT8_BYTES = 142_900_000


class Rebuilt(SyntheticSource):
    """A stream whose engine can be started again with other weights.

    Attributes:
        rebuilds: the forms asked for. ready_of: what the next engine says of itself.
    """

    fixed = ""

    def __init__(self, **sizes: int):
        self.rebuilds: list[str] = []
        self.changes: dict[str, object] = {}
        self.form = "auto"
        super().__init__(**sizes)

    def _start(self) -> None:
        super()._start()
        self.say(**self.changes)

    def say(self, model: dict | None = None, absent: dict[str, str] | None = None) -> None:
        ready = self._queue[0]
        about = msgspec.structs.replace(ready.model, **(model or {}))
        self._queue[0] = msgspec.structs.replace(ready, model=about, absent=absent or {})

    def rebuild(self, form: str) -> None:
        self.rebuilds.append(form)
        self.form = form
        self.state, self._queue = "starting", []

    def come_up(self, **changes: object) -> None:
        self.changes = changes
        self._start()


@pytest.fixture
def h(qtbot, monkeypatch) -> Harness:
    monkeypatch.setattr("tests.ui.window_harness.SyntheticSource", Rebuilt)
    return Harness(qtbot)


def choose(h: Harness, form: str) -> None:
    """As a click on a line of the list does."""
    combo = h.window.controls.weights.combo
    combo.setCurrentIndex(list(CHOICES).index(form))
    combo.activated.emit(combo.currentIndex())


def test_what_is_held_now(h):
    weights = h.window.controls.weights
    assert weights.combo.isEnabled() and weights.chosen == "auto"
    assert weights.combo.currentText() == "auto: bfloat16"
    assert weights.combo.toolTip() == "bfloat16 · 257 MiB · 16 bits a weight"
    assert weights.question == ""


def test_a_choice_is_asked_about_first(h, qtbot):
    weights = h.window.controls.weights
    choose(h, "int8")
    running = len(h.window.mirror.live.running) + len(h.window.mirror.live.waiting)
    assert weights.question == f"This loads the model again and starts {running} requests over."
    h.run(3)
    assert weights.question and weights.chosen == "int8", "frames leave the question alone"
    qtbot.mouseClick(weights.keep, Qt.MouseButton.LeftButton)
    assert (weights.question, weights.chosen, h.source.rebuilds) == ("", "auto", [])


def test_reload_starts_the_engine_again_and_loses_nothing(h, qtbot):
    window, weights = h.window, h.window.controls.weights
    choose(h, "int8")
    qtbot.mouseClick(weights.reload, Qt.MouseButton.LeftButton)
    assert h.source.rebuilds == ["int8"]
    h.frame()
    assert window.banner.text == "Starting the engine…" and not weights.combo.isEnabled()
    h.source._queue.append(Loading(stage="loading weights", done=5 << 20, total=10 << 20))
    h.frame()
    assert "5.00 MiB of 10.0 MiB" in window.banner.text
    h.source.come_up(model={"dtype": "int8", "weight_bytes": INT8_BYTES})
    h.run(5)
    assert window.banner.text == "" and weights.combo.isEnabled() and weights.chosen == "int8"
    assert weights.combo.toolTip().startswith("int8 · 136 MiB · 8.5 bits")
    assert "int8" in window.topbar.model.text()
    assert len(window.mirror.history) == 45
    mark = window.mirror.history.marks[-1]
    assert (mark.key, mark.old, mark.new) == ("weights", "bfloat16", "int8")
    assert explain.change(*mark[2:]) == "weights bfloat16 → int8"
    assert "tokens/s" in window.timeline.story(mark)


def test_figures_after_other_weights_leave_out_their_loading(h):
    h.source.form = "int8"
    before = h.window.mirror.live.clock
    h.source.changes = {"model": {"dtype": "int8"}}
    h.source._start()
    h.source.world.clock = before + 3600 * 10**9  # an hour
    h.run(30)
    mirror = h.window.mirror
    mark = mirror.history.marks[-1]
    assert mark.key == "weights" and mark.clock == before
    told = figures.around(mirror, mark)
    assert told.before.tokens_per_s > 0 and told.after.seconds < 60
    assert told.after.tokens_per_s > 0


def test_the_form_that_is_held_asks_nothing(h):
    choose(h, "int8")
    choose(h, "auto")
    assert h.window.controls.weights.question == ""


def test_forms_that_cannot_be_had_say_why(h):
    h.source._start()
    h.source.say(absent={"file": "lm_head.weight is F16"})
    h.run(1)
    combo = h.window.controls.weights.combo
    at = list(CHOICES).index("file")
    assert not combo.model().item(at).isEnabled()
    assert combo.itemData(at, Qt.ItemDataRole.ToolTipRole) == "Not of this model: lm_head.weight is F16"
    assert all(combo.model().item(i).isEnabled() for i in range(combo.count()) if i != at)


def test_after_a_form_that_failed_another_can_be_chosen(h, qtbot):
    weights = h.window.controls.weights
    choose(h, "file")
    weights.reload.click()
    h.source._queue.append(Died(reason="The weights can't be held packed as in the file: …"))
    h.source.state = "dead"
    h.frame()
    assert "can't be held" in h.window.banner.text and weights.combo.isEnabled() and weights.chosen == "file"
    choose(h, "auto")
    weights.reload.click()
    assert h.source.rebuilds == ["file", "auto"]


def test_the_past_has_no_weights_to_choose(h):
    choose(h, "int8")
    h.window.cursor.pin(20)
    h.frame()
    weights = h.window.controls.weights
    assert not weights.combo.isEnabled() and weights.question == "" and weights.chosen == "auto"
    h.window.cursor.live()
    h.frame()
    assert weights.combo.isEnabled()


def test_a_source_without_an_engine_says_so(qtbot):
    combo = Harness(qtbot).window.controls.weights.combo
    assert not combo.isEnabled() and combo.toolTip() == "Not to be chosen: a synthetic stream has no weights"


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_every_choice_has_room(qtbot, monkeypatch, scale):
    monkeypatch.setattr("tests.ui.window_harness.SyntheticSource", Rebuilt)
    h = Harness(qtbot, size=(1280, 720), scale=scale)
    area = h.window.controls.area
    for form in CHOICES:
        choose(h, form)
        h.frame()
        assert area.widget().minimumSizeHint().width() <= area.viewport().width()


def test_in_words():
    assert in_words(None) == ""
    model = SyntheticSource().world.ready().model
    assert in_words(msgspec.structs.replace(model, parameters=0)) == "bfloat16 · 257 MiB"


@pytest.mark.parametrize(("size", "scale"), [((1280, 720), 2.0), ((1280, 720), 1.0), ((1920, 1080), 2.0)])
def test_the_controls_are_never_wider_than_their_column(qtbot, size, scale):
    h = Harness(qtbot, size=size, scale=scale)
    panel, box = h.window.controls, h.window.controls.weights
    for text in ("auto", "auto: bfloat16"):
        box.combo.setItemText(0, text)
        box._fit()
        QApplication.processEvents()
        h.frame(2)
        area = panel.area
        assert area.widget().width() <= area.viewport().width(), text
        right = box.combo.mapTo(area.viewport(), QPoint(box.combo.width(), 0)).x()
        assert right <= area.viewport().width()
        assert box._name.isVisible() or box._needed(box._title, box._name, box.combo) > box.width()
