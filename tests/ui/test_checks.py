"""A request beside its run without drafts: asked for, counted, refused, and what the window says of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QContextMenuEvent, QFontMetrics

from engine.config import EngineConfig, LiveSettings
from engine.records import Abort, Keyframe, Pace, Request, Sampling, SendKeyframe, Shadow, ShadowState, Submit
from tests.support.inprocess import InProcessEngine
from tests.support.synthetic import NoProbe, NoWorkload
from tests.ui.scenes import show
from ui import shadow_words
from ui.changes import Kinds
from ui.context import ViewContext
from ui.cursor import Cursor
from ui.mirror import Mirror
from ui.selection import Selection
from ui.state import EngineState
from ui.theme import Theme
from ui.views.requests import RequestsView

SETTINGS = LiveSettings(max_batch=8, max_context=256, kv_blocks=160, draft_method="ngram", draft_length=4)


class Served:
    """A view of requests on the real core, driven a poll at a time.

    Attributes: source, view, mirror, sent.
    """

    def __init__(self, qtbot, width=900, height=520, theme="dark"):
        self.source = InProcessEngine(EngineConfig(settings=SETTINGS, seed=3))
        self.sent: list[object] = []
        send = self.source.send
        self.source.send = lambda command: (self.sent.append(command), send(command))
        self.mirror = Mirror()
        self.context = ViewContext(
            self.mirror, Cursor(self.mirror), Selection(), Theme(theme), self.source, NoWorkload(), NoProbe()
        )
        self.view = show(qtbot, RequestsView(self.context), width, height)
        self.poll()

    def poll(self, count: int = 1) -> None:
        for _ in range(count):
            self.mirror.apply_all(self.source.poll())
            self.view.refresh(Kinds.ALL)

    def ask(self, number: int = 1, tokens: int = 60, **more) -> None:
        prompt = "the sea and the sea and the sea"
        request = Request(number=number, prompt=prompt, max_tokens=tokens, ignore_eos=True, **more)
        self.source.send(Submit(id=self.source.next_id(), request=request))

    def to_the_end(self) -> None:
        for _ in range(600):
            self.poll()
            if not self.source.engine.has_work:
                break
        self.poll(2)


@pytest.fixture
def served(qtbot):
    made = Served(qtbot)
    made.ask()
    made.to_the_end()
    return made


def state(**more) -> ShadowState:
    given = {"number": 3, "seq": 5, "shadow": 9, "tokens": 128, "equal": 0, "different": 0, "drafted": 90,
             "original_pace": Pace(tokens=127, ns=400_000_000), "shadow_pace": Pace(tokens=0, ns=0)}  # fmt: skip
    return ShadowState(**{**given, **more})


# --- words ---


def test_all_equal():
    told = shadow_words.told(state(equal=128, done=True, shadow_pace=Pace(tokens=127, ns=600_000_000)))
    assert (told.symbol, told.headline, told.token, told.share) == ("✓", "128 of 128 tokens equal", "accepted", 1.0)
    assert told.speeds == ("with drafts 318 tok/s", "without 212 tok/s", "1.50×")


def test_on_the_way():
    told = shadow_words.told(state(equal=64))
    assert told.headline == "64 of 128 tokens, all equal so far" and told.share == 0.5
    assert shadow_words.told(state()).headline == "runs without drafts when nobody else has work"


def test_a_difference_names_its_place_and_both_tokens_in_any_form():
    differs = state(equal=100, different=28, first=36, words=[" sea", "<b>\n"], done=True)
    told = shadow_words.told(differs, "Q4_1")
    assert told.symbol == "✕" and told.headline.startswith("differs at token 37: “sea” / “<b>”")
    assert "100 of 128 tokens equal" in told.headline and "In float32 the two are equal" in told.story
    assert "report" in shadow_words.told(differs, "float32").story


def test_no_ratio_of_what_ran_beside_others_nor_where_nothing_was_drafted():
    pace = Pace(tokens=127, ns=600_000_000)
    beside = shadow_words.told(
        state(shadow_pace=pace, original_pace=Pace(tokens=127, ns=900_000_000, alone=False), equal=128, done=True)
    )
    assert beside.speeds == ("with drafts 141 tok/s beside others", "without 212 tok/s") and "beside" in beside.story
    undrafted = shadow_words.told(state(shadow_pace=pace, drafted=0, equal=128, done=True))
    assert undrafted.speeds == ("nothing was drafted", "without 212 tok/s")


def test_one_that_was_ended_says_why():
    told = shadow_words.told(state(equal=20, done=True, ended="aborted"))
    assert told.headline == "ended early: aborted · 20 of 128 tokens equal" and told.token == "warning"


@pytest.mark.parametrize(
    ("shadow", "words"),
    [
        (state(equal=128, done=True), "✓ equal"),
        (state(equal=7), "… 7 equal"),
        (state(equal=7, different=2, first=4, words=["a", "b"]), "✕ differs at 5"),
        (state(equal=7, done=True, ended="aborted"), "– 7 equal"),
    ],
)
def test_marks_for_lists(shadow, words):
    assert shadow_words.mark(shadow) == words


# --- the model ---


def test_live_and_rebuilt_states_know_the_same(served):
    served.source.send(Shadow(id=served.source.next_id(), number=1))
    for _ in range(30):
        served.poll()
        served.source.send(SendKeyframe(id=served.source.next_id()))
        for message in served.source.poll():
            if isinstance(message, Keyframe):
                assert EngineState.from_keyframe(message).shadows == served.mirror.live.shadows
            served.mirror.apply(message)
    some = served.mirror.live.step - 10
    past = served.mirror.state_at(some).shadows
    assert past[1].equal < served.mirror.live.shadows[1].equal or served.mirror.live.shadows[1].done


def test_a_shadows_times_are_no_requests(served):
    history = served.mirror.history
    before = len(history.requests), history.ttft.count, history.itl.count, history.queue.count, history.e2e.count
    served.source.send(Shadow(id=served.source.next_id(), number=1))
    served.to_the_end()
    assert served.mirror.live.shadows[1].done
    after = len(history.requests), history.ttft.count, history.itl.count, history.queue.count, history.e2e.count
    assert before == after


# --- the view ---


def test_a_click_runs_it_again_and_counts(served):
    view = served.view
    assert view.check_button.text() == "Check" and view.check_button.isEnabled() and view.check_line.isHidden()
    view.check_button.click()
    assert [c.number for c in served.sent if isinstance(c, Shadow)] == [1]
    shares = []
    for _ in range(30):
        served.poll()
        shares.append(view.check_line.told.share if view.check_line.told else 0)
    assert view.check_button.text() == "Stop check" and 0 < shares[-1] < 1 and shares == sorted(shares)
    served.to_the_end()
    assert view.check_line.told.headline == "60 of 60 tokens equal" and not view.check_line.isHidden()
    assert view.check_button.text() == "Check again"
    assert view.shown == 1, "it stays in sight"
    assert "✓ equal" in view.list.row(0).state


def test_asked_for_while_it_runs_and_the_run_itself_is_in_the_list(qtbot):
    served = Served(qtbot)
    served.ask()
    served.poll(5)
    served.view.check()
    served.poll(3)
    rows = [served.view.list.row(i) for i in range(len(served.view.list))]
    assert [row.state for row in rows][-1] == "again when nobody else has work"
    assert "runs without drafts when" in served.view.check_line.told.headline
    served.to_the_end()
    assert served.view.check_line.told.symbol == "✓"


def test_following_never_follows_a_shadow(served):
    served.source.send(Shadow(id=served.source.next_id(), number=1))
    served.poll(20)
    assert served.view.shown == 1
    served.context.selection.choose(2)
    served.poll()
    assert not served.view.check_button.isEnabled() and "itself" in served.view.check_button.toolTip()
    assert served.view.check_line.told.symbol == "…", "it says what its request's card says"


def test_it_can_be_stopped(served):
    served.view.check()
    served.poll(10)
    served.view.check_button.click()
    served.poll(2)
    assert isinstance(served.sent[-1], Abort) and served.sent[-1].number == -2
    assert served.view.check_line.told.headline.startswith("ended early: aborted")
    assert not served.source.engine.has_work


def test_a_refusal_is_told_in_place(qtbot):
    served = Served(qtbot)
    served.ask(sampling=Sampling(temperature=0.8))
    served.to_the_end()
    served.view.check()
    served.poll(2)
    told = served.view.check_line.told
    assert told.headline.startswith("not checked: request 1 was sampled at temperature 0.8")
    assert "distribution" in told.headline and told.token == "warning"


def test_samples_of_one_prompt_say_so(qtbot):
    served = Served(qtbot)
    served.ask(n=2, sampling=Sampling(temperature=0.8))
    served.poll(8)
    assert not served.view.check_button.isEnabled() and "one answer" in served.view.check_button.toolTip()


def test_the_menu_of_a_row(served, qtbot):
    spot = QPoint(40, 4)
    served.view.list.menu_wanted.disconnect()  # the offscreen platform can't pop one up
    with qtbot.waitSignal(served.view.list.menu_wanted) as asked:
        event = QContextMenuEvent(QContextMenuEvent.Reason.Mouse, spot, spot)
        served.view.list.contextMenuEvent(event)
    menu = served.view.menu_of(asked.args[0])
    actions = {action.text().partition("\t")[0]: action for action in menu.actions()}
    assert list(actions) == ["Check: run without drafts", "Copy the answer", "Abort"]
    assert not actions["Abort"].isEnabled()
    actions["Check: run without drafts"].trigger()
    menu.deleteLater()
    assert any(isinstance(c, Shadow) for c in served.sent)


def test_at_a_past_moment_its_count_of_then_is_shown(served):
    served.view.check()
    served.to_the_end()
    served.context.cursor.pin(served.mirror.live.step - 20)
    served.view.refresh(Kinds.ALL)
    told = served.view.check_line.told
    assert told.symbol == "…" and 0 < told.share < 1
    assert not served.view.check_button.isEnabled()


@pytest.mark.parametrize("width", [900, 420])
def test_the_card_is_one_line_where_that_fits(served, width):
    line = served.view.check_line
    line.show_told(shadow_words.told(state(equal=128, done=True, shadow_pace=Pace(tokens=127, ns=600_000_000))))
    line.resize(width, 40)
    one = QFontMetrics(served.context.theme.font("strong")).height()
    assert (line.sizeHint().height() < 2 * one) == (width == 900)


# --- tokens by more than colour ---


def test_accepted_resampled_and_bonus_differ_without_colour(served):
    styles = served.view.text._styles
    lines = [style.underlineStyle() for style in styles[:4]]
    tinted = [style.background().style() != Qt.BrushStyle.NoBrush for style in styles[:4]]
    assert len({(str(line), tint) for line, tint in zip(lines, tinted, strict=True)}) == 4


def test_a_state_that_is_asked_for_again_stands_last():
    moment = EngineState(4)
    moment._compare([state(), state(seq=6, number=4)])
    moment._compare([replace(state(), shadow=11)])
    assert list(moment.shadows) == [6, 5]
