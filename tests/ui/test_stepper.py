"""The stepper on the real, paused core: it finds drafts, shows what decided them, and changes no token."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication

from engine.records import ACCEPTED, TOKEN, Abort, Change, Pause, Resume, StepOnce, StepRecord, Watch, unpack
from tests.support.synthetic import NoProbe, NoWorkload
from tests.support.verified import words_engine
from ui.verification import Kind, chips
from ui.verification_words import chance, words
from ui.views import verification_strip as strip
from ui.views.verification import HEADLINE
from ui.window import Window


class Live:
    """A window over an engine in this process, a frame at a time.

    Attributes: sent: commands. tokens: what each sequence put out."""

    def __init__(self, qtbot, size=(1280, 720), **options):
        self.source = words_engine(**options)
        self.sent: list[object] = []
        self.tokens: dict[int, list[int]] = {}
        send, poll = self.source.send, self.source.poll

        def listen(limit: int = 0):
            messages = poll(limit)
            collect(messages, self.tokens)
            return messages

        self.source.poll = listen
        self.source.send = lambda command: (self.sent.append(command), send(command))
        self.window = Window(self.source, NoWorkload(), NoProbe(), theme="dark", scale=1.0, size=size)
        qtbot.addWidget(self.window)
        self.window.clock.stop()
        self.window.show()
        self.window.activateWindow()
        qtbot.waitActive(self.window)
        self.view = self.window.deck.docks["verification"].view
        self.view.failed.connect(lambda error: pytest.fail(repr(error)))
        self.frame(20)

    def frame(self, count: int = 1) -> None:
        for _ in range(count):
            self.window.frame.hurry()
            self.window.frame.run()
            QApplication.processEvents()

    def send(self, kind: type, **fields) -> None:
        self.source.send(kind(id=self.source.next_id(), **fields))

    def of(self, kind: type) -> list:
        return [command for command in self.sent if isinstance(command, kind)]

    def settle(self) -> None:
        """Until the stepper has found what it looks for, or given up."""
        for _ in range(200):
            self.frame()
            if not self.view.stepper.seeking:
                return
        pytest.fail("it goes on looking")


def collect(messages: list, tokens: dict[int, list[int]]) -> None:
    for message in messages:
        if isinstance(message, StepRecord):
            for entry in unpack(message.emitted, TOKEN):
                tokens.setdefault(int(entry["seq"]), []).append(int(entry["token"]))


@pytest.fixture
def live(qtbot):
    made = Live(qtbot)
    made.window.fill("verification")
    made.frame()
    return made


def press(qtbot, live, key) -> None:
    qtbot.keyClick(live.view, key)
    live.settle()


def test_w_opens_it_and_it_says_what_to_do(qtbot):
    live = Live(qtbot)
    assert live.window.deck.docks["verification"].isHidden()
    qtbot.keyClick(live.window, Qt.Key.Key_W)
    live.frame()
    assert live.window.deck.filled == "verification" and live.view.hasFocus()
    assert live.view.begin.isVisible() and "Pause" in live.view.begin.text()
    assert live.view.page is None and HEADLINE.startswith("Pause, choose a sequence")


def test_the_button_pauses_watches_and_finds_a_draft(qtbot, live):
    before = live.source.engine.last_step
    qtbot.mouseClick(live.view.begin, Qt.MouseButton.LeftButton)
    live.settle()
    live.frame(5)
    assert live.window.mirror.status.paused and len(live.of(Watch)) == 1
    told = live.view.stepper.walk.told
    assert told.seq == live.of(Watch)[0].seq and len(told.drafted) > 0
    assert live.source.engine.last_step - before <= len(live.of(StepOnce)) + 2  # none after it was found
    assert live.view.page is not None and not live.view.begin.isVisible()
    assert f"seq {told.seq} · step {told.step}" in live.view._summary


def test_arrows_walk_and_the_last_asks_for_the_next(qtbot, live):
    press(qtbot, live, Qt.Key.Key_Right)
    walk = live.view.stepper.walk
    asked = len(live.of(StepOnce))
    for place in range(1, len(walk.stages)):
        press(qtbot, live, Qt.Key.Key_Right if place % 2 else Qt.Key.Key_Space)
        assert walk.at == place
    press(qtbot, live, Qt.Key.Key_Left)
    assert walk.at == len(walk.stages) - 2 and len(live.of(StepOnce)) == asked
    press(qtbot, live, Qt.Key.Key_Right)
    assert walk.over and live.view.forward.text().startswith("Verify the next draft")
    press(qtbot, live, Qt.Key.Key_Return)
    after = live.view.stepper.walk
    assert after is not walk and after.told.step > walk.told.step and after.told.seq == walk.told.seq
    assert after.at == 0 and not live.of(Pause) and not live.of(Resume)


def test_every_stage_can_be_drawn_and_clicked(qtbot, live):
    kinds = set()
    for _ in range(12):
        press(qtbot, live, Qt.Key.Key_Right)
        walk = live.view.stepper.walk
        while not walk.over:
            live.view.grab()
            press(qtbot, live, Qt.Key.Key_Right)
            kinds.add(walk.stage.kind)
        live.view.grab()
        box = live.view.page.hits[0][0]
        qtbot.mouseClick(live.view, Qt.MouseButton.LeftButton, pos=box.center())
        assert walk.at == 0
        walk.go(99)
    assert kinds == {Kind.TEST, Kind.LEFTOVER, Kind.BONUS, Kind.COMMIT}


def test_what_is_walked_is_what_was_put_out(qtbot, live):
    for _ in range(6):
        before = {seq: len(tokens) for seq, tokens in live.tokens.items()}
        press(qtbot, live, Qt.Key.Key_Right)
        told = live.view.stepper.walk.told
        out = live.tokens[told.seq][before.get(told.seq, 0) :]
        accepted = [one.token for one in told.drafted if one.verdict == ACCEPTED]
        assert out == [*accepted, told.last.token]
        live.view.stepper.walk.go(99)


def test_walking_changes_no_token(qtbot, live):
    for _ in range(30):
        press(qtbot, live, Qt.Key.Key_Right)
    live.send(Resume)
    for _ in range(2000):
        live.frame()
        if not live.source.engine.has_work:
            break
    undisturbed: dict[int, list[int]] = {}
    plain = words_engine()
    collect(plain.poll(), undisturbed)
    while plain.engine.has_work:
        collect(plain.poll(), undisturbed)
    assert live.tokens == undisturbed


def test_the_chosen_sequence_is_the_one_that_is_watched(qtbot, live):
    live.window.selection.choose(2)
    press(qtbot, live, Qt.Key.Key_Right)
    assert live.view.stepper.walk.told.seq == 2
    live.window.selection.choose(1)
    live.view.stepper.walk.go(99)
    press(qtbot, live, Qt.Key.Key_Right)
    assert live.view.stepper.walk.told.seq == 1
    assert [command.seq for command in live.of(Watch)] == [2, 1]


def test_steps_without_a_draft_are_told_and_passed_over(qtbot):
    live = Live(qtbot, drafter="certain")
    live.window.fill("verification")
    live.frame()
    qtbot.keyClick(live.view, Qt.Key.Key_Right)
    live.settle()
    stepper = live.view.stepper
    if stepper.walk is None:
        assert "had no draft in 64 steps" in stepper.problem and live.view.begin.text() == "Go on"
    else:
        assert stepper.walk.told.verification.certain
        assert all(one.q == 1 for one in stepper.walk.told.drafted)


def test_a_greedy_sequence_says_that_no_draw_is_needed(qtbot):
    live = Live(qtbot, temperature=0.0)
    live.window.fill("verification")
    live.frame()
    press(qtbot, live, Qt.Key.Key_Right)
    press(qtbot, live, Qt.Key.Key_Right)
    walk = live.view.stepper.walk
    assert walk.told.verification.greedy and walk.stage.kind is Kind.TEST
    assert not live.view.grab().isNull()


def test_when_the_engine_runs_again_the_walk_is_over(qtbot, live):
    press(qtbot, live, Qt.Key.Key_Right)
    live.send(Resume)
    live.frame(5)
    assert live.view.stepper.walk is None and live.view.begin.isVisible()
    assert live.of(Watch)[-1].seq is None
    steps = len(live.of(StepOnce))
    live.frame(10)
    assert len(live.of(StepOnce)) == steps and not live.window.mirror.status.paused


def test_the_past_is_said_to_be_the_past(qtbot, live):
    press(qtbot, live, Qt.Key.Key_Right)
    live.window.cursor.pin(5)
    live.frame()
    assert live.view.page is None and not live.view.begin.isVisible() and not live.view.forward.isVisible()
    at = live.view.stepper.walk.at
    qtbot.keyClick(live.view, Qt.Key.Key_Left)
    assert live.view.stepper.walk.at == at
    live.window.cursor.live()
    live.frame()
    assert live.view.page is not None


def test_out_of_sight_nothing_is_watched(qtbot, live):
    press(qtbot, live, Qt.Key.Key_Right)
    live.window.fill("verification")  # back
    live.frame()
    assert live.of(Watch)[-1].seq is None
    live.window.fill("verification")
    live.frame()
    walk = live.view.stepper.walk
    assert walk is not None  # where one was
    walk.go(99)
    press(qtbot, live, Qt.Key.Key_Right)
    assert live.of(Watch)[-1].seq == walk.told.seq and live.view.stepper.walk is not walk


@pytest.mark.parametrize("changes", [{"draft_length": 0}, {"draft_method": "off"}])
def test_drafting_that_is_off_is_named(qtbot, live, changes):
    live.send(Change, changes=changes)
    live.frame(3)
    press(qtbot, live, Qt.Key.Key_Right)
    assert live.view.stepper.problem.startswith("Drafting is off") and not live.of(StepOnce)


def test_what_stops_it_is_said_in_place_of_the_page(qtbot, live):
    press(qtbot, live, Qt.Key.Key_Right)
    walk = live.view.stepper.walk
    walk.go(99)
    live.send(Change, changes={"draft_length": 0})
    live.frame(3)
    press(qtbot, live, Qt.Key.Key_Right)
    assert live.view.page is None and live.view.begin.isVisible()
    press(qtbot, live, Qt.Key.Key_Left)
    assert live.view.page is not None and live.view.page.walk is walk


def test_the_button_names_another_sequence_that_was_chosen(qtbot, live):
    press(qtbot, live, Qt.Key.Key_Right)
    walk = live.view.stepper.walk
    for _ in range(len(walk.stages) - 1):
        press(qtbot, live, Qt.Key.Key_Right)
    live.window.selection.choose(2 if walk.told.seq != 2 else 1)
    live.frame()
    assert live.view.forward.text() == f"Verify a draft of seq {live.window.selection.seq}  →"


def test_without_a_request_it_asks_for_one(qtbot, live):
    live.send(Abort)
    live.frame(3)
    press(qtbot, live, Qt.Key.Key_Right)
    assert live.view.stepper.problem == "No request is running: send a prompt first"


def test_an_end_before_another_draft_is_named(qtbot, live):
    live.window.selection.choose(2)
    live.view.stepper.begin()
    live.send(Abort, number=2)
    live.source._commands.rotate(1)  # before the step
    live.settle()
    assert live.view.stepper.problem.startswith("Sequence 2 aborted")


def test_keys_stay_the_windows_where_it_has_not_the_focus(qtbot, live):
    press(qtbot, live, Qt.Key.Key_Right)
    live.window.fill("verification")
    live.frame()
    walk, at = live.view.stepper.walk, live.view.stepper.walk.at
    qtbot.keyClick(live.window, Qt.Key.Key_Right)
    live.frame(3)
    assert walk.at == at and len(live.of(StepOnce)) >= 2
    qtbot.keyClick(live.window, Qt.Key.Key_Space)
    live.frame(2)
    assert len(live.of(Resume)) == 1


def test_a_running_engine_keeps_space(qtbot, live):
    qtbot.keyClick(live.view, Qt.Key.Key_Space)
    live.frame(3)
    assert len(live.of(Pause)) == 1 and live.view.stepper.walk is None


def test_another_engine_starts_from_nothing(qtbot, live):
    press(qtbot, live, Qt.Key.Key_Right)
    live.window.lifecycle.restart()
    live.frame(3)
    assert live.view.stepper.walk is None and live.window.mirror.verification is None


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("size", [(160, 60), (320, 180), (420, 640), (700, 300), (1900, 900)])
def test_it_draws_at_any_size(qtbot, size, scale):
    live = Live(qtbot)
    live.window.theme.set_scale(scale)
    live.window.fill("verification")
    live.frame()
    view = live.view
    for _ in range(3):
        press(qtbot, live, Qt.Key.Key_Right)
        view.resize(*size)
        while not view.stepper.walk.over:
            view.grab()
            view._go(1)
        view.grab()
        assert size[0] < 200 or view.rect().contains(view.forward.geometry())


def test_larger_text_keeps_it_filled(qtbot, live):
    def sign():
        return live.window.deck.docks["verification"].bar.fill.icon().pixmap(32).toImage()

    filled = sign()
    qtbot.keyClick(live.view, Qt.Key.Key_Plus)
    qtbot.keyClick(live.view, Qt.Key.Key_Plus)
    live.frame()
    assert sign() == filled
    assert live.window.theme.scale == 1.5 and live.window.deck.filled == "verification" and live.view.isVisible()
    live.window.fill("verification")
    live.frame()
    assert live.window.deck.filled is None and not live.view.isVisible()


def test_long_drafts_show_the_chip_that_it_is_about(qtbot):
    live = Live(qtbot, size=(960, 600), heat=1.0, sharpness=3.0)
    live.send(Change, changes={"draft_length": 16})
    live.frame(3)
    live.window.fill("verification")
    live.frame()
    press(qtbot, live, Qt.Key.Key_Right)
    view, walk = live.view, live.view.stepper.walk
    while not walk.over:
        found = chips(walk)
        widths = [strip._width(view._look, chip) for chip in found]
        room, gap = view._inner().width(), view._look.px(6)
        first, last = strip._in_sight(widths, gap, room, 40, strip._focus(found))
        assert sum(widths[first:last]) + gap * (last - first) <= room
        current = [place for place, chip in enumerate(found) if chip.current]
        assert all(first <= place < last for place in current)
        view.grab()
        press(qtbot, live, Qt.Key.Key_Right)
    assert len(walk.told.drafted) > 10


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_simulated_acceptance_shows_the_rates_that_decided(qtbot, temperature):
    live = Live(qtbot, temperature=temperature)
    live.send(Change, changes={"simulated_acceptance": [0.7, 0.5]})
    live.frame(3)
    live.window.fill("verification")
    live.frame()
    for _ in range(4):
        press(qtbot, live, Qt.Key.Key_Right)
        walk = live.view.stepper.walk
        assert walk.told.simulated == (0.7, 0.5) and live.view.provenance == "simulated"
        while not walk.over:
            press(qtbot, live, Qt.Key.Key_Right)
            live.view.grab()
            if walk.stage.kind is Kind.TEST:
                one = walk.told.verification.positions[walk.stage.place]
                assert one.draw is None or (one.draw < chance(walk.told, walk.stage.place)) == (one.verdict == ACCEPTED)
                assert words(walk).line.startswith("simulated: accepted at the rate")
