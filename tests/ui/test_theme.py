"""Contrast, colour vision, stability of the sequences' hues, fonts."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QFontMetrics
from PySide6.QtWidgets import QSlider

from ui import fonts, palette
from ui.theme import SCALES, SEQUENCE_HUES, TOKENS, WORDS, Theme, token_rgb

THEMES = ("dark", "light")


@pytest.mark.parametrize("name", THEMES)
@pytest.mark.parametrize("token", WORDS)
def test_words_are_readable(name, token):
    for surface in ("panel", "raised"):
        ratio = palette.contrast(token_rgb(token, name), token_rgb(surface, name))
        assert ratio >= 4.5, f"{token} on {surface}, {name}: {ratio:.2f}"
    assert palette.contrast(token_rgb("text_dim", name), token_rgb("bg", name)) >= 4.5


@pytest.mark.parametrize("name", THEMES)
@pytest.mark.parametrize("deficiency", [None, *palette.DEFICIENCIES])
def test_kinds_of_token_differ_for_every_eye(name, deficiency):
    def seen(token):
        rgb = token_rgb(token, name)
        return palette.seen_with(rgb, deficiency) if deficiency else rgb

    kinds = ("prefill", "decode", "accepted", "rejected")
    for a, b in combinations(kinds, 2):
        assert palette.difference(seen(a), seen(b)) > 0.05, f"{a} and {b} look alike ({deficiency}, {name})"


@pytest.mark.parametrize("name", THEMES)
def test_block_states_differ_from_each_other_and_the_panel(name):
    for a, b in combinations(("free", "cached", "kv_used"), 2):
        assert palette.difference(token_rgb(a, name), token_rgb(b, name)) > 0.08


def test_palette_round_trip():
    for lightness, chroma, hue in ((0.7, 0.1, 30), (0.5, 0.05, 200), (0.9, 0.02, 300)):
        rgb = palette.oklch_to_rgb(lightness, chroma, hue)
        back = palette.rgb_to_oklab(rgb)
        assert back[0] == pytest.approx(lightness, abs=1e-3)
        assert np.hypot(back[1], back[2]) == pytest.approx(chroma, abs=1e-3)


def test_out_of_gamut_keeps_lightness():
    rgb = palette.oklch_to_rgb(0.7, 0.4, 150)
    assert all(0 <= c <= 1 for c in rgb)
    assert palette.rgb_to_oklab(rgb)[0] == pytest.approx(0.7, abs=5e-3)


def test_contrast_of_black_and_white_is_21():
    assert palette.contrast((0, 0, 0), (1, 1, 1)) == pytest.approx(21)


@pytest.mark.parametrize("name", THEMES)
def test_sequence_hues(qapp, name):
    theme = Theme(name)
    table = theme.sequence_rgb()
    assert table.shape == (SEQUENCE_HUES, 3) and table.dtype == np.uint8
    assert len({tuple(row) for row in table}) == SEQUENCE_HUES
    for seq in (0, 5, 23, 24, 1000):
        assert theme.sequence_color(seq).getRgb()[:3] == tuple(table[seq % SEQUENCE_HUES])
    close = [palette.difference(table[i] / 255, table[(i + 1) % SEQUENCE_HUES] / 255) for i in range(SEQUENCE_HUES)]
    assert min(close) > 0.12  # sequences next to each other in number
    pairs = [palette.difference(table[i] / 255, table[j] / 255) for i, j in combinations(range(SEQUENCE_HUES), 2)]
    assert min(pairs) > 0.03


def test_changes_are_told_once(qtbot):
    theme = Theme()
    with qtbot.waitSignal(theme.changed):
        theme.set_name("light")
    with qtbot.waitSignal(theme.changed):
        theme.set_scale(9)
    assert theme.scale == 2.0 and theme.px(4) == 8
    with qtbot.assertNotEmitted(theme.changed):
        theme.set_scale(2.0)
        theme.set_name("light")


def test_every_token_has_a_colour_and_the_sheet_has_all_its_own(qapp):
    for name in THEMES:
        theme = Theme(name)
        assert all(isinstance(theme.color(token), QColor) for token in TOKENS)
        assert "$" not in theme.qss()
        for seq in range(SEQUENCE_HUES):
            fill = theme.sequence_color(seq)
            ink = theme.ink_on(fill)
            ratio = palette.contrast(
                (fill.redF(), fill.greenF(), fill.blueF()), (ink.redF(), ink.greenF(), ink.blueF())
            )
            assert ratio >= 4.5, (name, seq, ratio)


def test_shipped_fonts_are_used_with_figures_of_one_width(qapp):
    theme = Theme()
    for role in fonts.ROLES:
        assert fonts.shipped(theme.font(role)), role
    metrics = QFontMetrics(theme.font("headline"))
    assert metrics.horizontalAdvance("1111") == metrics.horizontalAdvance("8888")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["dark", "light"])
def test_the_handle_of_a_slider_is_round_at_every_size_of_text(qtbot, name, scale):
    theme, slider = Theme(name, scale), QSlider(Qt.Orientation.Horizontal)
    qtbot.addWidget(slider)
    slider.setStyleSheet(theme.qss())
    slider.setRange(0, 100)
    slider.setValue(50)
    slider.resize(400, theme.px(24))
    image, ink = slider.grab().toImage(), theme.color("text").name()
    box = [(x, y) for x in range(image.width()) for y in range(image.height()) if image.pixelColor(x, y).name() == ink]
    left, right, top, bottom = (
        end(values) for values in ([x for x, _ in box], [y for _, y in box]) for end in (min, max)
    )
    assert abs((right - left) - (bottom - top)) <= 2 and right - left >= theme.px(10)  # its edges are blended
    corners = {(x, y) for x in (left, left + 1) for y in (top, top + 1)}
    assert not corners & set(box)
