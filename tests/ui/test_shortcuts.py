"""Keys act on the window, and only while no input has the focus."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLineEdit, QPlainTextEdit, QTextEdit

from engine.records import Pause, Resume, StepOnce
from tests.ui.window_harness import Harness
from ui.shortcuts import KEYS, is_input


@pytest.fixture
def h(qtbot):
    harness = Harness(qtbot)
    harness.window.activateWindow()
    qtbot.waitActive(harness.window)
    return harness


def _press(qtbot, h, key, modifier=Qt.KeyboardModifier.NoModifier):
    qtbot.keyClick(h.window, key, modifier)
    h.frame()


def test_space_pauses_and_resumes(qtbot, h):
    _press(qtbot, h, Qt.Key.Key_Space)
    assert len(h.sent(Pause)) == 1
    _press(qtbot, h, Qt.Key.Key_Space)
    assert len(h.sent(Resume)) == 1


def test_right_steps(qtbot, h):
    _press(qtbot, h, Qt.Key.Key_Right)
    assert len(h.sent(StepOnce)) == 1


def test_shift_arrows_move_in_time_and_escape_returns(qtbot, h):
    _press(qtbot, h, Qt.Key.Key_Left, Qt.KeyboardModifier.ShiftModifier)
    _press(qtbot, h, Qt.Key.Key_Left, Qt.KeyboardModifier.ShiftModifier)
    assert h.window.cursor.pinned == 38
    _press(qtbot, h, Qt.Key.Key_Right, Qt.KeyboardModifier.ShiftModifier)
    assert h.window.cursor.pinned == 39
    _press(qtbot, h, Qt.Key.Key_Escape)
    assert h.window.cursor.is_live


def test_plus_and_minus_set_the_text_scale(qtbot, h):
    _press(qtbot, h, Qt.Key.Key_Plus)
    assert h.window.theme.scale == 1.25
    for _ in range(9):
        _press(qtbot, h, Qt.Key.Key_Plus)
    assert h.window.theme.scale == 2.0
    _press(qtbot, h, Qt.Key.Key_Minus)
    assert h.window.theme.scale == 1.75


def test_f11_and_help(qtbot, h):
    _press(qtbot, h, Qt.Key.Key_F11)
    assert h.window.isFullScreen()
    _press(qtbot, h, Qt.Key.Key_F11)
    assert not h.window.isFullScreen()
    _press(qtbot, h, Qt.Key.Key_Question)
    assert h.window.help.isVisible()
    h.window.help.grab()
    _press(qtbot, h, Qt.Key.Key_Escape)
    assert not h.window.help.isVisible()


def test_f_fills_with_the_view_under_the_mouse(qtbot, h, monkeypatch):
    monkeypatch.setattr(h.window.deck, "under_mouse", lambda: "tables")
    _press(qtbot, h, Qt.Key.Key_F)
    assert h.window.deck.filled == "tables"
    _press(qtbot, h, Qt.Key.Key_F)
    assert h.window.deck.filled is None


def test_double_click_on_an_empty_part_fills(qtbot, h):
    qtbot.mouseDClick(h.view("memory"), Qt.MouseButton.LeftButton)
    assert h.window.deck.filled == "memory"
    qtbot.mouseDClick(h.window.deck.docks["memory"].bar, Qt.MouseButton.LeftButton)
    assert h.window.deck.filled is None


def test_an_input_keeps_its_keys_and_escape_leaves_it(qtbot, h):
    box = h.window.controls.sliders["max_batch"].box
    box.setFocus()
    for key in (Qt.Key.Key_Space, Qt.Key.Key_Right, Qt.Key.Key_F, Qt.Key.Key_Plus, Qt.Key.Key_Question):
        qtbot.keyClick(box, key)
    h.frame()
    assert h.sent(Pause) == [] and h.sent(StepOnce) == []
    assert h.window.theme.scale == 1.0 and h.window.deck.filled is None and not h.window.help.isVisible()
    qtbot.keyClick(box, Qt.Key.Key_Escape)
    assert not box.hasFocus()
    _press(qtbot, h, Qt.Key.Key_Space)
    assert len(h.sent(Pause)) == 1


def test_a_click_beside_an_input_gives_the_keys_back(qtbot, h):
    box = h.window.controls.sliders["max_batch"].box
    box.setFocus()
    qtbot.mouseClick(h.view("tables"), Qt.MouseButton.LeftButton)
    assert not box.hasFocus() or not is_input(h.window.focusWidget())


def test_no_input_has_the_focus_at_first(qtbot, h):
    assert not is_input(h.window.focusWidget())


def test_what_counts_as_an_input(qtbot, h):
    writable, reader = QPlainTextEdit(), QTextEdit()
    reader.setReadOnly(True)
    for widget in (writable, reader):
        qtbot.addWidget(widget)
    assert is_input(writable) and is_input(h.window.controls.sliders["max_batch"].slider)
    assert not is_input(reader) and not is_input(None) and not is_input(h.window)
    line = QLineEdit()
    qtbot.addWidget(line)
    assert is_input(line)


def test_every_key_has_words():
    assert all(key.shown and key.meaning for key in KEYS)
    assert len({k for key in KEYS for k in key.keys}) == sum(len(key.keys) for key in KEYS)
