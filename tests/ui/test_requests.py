"""Requests and playground: sending, streaming with origins coloured, following, choosing, aborting, refusals."""

from __future__ import annotations

import time

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QGuiApplication

from engine.records import NONE, Abort, Dropped, Preempted, Refused
from tests.ui.scenes import advance, scene, show
from ui.changes import Kinds
from ui.paint.text_flow import TextFlow, style
from ui.sequences import SequenceInfo
from ui.state import Applied
from ui.views.composer import Asked
from ui.views.request_list import describe
from ui.views.requests import RequestsView


@pytest.fixture
def view(qtbot):
    return show(qtbot, RequestsView(scene(steps=120)), 900, 500)


# --- text ---


@pytest.fixture
def flow(qtbot):
    made = TextFlow()
    qtbot.addWidget(made)
    from ui.theme import Theme

    theme = Theme()
    made.restyle(theme.font("body"), [style(theme.color("text")), style(theme.color("accepted"), under="line")])
    return made


def test_text_grows_at_its_end_without_being_written_anew(flow):
    runs = [("a", 0), ("b", 1)]
    flow.show_runs(1, runs)
    runs.append(("c", 1))
    flow.show_runs(1, runs)
    assert flow.toPlainText() == "abc" and flow.rebuilt == 1 and flow.written == 3


def test_text_that_differs_is_written_anew(flow):
    flow.show_runs(1, [("a", 0), ("b", 1)])
    flow.show_runs(1, [("a", 0)])
    assert flow.toPlainText() == "a"
    flow.show_runs(1, [("x", 0)])
    assert flow.toPlainText() == "x"
    flow.show_runs(2, [("x", 0), ("y", 0)])
    assert flow.toPlainText() == "xy"


def test_markup_in_text_is_text(flow):
    flow.show_runs(1, [("<b>bold</b>\n", 0)])
    assert flow.toPlainText() == "<b>bold</b>\n"


# --- the view ---


def test_it_follows_the_newest_running_request(view):
    state = view.context.cursor.state
    assert view.shown == state.running[-1]
    assert state.sequences[view.shown].text in view.text.toPlainText()
    assert "following" in view.status.text()


def test_the_text_streams(view):
    before = view.text.toPlainText()
    shown = view.shown
    advance(view.context, 2)
    view.refresh(Kinds.TOKENS)
    info = view.context.cursor.state.info(shown)
    assert view.text.toPlainText().endswith(info.text.rstrip("\n")[-20:]) and len(view.text.toPlainText()) >= len(
        before
    )


def test_accepted_tokens_are_green_and_underlined(view):
    info = next(i for i in view.context.cursor.state.sequences.values() if any(o == 1 for _, o, _ in i.pieces))
    view.context.selection.choose(info.seq)
    view.refresh(Kinds.SELECTION)
    start = len(info.prompt.rstrip() + "\n\n")
    for text, origin, _ in info.pieces:
        if origin == 1 and text.strip():
            break
        start += len(text)
    cursor = view.text.textCursor()
    cursor.setPosition(start + 1)
    assert cursor.charFormat().fontUnderline()
    assert cursor.charFormat().foreground().color() == view.context.theme.color("accepted")


def test_choosing_a_row_chooses_the_sequence_everywhere(view, qtbot):
    seq = view.list.row(2).seq
    spot = QPoint(40, view.list.pitch * 2 + 4)
    qtbot.mouseClick(view.list.viewport(), Qt.MouseButton.LeftButton, pos=spot)
    assert view.context.selection.seq == seq
    view.refresh(Kinds.SELECTION)
    assert view.shown == seq and "following" not in view.status.text()


def test_rows_are_running_then_waiting_then_finished(view):
    advance(view.context, 200)
    view.refresh(Kinds.ALL)
    state, history = view.context.cursor.state, view.context.mirror.history
    assert len(view.list) == len(state.running) + len(state.waiting) + len(history.requests)
    assert view.list.row(0).seq == state.running[-1]
    first_finished = view.list.entry(len(state.running) + len(state.waiting))
    assert first_finished is history.requests[-1]


def test_at_a_past_moment_later_requests_are_not_finished(view):
    advance(view.context, 300)
    view.context.cursor.pin(100)
    view.refresh(Kinds.ALL)
    ended = [r for r in view.context.mirror.history.requests if r.finish_step <= 100]
    assert view.list._finished_count == len(ended) < len(view.context.mirror.history.requests)


def test_enter_sends_what_was_typed(view, qtbot):
    view.composer.tokens.setValue(33)
    view.composer.temperature.setValue(0.7)
    qtbot.keyClicks(view.composer.prompt, "hello")
    qtbot.keyClick(view.composer.prompt, Qt.Key.Key_Return)
    (asked,) = view.context.workload.asked
    assert (asked.prompt, asked.max_tokens, asked.sampling.temperature, asked.label) == ("hello", 33, 0.7, "playground")
    assert view.composer.prompt.toPlainText() == ""


def test_several_answers_and_beams_are_asked_for(view, qtbot):
    composer = view.composer
    composer.ways.setValue(3)
    qtbot.keyClicks(composer.prompt, "samples")
    qtbot.keyClick(composer.prompt, Qt.Key.Key_Return)
    composer.beams.click()
    assert composer.ways.value() == 3 and not composer.temperature.isEnabled()
    qtbot.keyClicks(composer.prompt, "beams")
    qtbot.keyClick(composer.prompt, Qt.Key.Key_Return)
    first, second = view.context.workload.asked
    assert (first.n, first.beams, first.sampling.temperature) == (3, 0, 0.0)
    assert (second.n, second.beams, second.sampling.temperature) == (1, 3, None)
    composer.beams.click()
    composer.ways.setValue(1)
    composer.beams.click()
    assert composer.ways.value() == 4


def test_shift_enter_begins_a_new_line(view, qtbot):
    qtbot.keyClicks(view.composer.prompt, "a")
    qtbot.keyClick(view.composer.prompt, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    qtbot.keyClicks(view.composer.prompt, "b")
    assert view.composer.prompt.toPlainText() == "a\nb" and not view.context.workload.asked


def test_an_empty_prompt_is_not_sent(view, qtbot):
    qtbot.keyClick(view.composer.prompt, Qt.Key.Key_Return)
    assert not view.context.workload.asked and "empty" in view.composer.problem.text()


def test_what_was_sent_is_shown_once_the_engine_knows_it(view):
    view.send(Asked("hello", 10, 0.0))
    info = SequenceInfo(9999, number=1, prompt_tokens=3)
    view.context.mirror.live.sequences[9999] = info
    view.refresh(Kinds.QUEUE)
    assert view.context.selection.seq == 9999


def test_a_refusal_is_told_where_the_prompt_was_typed(view):
    view.send(Asked("hello", 10, 0.0))
    view.context.mirror.apply(Refused(number=1, message="the prompt has 5,000 tokens, max context is 2,048"))
    view.refresh(Kinds.SOURCE)
    assert "5,000 tokens" in view.composer.problem.text()
    assert describe(Refused(number=1, message="m")).state == "refused"


def test_abort_names_the_request(view):
    view.abort()
    (sent,) = [c for c in view.context.source.sent if isinstance(c, Abort)]
    assert sent.number == view.context.cursor.state.info(view.shown).number


def test_a_past_request_cannot_be_aborted(view):
    view.context.cursor.pin(100)
    view.refresh(Kinds.CURSOR)
    assert not view.abort_button.isEnabled()


def test_copy_takes_the_answer(view):
    view.copy()
    assert QGuiApplication.clipboard().text() == view.context.cursor.state.info(view.shown).text


def test_a_request_that_ended_long_ago_keeps_its_text(view):
    advance(view.context, 2500)
    old = view.context.mirror.history.requests[0]
    assert view.context.cursor.state.info(old.seq) is None
    view.context.selection.choose(old.seq)
    view.refresh(Kinds.SELECTION)
    assert old.text[:40] in view.text.toPlainText() and "latest requests only" in view.text.toPlainText()


def test_states_in_words():
    info = SequenceInfo(5, prompt_tokens=180)
    assert describe(info, 2).right == "#2 in the queue"
    info.status, info.computed, info.known, info.max_tokens = "running", 64, 180, 96
    assert describe(info).state == "prefill 64/180"
    info.first_token, info.computed, info.known = 1, 190, 191
    assert describe(info).right == "11/96 tokens"
    info.status, info.preempted, info.lost = "waiting", True, 212
    assert describe(info).state == "preempted ↺ 212 tok"
    info.swapped = 200
    assert describe(info).state == "on the host 200 tok"


def preempt(view, **fields) -> str:
    """The line above the text of a running sequence that was preempted so."""
    state = view.context.mirror.live
    seq = state.running[0]
    event = Preempted(**{"seq": seq, "cause": "kv_blocks", "by": 5, "needed": 2, "lost": 0} | fields)
    done = Applied()
    state._begin(event, state.clock, done)
    view.context.selection.choose(seq)
    view.refresh(Kinds.ALL)
    return view._told(state.info(seq))


def test_a_preempted_request_says_who_needed_what_and_what_it_cost(view):
    told = preempt(view, swapped=180, bytes=4_423_680)
    assert "on the host 180 tok · seq 5 needed 2 blocks · moved to the host: 12 blocks, 4.22 MiB" in told


def test_a_dropped_request_says_that_the_host_gave_it_up(view):
    preempt(view, swapped=180, bytes=4_423_680)
    state = view.context.mirror.live
    seq = view.context.selection.seq
    state._begin(Dropped(seq=seq, cause="swap_blocks", lost=180), state.clock, Applied())
    told = view._told(state.info(seq))
    assert "preempted ↺ 180 tok" in told and "180 tokens to compute again · the host pool was made smaller" in told


@pytest.mark.parametrize(
    ("cause", "words"),
    [("max_batch", "a smaller batch"), ("resize", "a smaller pool"), ("block_size", "another block size")],
)
def test_a_setting_that_preempts_is_named(view, cause, words):
    told = preempt(view, cause=cause, by=NONE, needed=0, lost=64, note="the host pool is full")
    assert f"{words} was set · 64 tokens to compute again · the host pool is full" in told


def test_ten_thousand_finished_requests_cost_no_more_than_a_screen(view):
    request = view.context.mirror.history.requests[0]
    for _ in range(10_000):
        view.context.mirror.history.requests.append(request)
    view.list.verticalScrollBar().setValue(0)
    view.refresh(Kinds.ALL)
    start = time.thread_time()
    for _ in range(5):
        view.refresh(Kinds.ALL)
        view.list.viewport().repaint()
    assert (time.thread_time() - start) / 5 < 0.05
    assert len(view.list) >= 10_000


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("size", [(160, 60), (320, 180), (320, 640), (1600, 800)])
def test_parts_stay_inside_and_apart(qtbot, size, scale):
    context = scene(steps=120)
    context.theme.set_scale(scale)
    view = show(qtbot, RequestsView(context), *size)
    view.grab()
    parts = [view.composer, view.list, view.text, view.status, view.key_line, view.abort_button, view.copy_button]
    seen = [p.rect().translated(p.mapTo(view, QPoint())) for p in parts if p.isVisible()]
    for index, box in enumerate(seen):
        assert view.rect().contains(box), (parts[index], box)
        assert not any(box.intersects(other) for other in seen[index + 1 :])
