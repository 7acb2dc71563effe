"""The memory view: parts that sum, said of what; a bar whose pixels are its bytes."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest
from PySide6.QtCore import QPoint

from engine.formulas import Waste
from engine.records import NONE, USED
from tests.support.synthetic import NoProbe
from tests.ui.scenes import scene, show
from ui import breakdown
from ui.changes import Kinds
from ui.context import ViewContext
from ui.contracts import DeviceMemory
from ui.paint.stacked_bar import split
from ui.views.memory import MemoryView

GIB = 1 << 30


def with_card(context: ViewContext) -> ViewContext:
    sample = DeviceMemory(
        name="NVIDIA H200", total=140 * GIB, used=3 * GIB, reserved=GIB // 4, process=2 * GIB, others=GIB // 2
    )
    return ViewContext(**{**context.__dict__, "probe": NoProbe(sample)})


@pytest.mark.parametrize("width", [7, 50, 333])
def test_a_bar_is_split_to_the_pixel(width):
    found = split([3.0, 0.0, 1.0, 5.5], width)
    assert sum(found) == width and found[1] == 0 and min(found[0], found[2], found[3]) >= 1


def test_a_sliver_is_still_seen():
    assert split([1e9, 1.0], 100) == [99, 1]


def test_without_a_card_it_is_the_process_and_says_so(qtbot):
    view = show(qtbot, MemoryView(scene()), 320, 300)
    assert "engine process" in view._summary
    assert sum(part.bytes for part in view.shown.parts) == view.context.cursor.state.memory.resident


def test_with_a_card_it_is_the_card(qtbot):
    view = show(qtbot, MemoryView(with_card(scene())), 420, 360)
    assert view._summary == "NVIDIA H200 · 3.25 GiB of 140 GiB in use"
    assert sum(part.bytes for part in view.shown.parts) == 3 * GIB + GIB // 4
    words = [text for text, _ in view._foot(view.shown, 2000)]
    assert words[0] == "sum 3.25 GiB = 3.00 GiB used + 256 MiB reserved by the driver, by NVML's count"
    assert "unexplained" in [part.name for part in view.shown.parts]


@pytest.mark.parametrize("missing", list(product([False, True], repeat=5)))
def test_no_figure_that_the_driver_does_not_give(qtbot, missing):
    """Every set of N/A: no words claim a count that isn't there."""
    names = ("total", "used", "reserved", "process", "others")
    told = dict(zip(names, (140 * GIB, 3 * GIB, GIB // 4, 2 * GIB, GIB // 2), strict=True))
    gone = {name for name, away in zip(names, missing, strict=True) if away}
    sample = DeviceMemory(name="GB10", **{name: None if name in gone else size for name, size in told.items()})
    view = show(qtbot, MemoryView(ViewContext(**{**scene().__dict__, "probe": NoProbe(sample)})), 700, 420)
    parts = {part.name: part.bytes for part in view.shown.parts}
    words = " ".join([view._summary, *(text for text, _ in view._foot(view.shown, 2000))])
    assert sum(parts.values()) == view.shown.total
    assert ("other processes" in parts) == ("others" not in gone)
    assert ("CUDA context" in parts) == ("process" not in gone)
    assert ("driver" in parts) == ("reserved" not in gone)
    assert ("unexplained" in parts) == ("used" not in gone)
    assert ("140 GiB" in words) == ("total" not in gone)
    assert ("unavailable" in words) == ("used" in gone)
    assert ("by NVML's count" in words) == (not gone & {"used", "reserved"})
    assert (view.shown.free is None) == bool(gone & {"used", "total"})


def test_the_formula_has_the_models_numbers(qtbot):
    view = show(qtbot, MemoryView(scene()), 600, 300)
    words = [text for text, _ in view._foot(view.shown, 2000)]
    assert words[-1] == "KV 2·L·H_kv·d_h·n = 2·30·3·64·2 = 22.5 KiB per token"
    assert [text for text, _ in view._foot(view.shown, 10)][-1] == "KV 22.5 KiB per token"


def test_the_bar_has_the_colours_of_its_parts(qtbot):
    view = show(qtbot, MemoryView(scene()), 600, 300)
    image = view.grab().toImage()
    boxes = [(box, part) for box, part in view._hits if box.top() == view._hits[0][0].top()]
    assert [part.name for _, part in boxes][:3] == ["weights", "KV used", "KV cached"]
    for box, part in boxes:
        if box.width() > 4:
            assert image.pixelColor(box.right() - 1, box.bottom() - 1).name() == view.theme.color(part.token).name()


def test_hovering_a_part_lights_it_and_tells_of_it(qtbot, monkeypatch):
    told = []
    monkeypatch.setattr(MemoryView, "tip", lambda self, where, text: told.append(text))
    view = show(qtbot, MemoryView(scene()), 600, 300)
    view.grab()
    box, part = view._hits[0]
    qtbot.mouseMove(view, QPoint(2, 290))
    qtbot.mouseMove(view, box.center())
    assert view._lit is part and part.note in told[-1]


def test_before_anything_is_told_it_waits(qtbot):
    context = scene(steps=0)
    context.mirror.live.memory = None
    view = show(qtbot, MemoryView(context), 320, 200)
    assert view.shown is None and not view.grab().isNull()


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("card", [False, True])
@pytest.mark.parametrize("size", [(160, 60), (320, 180), (420, 700), (1600, 800)])
def test_rows_stay_inside_and_apart(qtbot, size, card, scale):
    context = scene(steps=120)
    context.theme.set_scale(scale)
    view = show(qtbot, MemoryView(with_card(context) if card else context), *size)
    view.grab()
    rows = [box for box, _ in view._hits if box.top() != view._hits[0][0].top()]
    for index, box in enumerate(rows):
        assert view.rect().contains(box)
        assert not any(box.intersects(other) for other in rows[index + 1 :])


def test_the_selected_sequence_is_told_in_bytes(qtbot):
    context = scene()
    view = show(qtbot, MemoryView(context), 420, 360)
    state = context.cursor.state
    seq = state.running[0]
    context.selection.choose(seq)
    view.refresh(Kinds.SELECTION)
    blocks, held = view._held()
    assert blocks == len(state.table(seq)) and held == state.memory.kv_pool * blocks // state.num_blocks
    assert any(f"seq {seq} " in words for words, _ in view._foot(view.shown, 400))


def with_host(context: ViewContext, blocks: int = 128, used: int = 20) -> ViewContext:
    """As if `used` blocks of a host pool held the first waiting sequence."""
    state = context.mirror.live
    memory = msgspec.structs.replace(state.memory, host_pool=blocks * 16 * 23_040)
    state.memory = msgspec.structs.replace(memory, resident=memory.resident + memory.host_pool)
    state.host.resize(blocks)
    state.host.owner[:used] = state.running[0]
    assert NONE in state.host.owner
    return context


def test_the_host_pool_is_a_part_of_the_process_and_beside_the_card(qtbot):
    view = show(qtbot, MemoryView(with_host(scene())), 420, 360)
    part = next(part for part in view.shown.parts if part.token == "host_pool")
    assert (part.name, part.note) == ("host pool", "20 of 128 blocks") and part.bytes == 128 * 16 * 23_040
    assert sum(part.bytes for part in view.shown.parts) == view.context.cursor.state.memory.resident
    assert not view.grab().isNull()
    card = show(qtbot, MemoryView(with_card(with_host(scene()))), 420, 360)
    assert all(part.name != "host pool" for part in card.shown.parts)
    assert any("host pool 45.0 MiB in the host's memory" in words for words, _ in card._foot(card.shown, 400))
    without = show(qtbot, MemoryView(scene()), 420, 360)
    assert all(part.name != "host pool" for part in without.shown.parts)


def test_waste_is_told_by_why(qtbot):
    assert breakdown.waste_words(Waste(stored=70, reserved=20, last_block=5, gaps=5))[0] == (
        "waste 30 % of KV held: reserved, empty 20 % · ends of last blocks 5 % · gaps too short 5 %"
    )
    lengths = [len(words) for words in breakdown.waste_words(Waste(70, 20, 5, 5))]
    assert lengths == sorted(lengths, reverse=True)
    assert breakdown.waste_words(Waste(0, 0, 0, 0)) == ("waste: nothing is held",)
    view = show(qtbot, MemoryView(scene()), 600, 360)
    state = view.context.cursor.state
    share = state.waste(state.block_size).share
    assert any(words.startswith(f"waste {100 * share:.0f} % of KV held") for words, _ in view._foot(view.shown, 600))


def test_what_is_reserved_and_empty_is_hatched_in_the_bar(qtbot):
    context = scene()
    state = context.mirror.live
    held = (state.blocks_state == USED).nonzero()[0]
    state.filled[held[: len(held) // 2]] = 0
    state.recount()
    view = show(qtbot, MemoryView(context), 600, 300)
    image = view.grab().toImage()
    box = next(box for box, part in view._hits if part.token == "kv_used")

    def colours(left: int, right: int) -> set[str]:
        return {image.pixelColor(x, box.bottom() - 1).name() for x in range(left, right)}

    assert colours(box.left() + 2, box.center().x() - 4) == {view.theme.color("kv_used").name()}
    assert view.theme.color("panel").name() in colours(box.center().x() + 4, box.right() - 1)


def test_a_narrow_panel_still_lists_every_part_of_a_card_and_their_sum(qtbot):
    context = with_card(scene())
    memory = context.mirror.live.memory
    base = memory.weights + memory.kv_pool
    context.mirror.live.memory = msgspec.structs.replace(
        memory, graphs=64 << 20, allocated=base + (90 << 20), peak=base + (300 << 20), reserved=base + (400 << 20)
    )
    view = show(qtbot, MemoryView(context), 321, 215)
    view.grab()
    listed = {part.name for box, part in view._hits if box.top() != view._hits[0][0].top()}
    assert listed == {part.name for part in view.shown.parts} >= {"CUDA context", "peak activations", "driver"}
    assert max(box.bottom() for box, _ in view._hits) <= view.height() - view.line() - 10
