"""How numbers, settings and texts are written."""

from __future__ import annotations

import math

import pytest

from ui import explain

MIB = 1 << 20


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 MiB"),
        (23_040, "22.5 KiB"),
        (269 * MIB, "269 MiB"),
        (2 << 30, "2.00 GiB"),
        (-5 * MIB, "−5.00 MiB"),
        (math.nan, "–"),
    ],
)
def test_bytes_are_binary_units(value, text):
    assert explain.size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.00042, "0.42 ms"), (0.084, "84.0 ms"), (0.31, "310 ms"), (1.239, "1.24 s"), (200, "3 min 20 s"), (None, "–")],
)
def test_durations_have_three_figures(seconds, text):
    assert explain.duration(seconds) == text


def test_a_mark_names_the_setting_as_the_controls_do():
    assert explain.change("draft_length", 4, 8) == "γ 4 → 8"
    assert explain.change("kv_blocks", 512, 1024) == "KV blocks 512 → 1,024"
    assert explain.change("prefix_cache", True, False) == "prefix cache on → off"


def test_white_space_is_made_visible():
    assert explain.visible("\n") == "⏎"
    assert explain.visible(" ") == "·"
    assert explain.visible(" the ") == "the"
