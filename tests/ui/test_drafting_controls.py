"""The controls of drafting: by whom, how many, what if; what is in sight, what is sent, what is refused in place."""

from __future__ import annotations

import json
import shlex

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog

from app.options import Parser, add_engine_options, engine_config
from engine.config import LiveSettings
from engine.records import Ack, Change
from tests.ui.scenes import scene
from tests.ui.window_harness import Harness
from ui import explain, simulated
from ui.changes import Kinds
from ui.controls import drafting, flags, reasons
from ui.controls.sender import ChangeSender
from ui.history import Mark
from ui.sequences import SequenceInfo


def set_to(h: Harness, **changes) -> drafting.DraftingControls:
    h.source.world.change(**changes)
    h.run(2)
    return h.window.controls.drafting


def sent(h: Harness) -> list[dict]:
    return [command.changes for command in h.sent(Change)]


def refusing(h: Harness, message: str) -> None:
    def refuse(command):
        h.source.sent.append(command)
        h.source._queue.append(Ack(id=command.id, ok=False, step=0, message=message))

    h.source.send = refuse


def in_sight(d: drafting.DraftingControls) -> set[str]:
    """Settings whose controls are shown."""
    found = {key for key, slider in d.sliders.items() if slider.isVisibleTo(d)}
    found |= {"draft_model"} if d.model.isVisibleTo(d) else set()
    found |= {"draft_sampling"} if d.sampling.isVisibleTo(d) else set()
    return found | ({"simulated_acceptance"} if d.simulated.isVisibleTo(d) else set())


# --- what is in sight ---


@pytest.mark.parametrize(
    ("method", "plain", "more"),
    [
        ("off", set(), set()),
        ("ngram", {"draft_length"}, {"draft_length", "ngram_min", "ngram_max", "simulated_acceptance"}),
        ("suffix", {"draft_length"}, {"draft_length", "simulated_acceptance"}),
        ("head", {"draft_length"}, {"draft_length", "draft_sampling", "simulated_acceptance"}),
        ("mixed", {"draft_length"}, {"draft_length", "draft_sampling", "simulated_acceptance"}),
        ("model", {"draft_length", "draft_model"},
         {"draft_length", "draft_model", "draft_sampling", "simulated_acceptance"}),
        ("layers", {"draft_length", "draft_layers"},
         {"draft_length", "draft_layers", "draft_sampling", "simulated_acceptance"}),
        ("bits", {"draft_length"}, {"draft_length", "draft_sampling", "simulated_acceptance"}),
    ],
)  # fmt: skip
def test_only_what_applies_is_in_sight(qtbot, method, plain, more):
    h = Harness(qtbot)
    d = set_to(h, draft_method=method)
    assert d.method.value == method and in_sight(d) == plain
    d.more.setChecked(True)
    assert in_sight(d) == more and d.more.isVisibleTo(d) == (method != "off")


def test_every_method_can_be_chosen_and_says_what_it_is(qtbot):
    h = Harness(qtbot)
    d = h.window.controls.drafting
    for method in [m for m in drafting.METHODS if m not in ("model", "ngram")]:
        d.method.choose(method)
        h.run(1)
        assert sent(h)[-1] == {"draft_method": method} and d.method.combo.toolTip() == drafting.METHODS[method][1]
    assert d.method.told == "bits"


def test_what_can_not_be_had_is_there_with_the_reason(qtbot):
    h = Harness(qtbot)
    h.window.mirror.ready = replace(h.window.mirror.ready, absent_drafts={"head": "none is known <for> this model"})
    h.window.controls.refresh(Kinds.ALL)
    combo = h.window.controls.drafting.method.combo
    place = combo.findData("head")
    assert not combo.model().item(place).isEnabled() and combo.model().item(combo.findData("suffix")).isEnabled()
    assert "none is known &lt;for&gt; this model" in combo.itemData(place, Qt.ItemDataRole.ToolTipRole)


# --- γ ---


def test_adaptive_makes_the_slider_an_upper_bound_and_says_so(qtbot):
    h = Harness(qtbot)
    d = h.window.controls.drafting
    gamma, toggle = d.sliders["draft_length"], d.choices["draft_policy"]
    assert gamma._title.text() == "Draft length γ" and toggle.value == "fixed"
    qtbot.mouseClick(toggle, Qt.MouseButton.LeftButton)
    assert sent(h) == [{"draft_policy": "adaptive"}]
    h.run(2)
    assert gamma._title.text() == "γ, at most" and toggle.value == "adaptive"
    assert gamma.hint_text.startswith("as many as pay: α ") and gamma.hint_text.endswith("drafted a pass")
    qtbot.mouseClick(toggle, Qt.MouseButton.LeftButton)
    h.run(2)
    assert sent(h)[-1] == {"draft_policy": "fixed"} and gamma._title.text() == "Draft length γ"


def test_a_policy_that_is_refused_says_so_under_the_slider(qtbot):
    h = Harness(qtbot)
    d = h.window.controls.drafting
    refusing(h, "not now")
    d.choices["draft_policy"].click()
    h.run(1)
    assert d.sliders["draft_length"].refusal == "not now" and d.choices["draft_policy"].value == "fixed"


# --- a draft model ---


def test_a_draft_model_is_asked_for_before_anything_is_sent(qtbot):
    h = Harness(qtbot)
    d = h.window.controls.drafting
    d.method.choose("model")
    h.run(2)
    assert sent(h) == [] and d.model.isVisibleTo(d) and d.method.value == "model" and d.method.told == "ngram"
    assert "Until then: n-gram." in d.model._hint.text()
    d.model.box.setText("  /models/small.gguf ")
    qtbot.keyClick(d.model.box, Qt.Key.Key_Return)
    assert sent(h) == [{"draft_method": "model", "draft_model": "/models/small.gguf"}]
    assert d.model._hint.text().startswith("Loading it…")
    h.run(2)
    assert d.method.told == "model" and d.model.box.text() == "/models/small.gguf"
    assert "Until then" not in d.model._hint.text() and not d.model.box.isModified()


def test_another_method_takes_the_question_back(qtbot):
    h = Harness(qtbot)
    d = h.window.controls.drafting
    d.method.choose("model")
    d.method.choose("suffix")
    h.run(2)
    assert sent(h) == [{"draft_method": "suffix"}] and not d.model.isVisibleTo(d)


def test_a_refused_draft_model_is_told_in_place_and_what_runs_goes_on(qtbot):
    h = Harness(qtbot)
    d = h.window.controls.drafting
    d.method.choose("model")
    refusing(h, "the draft model has another vocabulary: token 7 is 'a' there, 'b' here")
    d.model.box.setText("/models/other.gguf")
    qtbot.keyClick(d.model.box, Qt.Key.Key_Return)
    h.run(3)
    assert "another vocabulary" in d.method.refusal
    assert d.model.isVisibleTo(d) and d.model.box.text() == "/models/other.gguf", "it stays, to be mended"
    assert d.method.told == "ngram" == h.window.mirror.settings.draft_method
    assert "Until then: n-gram." in d.model._hint.text()


def test_another_checkpoint_while_one_drafts(qtbot):
    h = Harness(qtbot)
    d = set_to(h, draft_method="model", draft_model="/models/one")
    assert d.model.box.text() == "/models/one"
    d.method.choose("model")  # it is already
    d.model._take("/models/two")
    d.model._take("/models/three")
    h.run(2)
    assert sent(h)[-1] == {"draft_method": "model", "draft_model": "/models/three"}


def test_browsing(qtbot, monkeypatch):
    h = Harness(qtbot)
    d = set_to(h, draft_method="model", draft_model="/models/one")
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *a: ("/models/found.gguf", ""))
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *a: "")
    file, folder = d.model.browse.menu().actions()
    folder.trigger()  # nothing was chosen
    assert sent(h) == []
    file.trigger()
    assert sent(h) == [{"draft_method": "model", "draft_model": "/models/found.gguf"}]


def test_the_same_wish_with_something_else_along_is_another_wish():
    class Source:
        def __init__(self):
            self.sent: list[Change] = []

        def next_id(self):
            return len(self.sent) + 1

        def send(self, command):
            self.sent.append(command)

    source = Source()
    sender = ChangeSender(source)
    sender.wish("draft_method", "model", {"draft_model": "one"})
    sender.wish("draft_method", "model", {"draft_model": "two"})
    sender.settle({1: Ack(id=1, ok=True, step=3)})
    assert source.sent[-1].changes == {"draft_method": "model", "draft_model": "two"}


# --- what if ---


def test_simulating_is_begun_and_ended_by_a_button_and_steered_by_the_slider(qtbot):
    h = Harness(qtbot)
    d = h.window.controls.drafting
    d.more.setChecked(True)
    assert not d.simulated.slider.isVisibleTo(d), "folded while it is off"
    qtbot.mouseClick(d.simulate, Qt.MouseButton.LeftButton)
    assert sent(h) == [{"simulated_acceptance": [0.8]}]
    h.run(2)
    assert h.window.mirror.settings.simulated_acceptance == (0.8,) and d.simulated.slider.isVisibleTo(d)
    d.more.setChecked(False)
    assert d.simulated.isVisibleTo(d), "what is on stays in sight"
    d.simulated.slider.setValue(d.simulated._scale.position(0.5))
    assert sent(h)[-1] == {"simulated_acceptance": [0.5]}
    h.run(2)
    assert "meaningless" in d.simulated.hint_text
    qtbot.mouseClick(d.simulate, Qt.MouseButton.LeftButton)
    assert sent(h)[-1] == {"simulated_acceptance": []}
    h.run(2)
    assert not d.simulated.isVisibleTo(d) and not d.simulate.isChecked()


def test_rates_by_position_are_told(qtbot):
    h = Harness(qtbot)
    d = set_to(h, simulated_acceptance=(0.9, 0.7, 0.5))
    assert d.simulated.value == 0.9 and d.simulated.hint_text.startswith("by position 0.9, 0.7, 0.5")


def test_a_refused_rate(qtbot):
    h = Harness(qtbot)
    d = h.window.controls.drafting
    d.more.setChecked(True)
    refusing(h, "not with beams")
    d.simulate.click()
    h.run(1)
    assert d.simulated.refusal == "not with beams" and not d.simulate.isChecked()


def test_every_surface_says_simulated(qtbot):
    h = Harness(qtbot, size=(1920, 1080), views=None)
    window = h.window
    before = window.topbar.badge.text()
    assert not window.topbar.numbers.simulated
    set_to(h, simulated_acceptance=(0.8,))
    assert window.topbar.badge.text().startswith("SIMULATED α 0.8") and window.topbar.badge.content()[3]
    labels = [window.topbar.numbers.label(figure) for figure in window.topbar.numbers.shown()]
    assert "tok/s simulated" in labels and "accepted α simulated" in labels
    numbers = window.topbar.numbers  # of a real engine what doesn't follow from drafts stays measured
    numbers.show_figures(None, simulated=True)
    labels = [numbers.label(figure) for figure in numbers.shown()]
    assert "tok/s simulated" in labels and "accepted α simulated" in labels and "KV used" in labels
    assert {h.view(key).provenance for key in ("requests", "speculation", "batch", "latency")} == {"simulated"}
    requests = h.view("requests")
    window.selection.choose(window.mirror.live.running[-1])
    h.run(3)
    assert "meaningless" in requests.what_if_line.told.headline and not requests.what_if_line.isHidden()
    set_to(h, simulated_acceptance=())
    h.run(1)
    assert window.topbar.badge.text().split(" · ")[0] == before.split(" · ")[0] and not window.topbar.numbers.simulated
    assert requests.what_if_line.told is not None, "the text is still what it is"


def test_at_a_past_moment_the_rate_of_then_is_told(qtbot):
    h = Harness(qtbot)
    set_to(h, simulated_acceptance=(0.8,))
    simulated_at = h.window.mirror.live.step
    set_to(h, simulated_acceptance=())
    h.window.cursor.pin(simulated_at)
    h.frame()
    assert h.window.topbar.badge.text().startswith("SIMULATED α 0.8")


@pytest.mark.parametrize(
    ("first", "last", "expected"), [(1, 9, False), (5, 10, True), (12, 14, True), (19, 30, True), (20, 30, False)]
)
def test_whether_a_text_was_made_so(first, last, expected):
    on, off = Mark(10, 0, simulated.KEY, (), (0.8,)), Mark(20, 0, simulated.KEY, (0.8,), ())
    marks = [Mark(3, 0, "max_batch", 1, 2), on, off]
    now = LiveSettings()
    assert simulated.during(marks, now, first, last) == expected
    info = SequenceInfo(1)
    info.pieces = [("a", 0, first), ("b", 0, last)]
    assert bool(simulated.warning(info, marks, now)) == expected
    assert not simulated.warning(SequenceInfo(2), marks, now) and not simulated.warning(None, marks, now)


def test_it_still_goes_on():
    marks = [Mark(10, 0, simulated.KEY, (), (0.8,))]
    on = LiveSettings(simulated_acceptance=(0.8,))
    assert simulated.during(marks, on, 12, 13) and not simulated.during(marks, on, 2, 9)
    assert simulated.during([], on, 1, 2) and not simulated.during([], None, 1, 2)


# --- penalties ---


def test_penalties_stand_beside_temperature(qtbot):
    h = Harness(qtbot)
    controls = h.window.controls
    for key, value in (("repetition_penalty", 1.2), ("presence_penalty", 0.5), ("frequency_penalty", -0.5)):
        slider = controls.sliders[key]
        assert "off" in slider.hint_text and slider.limit_text
        slider.slider.setValue(slider._scale.position(value))
        h.run(2)
        assert sent(h)[-1] == {key: value} and "off" not in slider.hint_text
        assert slider.value == value


# --- hints, marks, flags ---


def test_hints_of_methods():
    now = reasons.Situation(LiveSettings(), scene().workload.settings, 16, model=scene().mirror.ready.model)
    quarter = max(1, now.model.layers // 4)
    assert reasons.hint("draft_layers", now) == f"the first {quarter} of {now.model.layers} draft: a quarter"
    assert "fewer than 2" in reasons.hint("ngram_min", now) and "last 4" in reasons.hint("ngram_max", now)


def test_marks_of_draft_settings_are_words():
    assert explain.change("simulated_acceptance", (), (0.9, 0.7)) == "simulated α off → 0.9, 0.7"
    assert explain.change("draft_policy", "fixed", "adaptive") == "γ fixed → adaptive"
    assert explain.change("draft_model", "", "/a/long/way/to/small.gguf") == "draft model none → small.gguf"


def speculation(settings: LiveSettings) -> dict | None:
    words = shlex.split(flags.vllm(settings, 16, "m"))
    flag = "--speculative-config"
    return json.loads(words[words.index(flag) + 1]) if flag in words else None


def test_vllms_flags_where_it_has_the_same():
    assert speculation(LiveSettings(draft_method="ngram", draft_length=5, ngram_min=3, ngram_max=6)) == {
        "method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 3, "prompt_lookup_max": 6,
    }  # fmt: skip
    assert speculation(LiveSettings(draft_method="suffix")) == {"method": "suffix", "num_speculative_tokens": 4}
    assert speculation(LiveSettings(draft_method="model", draft_model="/m s/x", draft_sampling="greedy")) == {
        "method": "draft_model", "num_speculative_tokens": 4, "model": "/m s/x", "draft_sample_method": "greedy",
    }  # fmt: skip
    what_if = speculation(LiveSettings(draft_method="suffix", draft_length=3, simulated_acceptance=(0.9, 0.5)))
    assert what_if["rejection_sample_method"] == "synthetic"
    assert what_if["synthetic_acceptance_rates"] == [0.9, 0.45, 0.225]


@pytest.mark.parametrize("method", ["head", "mixed", "layers", "bits"])
def test_and_a_line_where_it_has_not(method):
    settings = LiveSettings(draft_method=method)
    assert speculation(settings) is None
    assert f"no drafts like '{method}'" in flags.both(settings, 16, "default", "m", "auto")


def test_penalties_are_in_vllms_flags():
    words = shlex.split(flags.vllm(LiveSettings(repetition_penalty=1.1), 16, "m"))
    sampling = json.loads(words[words.index("--override-generation-config") + 1])
    assert sampling["repetition_penalty"] == 1.1 and sampling["frequency_penalty"] == 0


@pytest.mark.parametrize(
    "settings",
    [
        LiveSettings(),
        LiveSettings(draft_method="model", draft_model="/a folder/x.gguf", draft_policy="adaptive"),
        LiveSettings(draft_method="layers", draft_layers=3, draft_sampling="greedy", simulated_acceptance=(0.9, 0.7)),
        LiveSettings(ngram_min=1, ngram_max=7, repetition_penalty=1.1, presence_penalty=-0.5, frequency_penalty=0.25),
    ],
)
def test_our_own_line_starts_the_same_engine(settings):
    parser = Parser()
    add_engine_options(parser)
    made = engine_config(parser.parse_args(shlex.split(flags.ours(settings, 16))[1:]))
    assert made.settings == settings


def test_every_method_has_room_at_the_largest_text(qtbot):
    h = Harness(qtbot, size=(1280, 720), scale=2.0)
    area = h.window.controls.area
    h.window.controls.drafting.more.setChecked(True)
    for method in drafting.METHODS:
        set_to(h, draft_method=method, draft_policy="adaptive", simulated_acceptance=(0.8,))
        assert area.widget().minimumSizeHint().width() <= area.viewport().width(), method
