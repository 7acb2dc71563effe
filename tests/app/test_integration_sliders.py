"""Each control is used as a person does, under load, and the first step after the engine's answer obeys it.

The real window on the real engine, a tiny model in a real child. What a step did is read from its record.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from engine import records as r
from engine.config import LiveSettings
from tests.support.live_window import SETTINGS, LiveWindow, tiny_config
from tests.support.tiny_directory import make_directory
from ui.controls.segments import Segments

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(qapp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveWindow]:
    live = LiveWindow(tiny_config(make_directory(tmp_path_factory.mktemp("model"))))
    yield live
    live.close()


@pytest.fixture
def live(shared: LiveWindow) -> LiveWindow:
    """The shared window, emptied and with its first settings."""
    source = shared.source
    source.send(r.Abort(id=source.next_id()))
    changes = {f: getattr(SETTINGS, f) for f in LiveSettings.__struct_fields__}
    source.send(r.Change(id=source.next_id(), changes=changes))
    shared.pump(lambda: shared.idle and shared.window.mirror.settings == SETTINGS)
    return shared


class Since:
    """What the engine said from a moment on, in the order in which it did."""

    def __init__(self, live: LiveWindow):
        self._live, self._start, self._sent = live, len(live.source.seen), len(live.source.sent)

    @property
    def messages(self) -> list[r.Message]:
        return self._live.source.seen[self._start :]

    @property
    def steps(self) -> list[r.StepRecord]:
        return [m for m in self.messages if isinstance(m, r.StepRecord)]

    def answer(self, key: str) -> r.Ack:
        """To the last change of a setting."""
        asked = [c for c in self._live.source.sent[self._sent :] if isinstance(c, r.Change) and key in c.changes]
        return next(m for m in self.messages if isinstance(m, r.Ack) and m.id == asked[-1].id)

    def obeying(self, key: str, value: object) -> list[r.StepRecord]:
        """Steps from the one that the answer names on. All of them run under the value, none before does."""
        answer = self.answer(key)
        assert answer.ok and getattr(answer.settings, key) == value
        after = [s for s in self.steps if s.step >= answer.step]
        assert after and after[0].step == answer.step
        assert all(getattr(s.settings, key) == value for s in after)
        place = self.messages.index(answer)
        assert all(m.step < answer.step for m in self.messages[:place] if isinstance(m, r.StepRecord))
        return after


def rows(step: r.StepRecord) -> np.ndarray:
    return r.unpack(step.rows, r.ROW)


def drag_and_look(live: LiveWindow, key: str, wanted: float, more: int = 12) -> tuple[int, list[r.StepRecord]]:
    """Drag under load; the value that was reached and the steps that obey it."""
    since = Since(live)
    reached = int(live.drag(live.window.controls.sliders[key], wanted))
    live.settle()
    count = len(since.steps)
    live.pump(lambda: len(since.steps) > count + more)
    assert live.window.controls.sliders[key].value == reached == getattr(live.window.mirror.settings, key)
    return reached, since.obeying(key, reached)


def test_max_batch(live: LiveWindow) -> None:
    live.load(200, prompt=16, tokens=64)  # 10 blocks each, so that the pool holds 12 of them
    live.pump(lambda: live.window.mirror.live.running)
    for wanted in (2, 6, 1, 12, 3):
        value, steps = drag_and_look(live, "max_batch", wanted)
        assert value == wanted
        assert all(s.running <= value and len(rows(s)) <= value for s in steps)
        assert max(s.running for s in steps) == value, "the load is there to fill it"


def test_token_budget(live: LiveWindow) -> None:
    live.load(400, prompt=120, tokens=20)
    live.pump(lambda: live.window.mirror.live.running)
    seen = set()
    for wanted in (16, 200, 9, 64):
        value, steps = drag_and_look(live, "token_budget", wanted)
        assert all(rows(s)["scheduled"].sum() <= value for s in steps)
        seen.add(value)
        assert max(int(rows(s)["scheduled"].sum()) for s in steps) > value // 2, "it binds"
    assert len(seen) == 4


def test_draft_length(live: LiveWindow) -> None:
    live.load(100, tokens=200)
    live.pump(lambda: any(s.drafts for s in live.source.steps()))
    for wanted in (1, 6, 0, 3):
        value, steps = drag_and_look(live, "draft_length", wanted, more=30)
        assert value == wanted
        longest = max(int(rows(s)["drafted"].max(initial=0)) for s in steps)
        assert longest <= value
        assert longest == value, "there are drafts of that length to be had"


def test_kv_blocks(live: LiveWindow) -> None:
    live.load(200, tokens=60)
    live.pump(lambda: live.window.mirror.live.used > 20)
    for wanted in (80, 400, 50, 160):
        value, steps = drag_and_look(live, "kv_blocks", wanted)
        assert all(s.used + s.cached + s.free == value for s in steps)
        assert all(int(r.unpack(s.blocks, r.BLOCK)["block"].max(initial=0)) < value for s in steps)
        assert live.window.mirror.live.num_blocks == value
        view = live.window.deck.docks["pool"].view
        live.pump(lambda v=value, view=view: view.canvas.grid.count == v)


def test_max_context_binds_those_admitted_later(live: LiveWindow) -> None:
    live.load(8, tokens=150)
    live.pump(lambda: live.window.mirror.live.running)
    late = live.load(30, tokens=150)
    value, steps = drag_and_look(live, "max_context", 64)
    live.await_end(late)
    first = steps[0].step
    before = {e.seq: e.limit for s in live.source.steps() if s.step < first for e in s.events
              if isinstance(e, r.Admitted)}  # fmt: skip
    steps = [s for s in live.source.steps() if s.step >= first]
    admitted = [e for s in steps for e in s.events if isinstance(e, r.Admitted)]
    assert len(admitted) > 10 and all(e.limit <= value for e in admitted if e.seq not in before)
    assert all(e.limit == before[e.seq] for e in admitted if e.seq in before), "those under way keep theirs"
    ended = [e for s in steps for e in s.events if isinstance(e, r.Finished)]
    assert {e.reason for e in ended if e.seq not in before} == {"context"}
    assert {e.reason for e in ended if before.get(e.seq, 0) > 24 + 150} <= {"length"}


def click(live: LiveWindow, key: str, words: str) -> None:
    control: Segments = live.window.controls.segments[key]
    live.window.controls.area.ensureWidgetVisible(control)
    live.click(next(b for b in control._group.buttons() if b.text() == words))
    live.settle()


def test_drafts_off_and_on(live: LiveWindow) -> None:
    live.load(100, tokens=200)
    live.pump(lambda: any(s.drafts for s in live.source.steps()))
    for value in ("off", "ngram"):
        since = Since(live)
        live.window.controls.drafting.method.choose(value)
        live.settle()
        live.pump(lambda s=since: len(s.steps) > 30)
        drafted = sum(int(rows(s)["drafted"].sum()) for s in since.obeying("draft_method", value))
        assert (drafted > 0) == (value == "ngram")


def test_prefix_cache_off_and_on(live: LiveWindow) -> None:
    prompt = [5, 4, 3, 2, 1] * 10
    for words, value in (("off", False), ("on", True)):
        since = Since(live)
        click(live, "prefix_cache", words)
        assert since.answer("prefix_cache").ok
        for _ in range(6):
            live.await_end([live.submit(prompt, 4)])
        steps = since.obeying("prefix_cache", value)
        hits = [e.cached_tokens for s in steps for e in s.events if isinstance(e, r.Admitted)]
        assert len(hits) == 6 and (max(hits) > 0) == value
        if not value:
            assert all(s.cached == 0 for s in steps)


def test_policies_are_obeyed_and_swapping_brings_its_pool(live: LiveWindow) -> None:
    live.load(200, prompt=16, tokens=64)
    live.pump(lambda: live.window.mirror.live.running)
    for key, value in (("allocation", "reserved"), ("batching", "static"), ("admission", "chunk")):
        since = Since(live)
        click(live, key, value)
        count = len(since.steps)
        live.pump(lambda s=since, c=count: len(s.steps) > c + 8)
        assert since.obeying(key, value)
    since = Since(live)
    click(live, "preemption", "swap")
    count = len(since.steps)
    live.pump(lambda: len(since.steps) > count + 8)
    assert since.answer("swap_blocks").settings.swap_blocks == SETTINGS.kv_blocks
    assert since.obeying("preemption", "swap")
    assert live.window.mirror.live.host.num_blocks == SETTINGS.kv_blocks
    click(live, "block_size", "8")
    live.pump(lambda: live.window.mirror.live.block_size == 8)
    assert live.window.controls.segments["block_size"].value == 8


def test_chunked_prefill_off_needs_the_budget_and_says_so(live: LiveWindow) -> None:
    controls = live.window.controls
    live.load(200, prompt=100, tokens=30)
    live.pump(lambda: live.window.mirror.live.running)
    since = Since(live)
    click(live, "chunked_prefill", "off")
    assert not since.answer("chunked_prefill").ok
    control = controls.segments["chunked_prefill"]
    assert "token_budget must be at least 256" in control._refusal.text() and control._refusal.isVisible()
    assert control._group.checkedButton().text() == "on", "it snaps back"
    reached, _ = drag_and_look(live, "token_budget", 320)
    assert reached >= 256
    since = Since(live)
    click(live, "chunked_prefill", "off")
    assert control._refusal.text() == ""
    live.await_end(live.load(10, prompt=100, tokens=10))
    after = since.obeying("chunked_prefill", False)
    whole = {e.seq: 100 - e.cached_tokens for s in after for e in s.events if isinstance(e, r.Admitted) and not e.again}
    first = {}
    for step in after:
        for row in rows(step):
            first.setdefault(int(row["seq"]), int(row["scheduled"]))
    assert len(whole) >= 10 and all(first[seq] == tokens for seq, tokens in whole.items()), "in one step"


# --- what is refused ---


@pytest.mark.parametrize("held", [False, True], ids=["let go at once", "held until the answer came"])
def test_a_refused_value_snaps_back_and_names_its_limit(live: LiveWindow, held: bool) -> None:
    live.load(4, prompt=24, tokens=190)
    live.pump(lambda: len(live.window.mirror.live.running) == 4)
    slider = live.window.controls.sliders["kv_blocks"]
    since = Since(live)
    sender = live.window.controls.sender
    answered = (lambda: not sender._in_flight and slider.refusal) if held else None
    reached = live.drag(slider, 8, answered)
    live.settle()
    assert reached < 28 and not since.answer("kv_blocks").ok
    live.drawn()
    stays = live.window.mirror.settings.kv_blocks  # 160, or a value that the handle passed and that was fine
    assert stays >= 32 > reached
    assert slider.value == stays and slider.box.text() == str(stays)
    assert slider.slider.value() == slider._scale.position(stays)
    assert slider._refusal.isVisible()
    assert "blocks are the least now" in slider.refusal or "max_context 256 needs 32 blocks" in slider.refusal
    assert all(s.settings.kv_blocks >= 32 for s in since.steps)
    live.drag(slider, 200)
    live.settle()
    assert slider.refusal == "" and slider.value > stays, "the words go with the next wish"


def test_a_budget_under_the_batch_is_refused_in_words(live: LiveWindow) -> None:
    live.drag(live.window.controls.sliders["max_batch"], 32)
    live.settle()
    slider = live.window.controls.sliders["token_budget"]
    live.drag(slider, 8)
    live.settle()
    assert "max_batch 32" in slider.refusal and "lower max_batch or raise token_budget" in slider.refusal
    assert slider.value == live.window.mirror.settings.token_budget >= 32


def test_a_typed_value_outside_the_limit_is_refused_in_words(live: LiveWindow) -> None:
    slider = live.window.controls.sliders["max_context"]
    live.window.controls.area.ensureWidgetVisible(slider)
    slider.box.setFocus()
    slider.box.selectAll()
    QTest.keyClicks(slider.box, "99999")
    QTest.keyClick(slider.box, Qt.Key.Key_Return)
    live.settle()
    assert "512" in slider.refusal and slider.box.text() == "256"
    assert live.window.mirror.settings.max_context == 256
    QTest.keyClick(slider.box, Qt.Key.Key_Escape)


# --- the workload's own ---


@pytest.fixture
def sent(live: LiveWindow) -> Iterator[list[r.Submit]]:
    """Requests of the built-in workload are counted here and don't reach the engine."""
    live.source.deaf = (r.Submit,)
    start = len(live.source.sent)

    class Submits(list):
        def __call__(self) -> list[r.Request]:
            return [c.request for c in live.source.sent[start:] if isinstance(c, r.Submit)]

    yield Submits()
    live.source.deaf = ()


def test_arrival_rate(live: LiveWindow, sent) -> None:
    workload = live.window.controls.workload
    live.window.controls.area.ensureWidgetVisible(workload.run)
    live.click(workload.run)
    assert live.workload.settings.running and workload.run.text() == "Pause arrivals"
    for wanted in (0.5, 12.0, 0.0):
        value = live.drag(workload.sliders["rate"], wanted)
        assert live.workload.settings.rate == value and abs(value - wanted) <= 0.5
        before = len(sent())
        for _ in range(1000):
            live.workload.advance(0.2)  # 200 s
        count, mean = len(sent()) - before, 200 * value
        assert abs(count - mean) <= 4 * mean**0.5 + 1  # four standard deviations of a Poisson count
    live.click(workload.run)
    assert live.workload.advance(100) == 0


def test_lengths_of_prompts_and_outputs(live: LiveWindow, sent) -> None:
    sliders = live.window.controls.workload.sliders
    tokens = {p.text: p.tokens for p in live.workload._prompts.prompts}
    burst, count = live.window.controls.workload.burst, live.window.controls.workload.count
    for prompt, output in ((80, 20), (400, 200), (150, 60)):
        wanted_prompt = live.drag(sliders["prompt_tokens"], prompt)
        wanted_output = live.drag(sliders["output_tokens"], output)
        settings = live.workload.settings
        assert (settings.prompt_tokens, settings.output_tokens) == (wanted_prompt, wanted_output)
        before = len(sent())
        live.window.controls.area.ensureWidgetVisible(burst)
        count.setText("256")
        live.click(burst)
        requests = sent()[before:]
        assert len(requests) == 256
        assert fmean(q.max_tokens for q in requests) == pytest.approx(wanted_output, rel=0.2)
        # lengths in the default model's tokens: told with each prompt, estimated from its words where it was lengthened
        lengths = [tokens.get(q.prompt) or len(q.prompt.split()) * 1.35 + 32 for q in requests]
        assert fmean(lengths) == pytest.approx(wanted_prompt, rel=0.3)
