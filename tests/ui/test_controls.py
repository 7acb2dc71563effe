"""Sliders, toggles, the sender, reasons and flags."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QGuiApplication

from engine.config import AUTO, Limit, LiveSettings, Model, limits
from engine.records import Ack, Change, StepBudget
from tests.ui.window_harness import Harness
from ui import explain
from ui.contracts import WorkloadSettings
from ui.controls import flags, reasons
from ui.controls.scale import Scale, doubling, even, rate, whole
from ui.controls.sender import ChangeSender

MODEL = Model(
    name="SmolLM2-135M-Instruct", architecture="llama", layers=30, heads=9, kv_heads=3, head_dim=64, hidden=576,
    vocabulary=49152, max_positions=8192, parameters=134_515_008, weight_bytes=269_030_016, dtype="bfloat16",
    kv_bytes_per_token=23_040,
)  # fmt: skip


# --- scales ---


@pytest.mark.parametrize(
    ("low", "high"), [(1, 512), (16, 8192), (4, 1024), (8, 16_384), (4, 400_000), (3, 3), (0, 1000)]
)
def test_doubling_scale(low, high):
    scale = doubling(low, high)
    values = scale.values
    assert values[0] == low and values[-1] == high
    assert all(a < b for a, b in pairwise(values))
    assert all(float(v).is_integer() for v in values)
    assert all(2**n in values for n in range(30) if low <= 2**n <= high)
    assert len(values) < 200


def test_every_value_of_a_scale_is_found_again():
    for scale in (doubling(1, 512), whole(0, 16), rate(20.0), even(0.0, 2.0, 0.05)):
        assert [scale.position(v) for v in scale.values] == list(range(len(scale)))


def test_nearest_position():
    scale = Scale([1.0, 2.0, 4.0, 8.0])
    assert [scale.position(v) for v in (0, 1.4, 2.9, 3.1, 100)] == [0, 0, 1, 2, 3]
    assert scale.value(99) == 8 and scale.value(-5) == 1


# --- the sender ---


class _Source:
    def __init__(self):
        self.sent: list[Change] = []
        self._id = 0

    def next_id(self):
        self._id += 1
        return self._id

    def send(self, command):
        self.sent.append(command)


def _ack(command, ok=True, message=""):
    return {command.id: Ack(id=command.id, ok=ok, step=7, message=message)}


def test_one_unanswered_change_a_setting_and_the_latest_wins():
    source = _Source()
    sender = ChangeSender(source)
    for value in range(1, 50):
        sender.wish("max_batch", value)
    assert [c.changes for c in source.sent] == [{"max_batch": 1}]
    sender.wish("kv_blocks", 100)  # another setting has its own turn
    assert len(source.sent) == 2
    sender.settle(_ack(source.sent[0]))
    assert source.sent[-1].changes == {"max_batch": 49}
    sender.settle(_ack(source.sent[-1]))
    assert not sender.pending("max_batch") and sender.pending("kv_blocks")
    assert len(source.sent) == 3


def test_a_refusal_of_a_value_that_nobody_wants_any_more_is_not_told():
    source, told = _Source(), []
    sender = ChangeSender(source)
    sender.on_refused = lambda key, message: told.append((key, message))
    sender.wish("kv_blocks", 1)
    sender.wish("kv_blocks", 64)
    sender.settle(_ack(source.sent[0], ok=False, message="too small"))
    assert told == [] and source.sent[-1].changes == {"kv_blocks": 64}
    sender.settle(_ack(source.sent[1], ok=False, message="still too small"))
    assert told == [("kv_blocks", "still too small")] and not sender.pending("kv_blocks")


def test_a_dead_engine_answers_nothing():
    source, pending = _Source(), []
    sender = ChangeSender(source)
    sender.on_pending = lambda key, waits: pending.append((key, waits))
    sender.wish("max_batch", 3)
    sender.forget()
    assert pending == [("max_batch", True), ("max_batch", False)]
    sender.wish("max_batch", 4)
    assert len(source.sent) == 2


# --- what is said ---


def test_context_hint_is_the_formula():
    now = reasons.Situation(
        settings=LiveSettings(max_context=2048, max_batch=16, kv_blocks=512), workload=WorkloadSettings(),
        block_size=16, model=MODEL,
    )  # fmt: skip
    text = reasons.hint("max_context", now)
    assert text == "KV 45.0 MiB each · 16 would need 720 MiB, the pool has only 180 MiB"


def test_bound_hints():
    now = reasons.Situation(
        settings=LiveSettings(), workload=WorkloadSettings(), block_size=16, running=12,
        bound={"token_budget": 3}, recent=10,
    )  # fmt: skip
    assert reasons.hint("token_budget", now) == "bound 3 of 10 steps"
    assert reasons.hint("max_batch", now) == "12 running"


def test_one_is_no_plural():
    now = reasons.Situation(
        settings=LiveSettings(ngram_min=1, ngram_max=1, max_context=16, kv_blocks=1, watermark=1.0),
        workload=WorkloadSettings(prompt_tokens=8, output_tokens=8), block_size=16, running=1,
        bound={"token_budget": 1}, recent=1,
    )  # fmt: skip
    assert reasons.hint("token_budget", now) == "bound 1 of 1 step"
    assert reasons.hint("max_context", now) == "1 block each"
    assert reasons.hint("watermark", now) == "1 block that no new prompt takes"
    assert reasons.hint("prompt_tokens", now) == "1 block of 16"
    assert reasons.hint("output_tokens", now) == "1 block with its prompt · 1 fits at once"
    assert reasons.hint("ngram_min", now) == "no draft where no token matches"
    assert reasons.hint("ngram_max", now) == "the last token is looked up"


def test_every_engine_slider_has_range_unit_and_reason():
    for key in ("max_batch", "max_context", "draft_length", "kv_blocks", "token_budget"):
        limit = limits(MODEL, 16, 2048)[key]
        line = reasons.limit_line(key, limit)
        assert f"{limit.high:,.0f}" in line and "·" in line
        assert limit.reason in reasons.limit_story(limit)


def test_a_pool_beyond_the_device_does_not_claim_that_memory_holds_it():
    limit = Limit(4, 400_000, "blocks", "asked for by hand: more than one H200 holds beside the weights")
    assert reasons.limit_line("kv_blocks", limit) == "4 – 400,000 blocks · asked for by hand"


def test_flags_of_vllm():
    settings = LiveSettings(max_batch=8, max_context=1024, kv_blocks=300, token_budget=128, draft_length=3)
    words = shlex.split(flags.vllm(settings, 16, "HuggingFaceTB/SmolLM2-135M-Instruct", "bfloat16"))
    assert words[:3] == ["vllm", "serve", "HuggingFaceTB/SmolLM2-135M-Instruct"]

    def after(flag):
        return words[words.index(flag) + 1]

    assert after("--max-num-seqs") == "8" and after("--max-model-len") == "1024"
    assert after("--num-gpu-blocks-override") == "300" and after("--max-num-batched-tokens") == "128"
    assert json.loads(after("--speculative-config"))["num_speculative_tokens"] == 3
    assert "--enable-prefix-caching" in words and "--enable-chunked-prefill" in words
    off = flags.vllm(LiveSettings(draft_length=0, prefix_cache=False), 16, "m")
    assert "--speculative-config" not in off and "--no-enable-prefix-caching" in off


def test_flags_of_a_form_that_vllm_has_not():
    for form in ("file", "int8"):
        assert shlex.split(flags.vllm(LiveSettings(), 16, "m", form))[3:5] == ["--dtype", "auto"]
        assert shlex.split(flags.ours(LiveSettings(), 16, "m", form))[3:5] == ["--dtype", form]
    assert "--dtype" not in flags.ours(LiveSettings(), 16, "m")
    assert "--dtype int8" in flags.both(LiveSettings(), 16, "m", "m", "int8").split("# vLLM")[0]


def test_our_flags_name_every_setting():
    words = shlex.split(flags.ours(LiveSettings(max_batch=3), 32))
    pairs = dict(w.split("=") for w in words if "=" in w)
    assert pairs["max_batch"] == "3" and pairs["block_size"] == "32" and pairs["prefix_cache"] == "true"
    empty = {"draft_model", "simulated_acceptance"}
    assert set(LiveSettings.__struct_fields__) - empty <= set(pairs) and not empty & set(pairs)


# --- in the window ---


def _drag(qtbot, slider, share):
    """From the handle to a share of the groove, with the mouse."""
    y = slider.height() // 2
    qtbot.mousePress(slider, Qt.MouseButton.LeftButton, pos=QPoint(round(slider.width() * share), y))
    qtbot.mouseRelease(slider, Qt.MouseButton.LeftButton, pos=QPoint(round(slider.width() * share), y))


def test_dragging_sends_one_change_and_follows_its_ack(qtbot):
    h = Harness(qtbot)
    control = h.window.controls.sliders["max_batch"]
    h.window.controls.area.ensureWidgetVisible(control)
    _drag(qtbot, control.slider, 0.2)
    changes = h.sent(Change)
    assert len(changes) == 1 and changes[0].changes == {"max_batch": int(control.value)}
    assert control.box.property("pending")
    h.run(1)
    assert not control.box.property("pending")
    assert h.window.mirror.live.settings.max_batch == control.value
    assert not control.slider.hasFocus()  # the mouse leaves the keys to the window


def test_a_refusal_snaps_back_and_says_why(qtbot):
    h = Harness(qtbot)
    control = h.window.controls.sliders["max_batch"]
    before = control.value
    send = h.source.send

    def refuse(command):
        if isinstance(command, Change):
            h.source.sent.append(command)
            h.source._queue.append(Ack(id=command.id, ok=False, step=0, message="too many for this budget"))
        else:
            send(command)

    h.source.send = refuse
    control.slider.setValue(control.slider.maximum())
    h.run(1)
    assert control.value == before
    assert control.refusal == "too many for this budget"
    h.source.send = send
    control.slider.setValue(3)
    assert control.refusal == ""


def test_programmatic_updates_are_not_echoed(qtbot):
    h = Harness(qtbot)
    h.source.world.change(max_batch=5)
    h.run(2)
    assert h.window.controls.sliders["max_batch"].value == 5
    assert h.window.controls.sliders["max_batch"].box.text() == "5"
    assert h.sent(Change) == []


def test_typing_an_exact_value(qtbot):
    h = Harness(qtbot)
    control = h.window.controls.sliders["token_budget"]
    control.box.setFocus()
    control.box.selectAll()
    qtbot.keyClicks(control.box, "1,037")
    qtbot.keyClick(control.box, Qt.Key.Key_Return)
    assert h.sent(Change)[-1].changes == {"token_budget": 1037}
    control.box.selectAll()
    qtbot.keyClicks(control.box, "nan")
    qtbot.keyClick(control.box, Qt.Key.Key_Return)
    assert "not a number" in control.refusal and control.box.text() == "1,037"
    assert len(h.sent(Change)) == 1


# --- a budget that the engine finds itself ---


def auto_harness(qtbot) -> Harness:
    h = Harness(qtbot)
    h.source.world.change(token_budget=AUTO)
    h.run(2)
    return h


def test_auto_shows_what_was_found_and_how(qtbot):
    h = auto_harness(qtbot)
    control = h.window.controls.sliders["token_budget"]
    assert control.is_auto and control.value == 160 and control.box.text() == "160"
    assert control.slider.value() == control._scale.position(160)
    assert "auto: 160 tokens, so that a step takes about 80.0 ms: 4.00 ms + 0.47 ms a token" in control.auto.toolTip()
    assert control.hint_text.startswith("for 80 ms a step · bound ")
    assert h.sent(Change) == []
    marks = [mark for mark in h.window.mirror.history.marks if mark.key == "token_budget"]
    assert len(marks) == 1 and explain.change(*marks[0][2:]).endswith("→ auto")
    h.run(30)
    assert len([mark for mark in h.window.mirror.history.marks if mark.key == "token_budget"]) == 1


def test_a_drag_overrides_auto_and_a_click_returns(qtbot):
    h = auto_harness(qtbot)
    control = h.window.controls.sliders["token_budget"]
    control.slider.setValue(control._scale.position(512))
    assert not control.is_auto and control.value == 512
    h.run(2)
    assert h.sent(Change)[-1].changes == {"token_budget": 512} and not control.is_auto
    assert "let the engine find it" in control.auto.toolTip() or "the engine finds it" in control.auto.toolTip()
    qtbot.mouseClick(control.auto, Qt.MouseButton.LeftButton)
    h.run(2)
    assert h.sent(Change)[-1].changes == {"token_budget": AUTO}
    assert control.is_auto and control.value == 160


def test_a_click_on_auto_keeps_the_number_found(qtbot):
    h = auto_harness(qtbot)
    control = h.window.controls.sliders["token_budget"]
    qtbot.mouseClick(control.auto, Qt.MouseButton.LeftButton)
    h.run(2)
    assert h.sent(Change)[-1].changes == {"token_budget": 160}
    assert not control.is_auto and control.value == 160
    control.box.setFocus()
    control.box.selectAll()
    qtbot.keyClicks(control.box, "auto")
    qtbot.keyClick(control.box, Qt.Key.Key_Return)
    assert h.sent(Change)[-1].changes == {"token_budget": AUTO} and control.refusal == ""


def test_the_shown_number_is_overridden_by_typing_it(qtbot):
    h = auto_harness(qtbot)
    control = h.window.controls.sliders["token_budget"]
    control.box.setFocus()
    control.box.selectAll()
    qtbot.keyClicks(control.box, "160")
    qtbot.keyClick(control.box, Qt.Key.Key_Return)
    assert h.sent(Change)[-1].changes == {"token_budget": 160} and not control.is_auto


def test_words_of_a_budget():
    step = StepBudget(tokens=148, goal=75.0, fixed=4.0, each=0.48)
    assert explain.budget(step) == (
        "auto: 148 tokens, so that a step takes about 75.0 ms: 4.00 ms + 0.48 ms a token"
    )
    tight = StepBudget(tokens=16, goal=75.0, fixed=110.0, each=1.0)
    assert "though a step then takes about 126 ms instead of 75.0 ms" in explain.budget(tight)
    fast = StepBudget(tokens=2048, goal=75.0, fixed=3.0, each=0.01)
    assert "as more gain nothing; a step takes about 23.5 ms" in explain.budget(fast)
    assert "computed whole" in explain.budget(StepBudget(tokens=16_384), chunked=False)


def test_flags_of_auto():
    assert "token_budget=auto" in flags.ours(LiveSettings(), 16)
    assert "--max-num-batched-tokens" not in flags.vllm(LiveSettings(), 16, "m")


def test_toggles(qtbot):
    h = Harness(qtbot)
    segments = h.window.controls.segments
    qtbot.mouseClick(segments["prefix_cache"].button(False), Qt.MouseButton.LeftButton)
    assert [c.changes for c in h.sent(Change)] == [{"prefix_cache": False}]


# --- policies ---


def test_every_policy_can_be_chosen_and_says_what_it_means(qtbot):
    h = Harness(qtbot)
    segments = h.window.controls.segments
    wanted = {"allocation": "reserved", "batching": "static", "admission": "chunk", "block_size": 32}
    for key, value in wanted.items():
        control = segments[key]
        h.window.controls.area.ensureWidgetVisible(control)
        assert control.value == getattr(LiveSettings(), key)
        assert "from now on" in control.toolTip() or key == "block_size"
        qtbot.mouseClick(control.button(value), Qt.MouseButton.LeftButton)
    assert [c.changes for c in h.sent(Change)] == [{key: value} for key, value in wanted.items()]


def test_choosing_swap_makes_the_host_pool_in_the_same_change(qtbot):
    h = Harness(qtbot)
    panel = h.window.controls
    host = panel.sliders["swap_blocks"]
    assert host.value == 0 and host.hint_text == "none: preemption computes again"
    qtbot.mouseClick(panel.segments["preemption"].button("swap"), Qt.MouseButton.LeftButton)
    assert [c.changes for c in h.sent(Change)] == [{"preemption": "swap", "swap_blocks": 256}]
    h.run(2)
    assert panel.segments["preemption"].value == "swap" and host.value == 256
    assert host.hint_text == "90.0 MiB · 4,096 tokens · 0% used"
    assert {mark.key for mark in h.window.mirror.history.marks} >= {"preemption", "swap_blocks"}
    for policy in ("recompute", "swap"):  # the pool is there already
        qtbot.mouseClick(panel.segments["preemption"].button(policy), Qt.MouseButton.LeftButton)
        h.run(1)
        assert h.sent(Change)[-1].changes == {"preemption": policy}


def test_a_refused_policy_says_why_and_snaps_back(qtbot):
    h = Harness(qtbot)
    control, send = h.window.controls.segments["preemption"], h.source.send

    def refuse(command):
        if isinstance(command, Change):
            h.source._queue.append(Ack(id=command.id, ok=False, step=0, message="the host has no room"))
        else:
            send(command)

    h.source.send = refuse
    control.button("swap").click()
    h.run(1)
    assert control.value == "recompute" and control.refusal == "the host has no room"


def test_what_changes_along_waits_with_its_wish():
    source = _Source()
    sender = ChangeSender(source)
    sender.wish("preemption", "recompute")
    sender.wish("preemption", "swap", {"swap_blocks": 64})
    sender.settle(_ack(source.sent[0]))
    assert source.sent[-1].changes == {"preemption": "swap", "swap_blocks": 64}


def test_workload_controls(qtbot):
    h = Harness(qtbot)
    workload = h.window.controls.workload
    workload.sliders["rate"].slider.setValue(workload.sliders["rate"].slider.maximum())
    assert h.workload.settings.rate == 20
    workload.sliders["prompt_tokens"].slider.setValue(3)
    assert h.workload.settings.prompt_tokens == workload.sliders["prompt_tokens"].value
    assert isinstance(h.workload.settings.prompt_tokens, int)
    workload.run.click()
    assert not h.workload.settings.running and workload.run.text() == "Resume arrivals"
    workload.one.click()
    workload.count.setText("12")
    workload.burst.click()
    assert h.workload.bursts == [1, 12]
    assert h.sent(Change) == []  # the workload is not the engine's


def test_copy_settings(qtbot):
    h = Harness(qtbot)
    text = h.window.controls.copy_settings()
    assert "servescope --set" in text.replace("servescope --model default", "servescope") and "vllm serve" in text
    assert QGuiApplication.clipboard().text() == text


def test_all_eight_sliders_show_range_and_hint(qtbot):
    h = Harness(qtbot)
    panel = h.window.controls
    engine = [panel.sliders[k] for k in ("max_batch", "max_context", "draft_length", "kv_blocks", "token_budget")]
    for control in (*engine, *panel.workload.sliders.values()):
        assert control.limit_text and control.hint_text, control.key


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_the_panel_is_never_wider_than_its_room(qtbot, scale):
    h = Harness(qtbot, size=(1280, 720), scale=scale)
    area = h.window.controls.area
    assert area.widget().minimumSizeHint().width() <= area.viewport().width()


def test_all_sliders_of_engine_and_workload_stand_on_the_first_screen(qtbot):
    h = Harness(qtbot, size=(1600, 1000), scale=1.0)
    controls = h.window.controls
    last = controls.workload.sliders["output_tokens"]
    bottom = last.mapTo(controls.area.viewport(), last.rect().bottomLeft()).y()
    assert bottom <= controls.area.viewport().height()


def test_the_watermark_is_a_share_and_says_how_many_blocks_it_keeps(qtbot):
    h = Harness(qtbot)
    control = h.window.controls.sliders["watermark"]
    assert control.hint_text == "2 blocks that no new prompt takes"
    control.slider.setValue(control._scale.position(0.25))
    assert [c.changes for c in h.sent(Change)] == [{"watermark": 0.25}]
    h.run(2)
    assert control.hint_text == "64 blocks that no new prompt takes"
    control.slider.setValue(0)
    h.run(2)
    assert control.hint_text == "0: prompts may fill the pool"
    gap = h.window.controls.sliders["max_gap"]
    gap.slider.setValue(gap._scale.position(64))
    assert h.sent(Change)[-1].changes == {"max_gap": 64}
