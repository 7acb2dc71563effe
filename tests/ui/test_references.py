"""Painting loses no references. PySide6 6.12.0 on Python 3.11 loses about 3 to True and 12 to None with each frame
of a plot, until the interpreter aborts; a version that does so must fail here."""

from __future__ import annotations

import ctypes
import gc
import sys
from statistics import median

import pytest
from PySide6.QtWidgets import QApplication

from tests.ui.window_harness import Harness
from ui.changes import Kinds
from ui.layout import ROOMY

FRAMES = 1_000
PARTS = 10  # a loss comes with every frame, so it shows in each part; what something else lets go of, it does once
# Of a window that shows the same moment again and again nothing is lost at all; a few may go to and fro with Python's
# own caches. One reference lost in every tenth frame shows.
NOISE_PER_FRAME = 0.1
CONSTANTS = (True, False, None)
OF_A_STEP = Kinds.STEPS | Kinds.BLOCKS | Kinds.TABLES | Kinds.QUEUE | Kinds.TOKENS | Kinds.DRAFTS | Kinds.MEMORY


@pytest.fixture
def h(qtbot) -> Harness:
    harness = Harness(qtbot, size=(1600, 1000), views=None)
    assert all(harness.window.deck.docks[cell.views[0]].shown for row in ROOMY for cell in row.cells)
    for _ in range(200):  # a stream, until caches are full; what it adds to the history would hide losses
        harness.source.advance(1)
        paint(harness)
    return harness


@pytest.mark.slow
def test_a_thousand_painted_frames_lose_no_reference_to_the_constants(h: Harness) -> None:
    lost = steadily_lost(h, FRAMES)
    assert max(lost.values()) < NOISE_PER_FRAME, lost


def test_a_loss_is_seen(h: Harness, monkeypatch) -> None:
    """One reference to None with each frame, a twelfth of what the faulty version loses."""
    stolen = 0
    refresh = h.view("pool").refresh

    def steal(kinds: Kinds) -> None:
        nonlocal stolen
        refresh(kinds)
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(None))
        stolen += 1

    monkeypatch.setattr(h.view("pool"), "refresh", steal)
    lost = steadily_lost(h, 200)
    for _ in range(stolen):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(None))
    assert stolen >= 200 and lost["None"] > NOISE_PER_FRAME, lost


def test_what_is_let_go_of_once_is_no_loss(h: Harness, monkeypatch) -> None:
    """Caches and objects of whatever ran before in this process may end while frames are painted."""
    held, refresh = [None] * 500, h.view("pool").refresh
    painted = 0

    def let_go(kinds: Kinds) -> None:
        nonlocal painted
        refresh(kinds)
        painted += 1
        if painted == 50:
            held.clear()

    monkeypatch.setattr(h.view("pool"), "refresh", let_go)
    lost = steadily_lost(h, 200)
    assert not held and lost["None"] < NOISE_PER_FRAME, lost


def steadily_lost(h: Harness, frames: int) -> dict[str, float]:
    """References to each constant that go with a painted frame: the median of parts."""
    parts = [loss(h, frames // PARTS) for _ in range(PARTS)]
    return {name: median(part[name] for part in parts) / (frames // PARTS) for name in parts[0]}


def loss(h: Harness, frames: int) -> dict[str, int]:
    """References to each constant that are gone after that many painted frames."""
    gc.collect()
    h.window.frames.clear()
    before = [sys.getrefcount(constant) for constant in CONSTANTS]
    while h.window.frames.count < frames:
        paint(h)
    gc.collect()
    after = [sys.getrefcount(constant) for constant in CONSTANTS]
    return {str(c): was - now for c, was, now in zip(CONSTANTS, before, after, strict=True)}


def paint(h: Harness) -> None:
    """A frame in which every view redraws what a step changes."""
    h.window.frame.mark(OF_A_STEP)
    h.window.clock.tick()
    QApplication.processEvents()
