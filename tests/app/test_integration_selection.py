"""A sequence chosen in any view lights up in every view, and all of them are as before when it is let go."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from PySide6.QtCore import QPoint
from PySide6.QtGui import QColor, QImage
from PySide6.QtWidgets import QWidget

from engine.config import LiveSettings
from engine.records import USED, StepOnce
from tests.support.live_window import LiveWindow, tiny_config
from tests.support.tiny_directory import make_directory
from tests.ui.views_for_window import KEYS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def live(qapp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveWindow]:
    """In the middle of work: sequences run, wait, have drafts and first tokens; some have ended. Paused from the start
    and led there step by step, so that it is the same moment every time."""
    settings = LiveSettings(max_batch=6, max_context=256, kv_blocks=96, token_budget=64, draft_length=4)
    config = tiny_config(make_directory(tmp_path_factory.mktemp("model")), settings, start_paused=True)
    shown = LiveWindow(config, size=(1920, 1200))
    mirror = shown.window.mirror
    shown.load(4, prompt=20, tokens=12)
    shown.load(24, prompt=30, tokens=180)
    shown.pump(lambda: len(mirror.live.waiting) == 28)
    lead(shown, 70)
    assert len(mirror.history.requests) >= 4 and len(mirror.live.running) >= 4 and mirror.live.waiting
    while not sequences(shown.window):
        lead(shown, 1)
    yield shown
    shown.close()


def lead(live: LiveWindow, steps: int) -> None:
    """That many steps more, and the window as it is after the last of them."""
    last = live.window.mirror.last_step + steps
    live.source.send(StepOnce(id=live.source.next_id(), steps=steps))
    live.pump(lambda: live.window.mirror.last_step == last)
    live.drawn()


@pytest.fixture
def window(live: LiveWindow):
    live.window.selection.choose(live.window.mirror.live.running[0])
    live.drawn()  # blocks taken in steps that one frame covered stop to glow with the next
    live.window.selection.choose()
    live.drawn()
    docks = live.window.deck.docks
    assert all(docks[key].shown for key in KEYS), "all seven views are in sight"
    yield live.window
    live.window.selection.choose()


def view(window, key: str):
    return window.deck.docks[key].view


def sequences(window) -> list[int]:
    """Those that ran in the last step, have a first token, and a row among the passes shown."""
    state, rows = window.mirror.live, [seq for _, seq in view(window, "speculation").rows.rows]
    return [s for s in rows if s in state.running and state.sequences[s].row_step == state.step]


def choose_in_tables(live: LiveWindow, seq: int) -> None:
    area = view(live.window, "tables").area
    row = area.row_rect(area.rows.index(seq))
    live.click(area.viewport(), QPoint(20, row.center().y()))


def choose_in_pool(live: LiveWindow, seq: int) -> None:
    canvas, state = view(live.window, "pool").canvas, live.window.mirror.live
    block = next(int(b) for b in state.table(seq) if state.owner[b] == seq and state.blocks_state[b] == USED)
    live.click(canvas, canvas.rect_of(block).center())


def choose_in_requests(live: LiveWindow, seq: int) -> None:
    rows = view(live.window, "requests").list
    index = next(i for i in range(len(rows)) if rows.row(i).seq == seq)
    rows.verticalScrollBar().setValue(index * rows.pitch)
    live.click(rows.viewport(), QPoint(30, index * rows.pitch - rows.verticalScrollBar().value() + 5))


def choose_in_speculation(live: LiveWindow, seq: int) -> None:
    shown = view(live.window, "speculation")
    box = next(box for box, owner in shown.rows.rows if owner == seq)
    live.click(shown, QPoint(box.left() + 4, box.center().y()))


CHOOSE: dict[str, Callable[[LiveWindow, int], None]] = {
    "tables": choose_in_tables, "pool": choose_in_pool, "requests": choose_in_requests,
    "speculation": choose_in_speculation,
}  # fmt: skip


@pytest.mark.parametrize("where", CHOOSE)
def test_chosen_anywhere_a_sequence_lights_up_everywhere(live: LiveWindow, window, where: str) -> None:
    seq, keys = sequences(window)[0], [key for key, dock in window.deck.docks.items() if dock.shown]
    before = {key: pixels(view(window, key)) for key in keys}
    CHOOSE[where](live, seq)
    live.drawn()
    assert window.selection.seq == seq
    after = {key: pixels(view(window, key)) for key in keys}
    assert {key for key in keys if not np.array_equal(before[key], after[key])} == set(keys)

    hue, mark = window.theme.sequence_color(seq), window.theme.color("selection")
    lit_in_pool(window, seq)
    lit_in_tables(window, seq, mark)
    for key, color in (("batch", hue), ("latency", hue), ("latency", mark), ("memory", mark)):
        assert count(after[key], color) > count(before[key], color), f"{key} has something in {color.name()}"
    hover = window.theme.color("hover")
    assert count(after["speculation"], hover) > count(before["speculation"], hover)
    requests = view(window, "requests")
    assert requests.list.selected == seq == requests.shown
    assert f"seq {seq}" in requests.status.text()

    window.selection.choose()
    live.drawn()
    for key in keys:
        if key == "requests":  # goes on following a sequence, and its list may have been scrolled
            assert view(window, key).list.selected is None
        else:
            assert np.array_equal(pixels(view(window, key)), before[key]), f"{key} is as before"


def lit_in_pool(window, seq: int) -> None:
    """Each block of the table is outlined, and no other is. Gutters are shared with neighbours; the outermost pixels
    of a body are its own."""
    canvas, state = view(window, "pool").canvas, window.mirror.live
    image, tone = pixels(canvas), _rgb(window.theme.color("selection"))
    assert canvas.grid.gutter >= 1 and min(canvas.grid.width, canvas.grid.height) >= 10
    outlined = set()
    for block in range(state.num_blocks):
        body = canvas.rect_of(block)
        sides = [(body.left(), body.center().y()), (body.right(), body.center().y()), (body.center().x(), body.top())]
        if all((image[y, x] == tone).all() for x, y in sides):
            outlined.add(block)
    # the chosen block itself has a mark of its own over it
    assert outlined == set(state.table(seq).tolist()) - {window.selection.block}


def lit_in_tables(window, seq: int, mark: QColor) -> None:
    area = view(window, "tables").area
    image = pixels(area.viewport())
    lit = [s for i, s in enumerate(area.rows) if area.row_rect(i).bottom() < image.shape[0]
           and (image[area.row_rect(i).center().y(), 0] == _rgb(mark)).all()]  # fmt: skip
    assert lit == [seq]


def test_a_chosen_block_is_marked_in_the_pool_and_in_every_table_that_has_it(live: LiveWindow, window) -> None:
    canvas, state = view(window, "pool").canvas, window.mirror.live
    block = int(state.table(sequences(window)[0])[0])
    before = pixels(view(window, "tables"))
    live.click(canvas, canvas.rect_of(block).center())
    live.drawn()
    assert window.selection.block == block and window.selection.seq == int(state.owner[block])
    area, image = view(window, "tables").area, pixels(view(window, "tables").area.viewport())
    tone = _rgb(window.theme.color("selection"))
    for seq, logical in state.sharers(block):
        box = area.cell_rect(seq, logical).adjusted(0, 1, 0, -2)
        if box.isValid() and area.viewport().rect().contains(box):
            assert (image[box.top(), box.center().x()] == tone).all()
    assert not np.array_equal(before, pixels(view(window, "tables")))


def test_a_sequence_that_ended_is_still_found(live: LiveWindow, window) -> None:
    """Its text, what the cache keeps of it, and its latencies."""
    done = window.mirror.history.requests[0]
    choose_in_requests(live, done.seq)
    live.drawn()
    requests, latency = view(window, "requests"), view(window, "latency")
    assert window.selection.seq == done.seq == requests.shown
    assert latency.shown.chosen["ttft"].value == pytest.approx(done.ttft)
    assert latency.shown.chosen["tpot"].value == pytest.approx(done.tpot)


def pixels(widget: QWidget) -> np.ndarray:
    """(height, width, 3) as painted now."""
    image = widget.grab().toImage().convertToFormat(QImage.Format.Format_RGB32)
    raw = np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), image.bytesPerLine())
    return raw[:, : 4 * image.width()].reshape(image.height(), image.width(), 4)[:, :, 2::-1].copy()


def count(image: np.ndarray, color: QColor) -> int:
    """Pixels of exactly that colour."""
    return int((image == _rgb(color)).all(axis=2).sum())


def _rgb(color: QColor) -> np.ndarray:
    return np.array(color.getRgb()[:3], np.uint8)
