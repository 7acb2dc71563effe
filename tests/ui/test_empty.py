"""Panels with nothing to show: what they say is whole, and the larger the panel the larger its letters."""

from __future__ import annotations

from itertools import pairwise

import pytest
from PySide6.QtCore import QRect
from PySide6.QtGui import QImage, QPainter

from tests.ui.scenes import scene, show
from ui.paint import labels
from ui.theme import Theme
from ui.views.beams import HINT, HINT_OF_SAMPLES, BeamsView


def said(monkeypatch, area: QRect, headline: str, hint: str, scale: float = 1.0) -> list[tuple[int, QRect, str]]:
    """What is written: height of the letters, where, and the words."""
    found, theme = [], Theme("dark", scale)
    real = labels.put

    def put(painter, x, y, height, text, font, color, key=""):
        width = real(painter, x, y, height, text, font, color, key)
        found.append((font.pixelSize(), QRect(x, y, width, height), text))
        return width

    monkeypatch.setattr(labels, "put", put)
    image = QImage(area.right() + 1, area.bottom() + 1, QImage.Format.Format_RGB32)
    painter = QPainter(image)
    labels.empty(painter, area, theme, headline, hint)
    painter.end()
    monkeypatch.undo()
    return found


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize(("wide", "high"), [(300, 100), (420, 160), (1400, 300), (1800, 900)])
def test_what_is_missing_and_what_would_bring_it_stand_whole_in_the_middle(qapp, monkeypatch, wide, high, scale):
    area = QRect(7, 9, round(wide * scale), round(high * scale))
    lines = said(monkeypatch, area, "No beams or samples yet", HINT, scale)
    assert lines[0][2] == "No beams or samples yet" and " ".join(text for _, _, text in lines[1:]) == HINT
    for (_, one, _), (_, other, _) in pairwise(lines):
        assert one.bottom() < other.top()
    assert all(area.contains(box) for _, box, _ in lines)
    above, below = lines[0][1].top() - area.top(), area.bottom() - lines[-1][1].bottom()
    assert abs(above - below) <= 4 * scale
    assert all(abs(box.center().x() - area.center().x()) <= 2 for _, box, _ in lines)


def test_letters_are_as_large_as_the_panel_bears(qapp, monkeypatch):
    sizes = [
        [size for size, _, _ in said(monkeypatch, QRect(0, 0, *size), "No step yet", "A bar appears here.")]
        for size in ((300, 100), (420, 160), (1400, 300))
    ]
    assert sizes == [[13, 12], [18, 13], [25, 18]]
    long = "A headline that is far too long for letters of that size in a panel of this width, so it takes smaller ones"
    assert said(monkeypatch, QRect(0, 0, 500, 400), long, "")[0][0] == 13


def test_in_no_room_nothing_breaks(qapp, monkeypatch):
    for wide, high in ((1, 1), (20, 8), (60, 20), (2000, 14)):
        assert all(len(text) > 2 for _, _, text in said(monkeypatch, QRect(0, 0, wide, high), "No pool yet", HINT))


@pytest.mark.parametrize("hint", [HINT, HINT_OF_SAMPLES])
def test_lanes_say_how_they_are_got(qtbot, hint):
    assert "Under Requests" in hint and "send a prompt" in hint and "×4" in hint
    view = show(qtbot, BeamsView(scene(steps=5)), 900, 400)
    assert view.moment is None and not view.grab().isNull()
