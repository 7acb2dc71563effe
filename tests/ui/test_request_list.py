"""The list of requests at the scale of a data-centre card: 256 running, 10,000 finished. What a frame costs doesn't
depend on them, and every one of them can be reached by mouse and keyboard."""

from __future__ import annotations

from collections import deque
from time import perf_counter

import pytest
from PySide6.QtCore import QPoint, Qt

from engine.records import Refused
from ui.latency import BEGINNING, KEPT_REQUESTS, FinishedRequest, Latency
from ui.sequences import SequenceInfo
from ui.state import Applied
from ui.theme import Theme
from ui.views import request_list
from ui.views.request_list import RequestList

RUNNING = 256


def finished(seq: int, text: str = "") -> FinishedRequest:
    return FinishedRequest(
        seq=seq, number=seq, label="", prompt=f"prompt {seq}", prompt_tokens=9, output_tokens=4, arrival=0, admitted=0,
        first_token=1, last_token=2, ttft=0.01, tpot=0.01, e2e=1.0, queue=0.0, reason="stop", aborted=False, drafted=0,
        accepted=0, preemptions=0, cached_tokens=0, text=text, finish_step=seq, finish_clock=seq,
    )  # fmt: skip


def running(seq: int) -> SequenceInfo:
    info = SequenceInfo(seq)
    info.number, info.status, info.prompt, info.max_tokens = seq, "running", "a prompt", 100
    return info


class Scene:
    """A list of `past` finished requests, and the newest sequences running."""

    def __init__(self, qtbot, past: int, height: int = 600):
        self.done = deque((finished(seq) for seq in range(1, past + 1)), maxlen=KEPT_REQUESTS)
        self.ended = past
        self.live = [running(past + 1 + i) for i in range(RUNNING)]
        self.list = RequestList(Theme())
        qtbot.addWidget(self.list)
        self.list.resize(400, height)
        with qtbot.waitExposed(self.list):
            self.list.show()
        self.list.chosen.connect(self._choose)
        self.refused: list[Refused] = []
        self.tell()

    def _choose(self, seq: int) -> None:
        self.list.selected = seq

    def tell(self) -> None:
        gone = self.ended - len(self.done)
        self.list.show_entries(self.live, RUNNING, self.refused, self.done, len(self.done), gone)

    def end_one(self) -> None:
        """The oldest that runs ends, and another begins."""
        self.done.append(finished(self.live.pop(0).seq))
        self.ended += 1
        self.live.append(running(self.live[-1].seq + 1))
        self.tell()

    def seq_at(self, y: int) -> int | None:
        index = self.list.index_at(QPoint(50, y))
        return None if index is None else self.list.row(index).seq


def painted(scene: Scene, monkeypatch) -> int:
    """Rows made for one paint."""
    count, real = [], request_list.describe
    monkeypatch.setattr(request_list, "describe", lambda *args: count.append(1) or real(*args))
    scene.list.viewport().repaint()
    monkeypatch.undo()
    return len(count)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_only_rows_in_sight_are_made(qtbot, monkeypatch, share):
    few, many = Scene(qtbot, 100), Scene(qtbot, KEPT_REQUESTS)
    for scene in (few, many):
        bar = scene.list.verticalScrollBar()
        bar.setValue(int(share * bar.maximum()))
    seen = few.list.viewport().height() // few.list.pitch + 2
    assert 0 < painted(many, monkeypatch) <= seen
    assert abs(painted(many, monkeypatch) - painted(few, monkeypatch)) <= 1


def test_a_frame_takes_no_longer_with_a_hundred_times_the_requests(qtbot):
    scenes = [Scene(qtbot, 100), Scene(qtbot, KEPT_REQUESTS)]
    best = [float("inf")] * 2
    for _ in range(30):  # in turns, the best of each: another process may have taken the core
        for place, scene in enumerate(scenes):
            bar = scene.list.verticalScrollBar()
            bar.setValue(bar.maximum() // 2)
            began = perf_counter()
            scene.tell()
            scene.list.viewport().repaint()
            best[place] = min(best[place], perf_counter() - began)
    assert best[1] < 3 * best[0]


def test_every_row_can_be_scrolled_to_and_clicked(qtbot):
    scene = Scene(qtbot, KEPT_REQUESTS)
    listed, bar = scene.list, scene.list.verticalScrollBar()
    for index in (0, RUNNING - 1, RUNNING, 5_000, RUNNING + KEPT_REQUESTS - 1):
        bar.setValue(index * listed.pitch)
        y = index * listed.pitch - bar.value() + 3
        qtbot.mousePress(listed.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(60, y))
        expected = scene.live[index].seq if index < RUNNING else KEPT_REQUESTS - (index - RUNNING)
        assert listed.selected == expected
        assert listed.index_of(expected) == index


def test_keys_walk_to_the_oldest_and_back(qtbot):
    scene = Scene(qtbot, KEPT_REQUESTS)
    listed, bar = scene.list, scene.list.verticalScrollBar()
    page = listed.viewport().height() // listed.pitch - 1
    press = lambda key: qtbot.keyClick(listed, key)  # noqa: E731
    press(Qt.Key.Key_Down)
    assert listed.selected == scene.live[0].seq
    press(Qt.Key.Key_End)
    assert listed.selected == 1 and bar.value() == bar.maximum()
    press(Qt.Key.Key_Up)
    assert listed.selected == 2, "the last rows are reached from each other, thousands from the first"
    press(Qt.Key.Key_PageUp)
    assert listed.selected == 2 + page
    press(Qt.Key.Key_Home)
    assert listed.selected == scene.live[0].seq and bar.value() == 0


def test_keys_pass_over_what_was_refused(qtbot):
    scene = Scene(qtbot, 5)
    scene.refused = [Refused(number=900, message="no"), Refused(number=901, message="no")]
    scene.tell()
    scene.list.selected = scene.live[-1].seq
    qtbot.keyClick(scene.list, Qt.Key.Key_Down)
    assert scene.list.selected == 5
    qtbot.keyClick(scene.list, Qt.Key.Key_Up)
    assert scene.list.selected == scene.live[-1].seq


@pytest.mark.parametrize("past", [2_000, KEPT_REQUESTS])
def test_rows_stay_under_the_eyes_of_who_scrolled_while_requests_end(qtbot, past):
    """Also once the oldest fall out for the newest."""
    scene = Scene(qtbot, past)
    scene.list.verticalScrollBar().setValue(700 * scene.list.pitch)
    before = scene.seq_at(100)
    for _ in range(20):
        scene.end_one()
    assert scene.seq_at(100) == before


def test_texts_are_bounded_and_the_oldest_are_cut(monkeypatch):
    from ui import latency as module

    monkeypatch.setattr(module, "KEPT_TEXT", 50_000)
    kept = Latency()
    kept.keep(0.01)
    for seq in range(1, 400):
        info = running(seq)
        info.status, info.finish_reason, info.pieces = "finished", "stop", [("x" * 1_000, 0, seq)]
        kept.add(Applied(ended=[info]), 1, seq)
        assert sum(len(each.text) for each in kept.requests) <= 50_000 + 1_000
        assert kept.requests[-1].text == "x" * 1_000
    assert len(kept.requests) == 100 and kept.ended == 399
    assert kept.requests[0].text.startswith("x" * BEGINNING) and "kept no more" in kept.requests[0].text
