"""The memory calculator: factors that are edited, models that are chosen or opened, what is drawn, when and where."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QImage, QWheelEvent
from PySide6.QtWidgets import QAbstractSpinBox, QApplication, QToolTip

from engine.formulas import GIB, MIB
from tests.support.synthetic import NoProbe
from tests.ui.scenes import scene, show
from tests.ui.window_harness import Harness
from ui import calculator, layout
from ui.calculator import Line, levels, short, ticks
from ui.changes import Kinds
from ui.context import ViewContext
from ui.contracts import DeviceMemory
from ui.explain import size
from ui.views.calculator import CalculatorView
from ui.views.calculator_tables import told
from ui.views.catalog import VIEWS

TINY = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 512,
}  # fmt: skip


@pytest.fixture
def view(qtbot) -> CalculatorView:
    return show(qtbot, CalculatorView(scene()), 1500, 800)


def type_in(qtbot, box: QAbstractSpinBox, text: str) -> None:
    box.selectAll()
    qtbot.keyClicks(box, text)
    qtbot.keyClick(box, Qt.Key.Key_Return)


def choose(view: CalculatorView, name: str) -> None:
    view.choose_model([one.name for one in view._entries].index(name))


def picture(view: CalculatorView) -> np.ndarray:
    image = view.grab().toImage().convertToFormat(QImage.Format.Format_RGB32)
    return np.frombuffer(image.constBits(), np.uint8).copy()


# --- the formula ---


def test_it_begins_with_a_model_everyone_knows(view):
    shown = view.page.shown
    assert (shown.name, shown.chosen.name) == ("Llama-3 8B", "RTX 4090")
    assert shown.factors.kv == GIB and view.page._terms["kv"].text == "1.00 GiB"
    assert view.provenance == "derived"


@pytest.mark.parametrize(
    ("key", "typed", "kv"),
    [("layers", "64", 2 * GIB), ("kv_heads", "32", 4 * GIB), ("head_dim", "64", GIB // 2), ("batch", "32", 32 * GIB),
     ("context", "4,096", GIB // 2), ("kv_bytes", "0.5", GIB // 4), ("kv_bytes", "1", GIB // 2)],
)  # fmt: skip
def test_a_factor_typed_changes_the_figures(qtbot, view, key, typed, kv):
    before = picture(view)
    type_in(qtbot, view.page.boxes[key], typed)
    assert view.factors.kv == kv == view.page.shown.factors.kv
    assert view.page._terms["kv"].text == size(kv)
    assert not np.array_equal(before, picture(view))


def test_the_rest_of_the_factors(qtbot, view):
    type_in(qtbot, view.page.boxes["parameters"], "489,300,000")
    type_in(qtbot, view.page.boxes["weight_bytes"], "0.5")
    assert view.factors.weights == 489_300_000 / 2
    type_in(qtbot, view.page.boxes["headroom"], "25")
    assert view.factors.usable(100) == 75
    type_in(qtbot, view.page.boxes["context"], "8193")
    assert view.factors.kv_held - view.factors.kv == 15 * view.factors.kv_per_token
    type_in(qtbot, view.page.boxes["block_size"], "1")
    assert view.factors.kv_held == view.factors.kv


def test_an_edited_model_is_no_longer_that_model(qtbot, view):
    type_in(qtbot, view.page.boxes["batch"], "3")
    assert view.page.shown.name == "Llama-3 8B"  # the load is the user's anyway
    type_in(qtbot, view.page.boxes["kv_heads"], "4")
    assert view.page.shown.name == "Llama-3 8B, edited"


def test_numbers_are_shown_short(view):
    boxes = view.page.boxes
    assert [boxes[key].text() for key in ("parameters", "kv_bytes", "headroom")] == ["8,030,261,248", "2", "10 %"]
    view.edit("kv_bytes", 0.5625)
    assert boxes["kv_bytes"].text() == "0.5625"


@pytest.mark.parametrize("name", [one.name for one in calculator.presets()])
def test_a_preset_fills_the_formula_and_leaves_the_load(view, name):
    view.edit("batch", 3)
    view.edit("kv_bytes", 1.0)
    choose(view, name)
    wanted = next(one for one in calculator.presets() if one.name == name)
    factors = view.page.shown.factors
    assert (factors.layers, factors.kv_heads, factors.head_dim, factors.parameters) == (
        wanted.factors.layers, wanted.factors.kv_heads, wanted.factors.head_dim, wanted.factors.parameters,
    )  # fmt: skip
    assert (factors.batch, factors.kv_bytes) == (3, 1.0)
    assert view.page.boxes["layers"].value() == factors.layers
    assert view.page.models.currentText() == name


def test_a_context_beyond_what_was_trained_is_said(view):
    choose(view, "Llama-2 7B")
    assert "trained for contexts of 4,096 tokens" in view.page._words()[0]
    view.edit("context", 4096)
    assert view.page._words()[0] == ""


def test_the_largest_batch_and_context_fit(view):
    card = view.page.shown.chosen
    view.edit("batch", view.factors.largest_batch(card.bytes))
    assert view.factors.fits(card.bytes)
    view.edit("batch", view.factors.batch + 1)
    assert not view.factors.fits(card.bytes)
    assert not view.grab().isNull()


# --- cards ---


def test_cards_are_in_the_drivers_bytes_and_gigabytes_are_told_apart(view):
    found = {card.name: card for card in calculator.cards()}
    assert found["RTX 4090"].bytes == 24_564 * MIB and found["RTX 4090"].sold_as == 24
    tip = view.page.card.toolTip()
    assert "sold as 24 GB" in tip and "24,564 MiB = 24.0 GiB = 25.8 GB" in tip


def test_a_click_on_a_card_takes_it(qtbot, view, monkeypatch):
    said = []
    monkeypatch.setattr(QToolTip, "showText", lambda where, text, *_: said.append(text))
    view.grab()
    row = view.page._rows[-1]
    qtbot.mouseMove(view.page, row.center())
    assert view.page._under == len(view.page._rows) - 1
    assert "sold as 141 GB" in said[-1]
    qtbot.mouseClick(view.page, Qt.MouseButton.LeftButton, pos=row.center())
    assert view.page.shown.chosen.name == "H200" and view.page.card.currentText().startswith("H200")


def test_the_card_of_this_machine_comes_first(qtbot):
    sample = DeviceMemory(
        name="NVIDIA H200", total=140 * GIB, used=3 * GIB, reserved=GIB // 4, process=2 * GIB, others=GIB // 2
    )
    context = scene()
    context = ViewContext(**{**context.__dict__, "probe": NoProbe(sample)})
    view = show(qtbot, CalculatorView(context), 1500, 800)
    assert view.page.shown.card == 0 and view.page.shown.chosen.bytes == 140 * GIB
    assert "driver's figure on this machine" in view.page.card.toolTip()


# --- a config.json ---


def test_a_description_is_taken(view, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    view.open_config(tmp_path)
    factors = view.page.shown.factors
    assert (factors.layers, factors.heads, factors.kv_heads, factors.head_dim) == (2, 4, 2, 16)
    assert view.page.models.currentText() == tmp_path.name == view.page.shown.name
    assert view.page._words() == (f"{tmp_path.name}: trained for contexts of 512 tokens", "warning")


def test_a_broken_description_is_told_and_changes_nothing(view, tmp_path):
    before = view.page.shown.factors
    for data in ("{", "[]", json.dumps(TINY | {"num_hidden_layers": "<b>many</b>\n" * 99}), json.dumps({})):
        (tmp_path / "config.json").write_text(data)
        view.open_config(tmp_path / "config.json")
        words, token = view.page._words()
        assert words.startswith("Not taken: ") and token == "danger" and "\n" not in words
        assert view.page.shown.factors == before and not view.grab().isNull()
    view.edit("batch", 2)
    assert view.page._words()[0] == ""


@pytest.mark.qt_log_ignore("This plugin does not support")  # offscreen windows have no hints
def test_the_button_asks_for_a_file_and_the_window_goes_on(qtbot, view, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    qtbot.mouseClick(view.page.open, Qt.MouseButton.LeftButton)
    assert view.dialog.isVisible() and not view.dialog.isModal()
    view.dialog.fileSelected.emit(str(tmp_path / "config.json"))
    view.dialog.close()
    assert view.page.shown.factors.layers == 2 and not view.page.shown.problem


def test_what_this_engine_would_not_load_is_noted(view, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY | {"model_type": "falcon"}))
    view.open_config(tmp_path)
    assert "falcon is no kind that this engine loads" in view.page._words()[0]


# --- this engine ---


def test_the_running_engine_stands_beside_the_formula(view):
    lines = {line.name: line for line in view.page.shown.engine}
    state = view.context.cursor.state
    assert lines["KV pool"].engine == state.memory.kv_pool == lines["KV pool"].formula
    assert lines["KV a token"].engine == 23_040 and not lines["KV a token"].difference
    assert view.page.shown.source == view.context.source.provenance == "simulated"


def test_the_running_model_can_be_chosen(view):
    assert view.page.models.itemText(0) == "This engine: synthetic"
    view.choose_model(0)
    factors, memory = view.page.shown.factors, view.context.cursor.state.memory
    assert factors.kv_per_token == 23_040 and factors.weights == pytest.approx(memory.weights, rel=1e-4)


def test_a_difference_is_told():
    line = Line("weights", "bfloat16, all parts", 100, 90)
    assert line.difference == -10 and "the engine holds -10 B" in told(line)
    assert "equal to the byte" in told(Line("KV pool", "4 blocks", 100, 100))


def test_without_an_engine_it_calculates_all_the_same(qtbot):
    context = scene(steps=0)
    context.mirror.live.memory = None
    context.mirror.ready = None
    view = show(qtbot, CalculatorView(context), 1500, 800)
    assert view.page.shown.engine == () and view.page.models.itemText(0) == "Llama-2 7B"
    assert not view.grab().isNull()


# --- charts ---


def test_side_by_side_one_is_in_force(view):
    for name in ("Llama-2 13B", "Llama-3 70B", "Gemma 2B, multi-query"):
        choose(view, name)
        own = [one for one in calculator.by_attention(view.factors) if one.own]
        assert len(own) == 1 and own[0].factors == view.factors
    assert [one.name for one in calculator.by_precision(view.factors) if one.own] == ["fp16, bf16"]
    halves = [one.factors.kv for one in calculator.by_precision(view.factors)]
    assert halves[0] == 2 * halves[1] == 4 * halves[2]
    odd = calculator.by_precision(view.factors.with_(kv_bytes=4.0))
    assert [one.name for one in odd] == ["own", "fp16, bf16", "fp8", "int4"] and odd[0].own


def test_axes_have_round_figures():
    for top in (0.004, 0.3, 1, 1.7, 22, 30, 140, 900, 5e4):
        found = levels(top)
        assert found[0] == 0 and found[-1] <= top * 1.0001 and 3 <= len(found) <= 8
    assert levels(0) == [0.0]
    assert ticks(512, 1 << 18, 6) == [512, 2048, 8192, 32768, 131072]
    assert [short(n) for n in (512, 2048, 8193, 1 << 20)] == ["512", "2k", "8,193", "1M"]


@pytest.mark.parametrize("scale", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("size", [(130, 60), (330, 300), (730, 226), (1256, 517), (1576, 797), (3798, 1950)])
def test_inputs_stay_inside_and_apart(qtbot, size, scale):
    context = scene()
    context.theme.set_scale(scale)
    view = show(qtbot, CalculatorView(context), *size)
    assert not view.grab().isNull()
    page = view.page
    assert page.width() <= size[0] and page.height() >= size[1]
    if size[0] / scale < 300:
        return  # narrower than its widest input: scrolled to, not squeezed
    inputs = [page.models, page.open, page.card, *page.boxes.values()]
    boxes = [widget.geometry() for widget in inputs]
    for index, box in enumerate(boxes):
        assert page.rect().contains(box), inputs[index].accessibleName()
        assert not any(box.intersects(other) for other in boxes[index + 1 :])
    areas = [area for name, area in page._areas.items() if name != "words"]
    for index, area in enumerate(areas):
        assert not any(area.intersects(other) for other in areas[index + 1 :])


@pytest.mark.parametrize(
    "changes",
    [{"parameters": 1e13, "batch": 1e6, "context": 16_777_216}, {"parameters": 1, "layers": 1, "kv_heads": 1},
     {"headroom": 90}, {"kv_heads": 2000}, {"context": 1, "block_size": 4096}],
)  # fmt: skip
def test_extremes_are_drawn(view, changes):
    for key, value in changes.items():
        view.edit(key, value)
    failures = []
    view.failed.connect(failures.append)
    assert not view.grab().isNull() and not failures


def test_it_follows_the_theme(view):
    before = picture(view)
    view.context.theme.set_name("light")
    view.refresh(Kinds.THEME)
    assert not np.array_equal(before, picture(view))


# --- in the window ---


@pytest.fixture
def h(qtbot) -> Harness:
    harness = Harness(qtbot, views=None, steps=5)
    harness.window.activateWindow()
    qtbot.waitActive(harness.window)
    return harness


def test_it_is_closed_at_first_and_costs_nothing(h):
    dock = h.window.deck.docks["calculator"]
    assert dock.isHidden() and not dock.shown and dock.view.page is None
    assert all(other.isHidden() == other.view.aside for other in h.window.deck.docks.values())
    h.run(3)
    assert dock.view.page is None
    h.window.resize(1280, 720)
    QApplication.processEvents()
    h.window.resize(1600, 1000)
    QApplication.processEvents()
    assert dock.isHidden() and h.window.deck.docks["pool"].bar.title.isVisibleTo(h.window)


def test_its_key_opens_and_closes_it(qtbot, h):
    qtbot.keyClick(h.window, Qt.Key.Key_C)
    h.frame()
    dock = h.window.deck.docks["calculator"]
    assert h.window.deck.filled == "calculator" and dock.shown and dock.view.page.shown is not None
    box = dock.view.page.boxes["batch"]
    box.setFocus()
    qtbot.keyClick(box, Qt.Key.Key_C)  # a letter, while an input has the focus
    assert h.window.deck.filled == "calculator"
    qtbot.keyClick(box, Qt.Key.Key_Escape)
    qtbot.keyClick(h.window, Qt.Key.Key_C)
    h.frame()
    assert h.window.deck.filled is None and dock.isHidden() and h.window.deck.state() == ""
    assert h.window.deck.docks["pool"].shown and h.window.controls.isVisible()


def test_escape_closes_it_too(qtbot, h):
    qtbot.keyClick(h.window, Qt.Key.Key_C)
    qtbot.keyClick(h.window, Qt.Key.Key_Escape)
    h.frame()
    assert h.window.deck.docks["calculator"].isHidden()


def test_the_view_menu_opens_it_as_a_tab(h):
    menu = next(action.menu() for action in h.window.menu_bar.actions() if action.text() == "&View")
    next(action for action in menu.actions() if action.text() == "Memory calculator").trigger()
    QApplication.processEvents()
    dock = h.window.deck.docks["calculator"]
    assert dock.shown and not h.window.deck.docks["pool"].shown
    h.window.resize(1280, 720)
    QApplication.processEvents()
    assert not dock.isHidden()  # another default layout doesn't close it
    h.window.reset_layout()
    QApplication.processEvents()
    assert dock.isHidden()


def test_an_older_layout_is_restored_without_it(qtbot):
    """One remembered before there was a calculator."""
    store = layout.NoStore()
    old = Harness(qtbot, views=[one for one in VIEWS if not one.aside], settings=store, steps=3)
    old.window.deck.docks["memory"].close()
    old.window.deck._customised()
    old.window.close()
    again = Harness(qtbot, views=None, settings=store, theme=None, scale=None, size=None, steps=3)
    assert again.window.deck.docks["memory"].isHidden()
    assert again.window.deck.docks["calculator"].isHidden()
    again.window.fill("calculator")
    QApplication.processEvents()
    assert again.window.deck.docks["calculator"].shown


def test_the_wheel_over_a_list_scrolls_and_an_unfocused_number_is_left_alone(qtbot, h):
    h.window.fill("calculator")
    h.frame()
    page = h.window.deck.docks["calculator"].view.page
    for widget, value in ((page.models, page.models.currentIndex), (page.boxes["batch"], page.boxes["batch"].value)):
        before = value()
        event = QWheelEvent(
            QPointF(5, 5), QPointF(5, 5), QPoint(0, 0), QPoint(0, 120), Qt.MouseButton.NoButton,
            Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase, False,
        )  # fmt: skip
        QApplication.sendEvent(widget, event)
        assert value() == before


def test_what_is_typed_is_not_overwritten_by_a_frame(qtbot, h):
    h.window.fill("calculator")
    h.frame()
    box = h.window.deck.docks["calculator"].view.page.boxes["context"]
    box.setFocus()
    box.selectAll()
    qtbot.keyClicks(box, "12")
    h.run(2)
    assert box.lineEdit().text() == "12"
    qtbot.keyClick(box, Qt.Key.Key_Return)
    assert h.window.deck.docks["calculator"].view.factors.context == 12
