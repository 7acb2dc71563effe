"""'KV usage drops to 0 after each request, is prefix caching working?', asked of the real engine in the real window."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest

from app.bench.pool_decoder import pixels
from engine.records import Change
from tests.support.live_window import LiveWindow, tiny_config, words
from tests.support.tiny_directory import make_directory
from ui import prefix_tree
from ui.block_story import tell

pytestmark = pytest.mark.slow
SIZE = 8
PROMPT = words(3, 5 * SIZE)


@pytest.fixture
def live(qapp, tmp_path) -> Iterator[LiveWindow]:
    shown = LiveWindow(tiny_config(make_directory(tmp_path)))
    shown.window.deck.open("prefix")
    shown.drawn()
    yield shown
    shown.close()


def spelt(tokens: list[int]) -> str:
    return "".join(f" w{token}" for token in tokens)


def send(live: LiveWindow, prompt: list[int]) -> None:
    live.await_end([live.submit(prompt, 4)])
    live.pump(lambda: live.idle)
    live.drawn()


def test_send_it_twice_and_see_that_it_works(live: LiveWindow) -> None:
    window, view = live.window, live.window.deck.docks["prefix"].view
    assert not view.area.rows and view.answer.isHidden()
    send(live, PROMPT)
    state = window.mirror.live
    assert state.used == 0 and view.answer._words[0] == "0%"
    send(live, PROMPT)
    figure, verdict, held = view.answer._words
    use = state.prefixes.use
    assert use.requests == 2 and use.hits == 1 and use.hit >= 4 * SIZE
    assert figure == f"{use.hit / use.looked_up:.0%}"
    assert verdict == f"Prefix caching works: {use.hit} of {use.looked_up} tokens asked for were found"
    assert held == f"Nothing runs: KV used is 0, yet {state.cached} blocks ({state.cached * SIZE} tokens) stay cached"

    # the prompt's text, in its blocks, though nobody holds them any more and no output told it
    (row,) = view.area.rows
    run = view.area.tree.runs[row.run]
    assert prefix_tree.text_of(state, run).startswith(spelt(PROMPT))
    second = int(run.blocks[1])
    assert tell(state, second).text == spelt(PROMPT[SIZE : 2 * SIZE])

    # a third prompt that parts in its fourth block
    send(live, PROMPT[: 3 * SIZE] + words(9, 3 * SIZE))
    levels = [(row.level, len(view.area.tree.runs[row.run].blocks)) for row in view.area.rows]
    assert levels[0] == (0, 3) and [level for level, _ in levels[1:]] == [1, 1]

    # the block is chosen in the pool, and lit in the tree; and the reverse
    before, canvas = pixels(view.area.viewport()), window.deck.docks["pool"].view.canvas
    live.click(canvas, canvas.rect_of(second).center())
    live.drawn()
    assert window.selection.block == second and (pixels(view.area.viewport()) != before).any()
    window.selection.choose()
    live.drawn()
    live.click(view.area.viewport(), view.area.cell_rect(second).center())
    assert window.selection.block == second
    QTest.mouseClick(view.area.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(4, 2))
    assert window.selection.block is None

    # the cache goes off: why there is no tree is said, and the past still has it
    live.source.send(Change(id=live.source.next_id(), changes={"prefix_cache": False}))
    live.pump(lambda: not window.mirror.live.prefixes.count)
    live.drawn()
    assert not view.area.rows and view.answer.isHidden()
    window.cursor.pin(window.mirror.last_step - 1)
    live.drawn()
    assert view.area.rows and view.answer.isVisible()


def test_nothing_is_built_while_the_view_is_behind_its_tab(live: LiveWindow, monkeypatch) -> None:
    window, built = live.window, []
    build = prefix_tree.build
    monkeypatch.setattr(prefix_tree, "build", lambda state: built.append(1) or build(state))
    window.deck.open("tables")
    live.drawn()
    built.clear()
    live.await_end(live.load(6, tokens=40))
    live.drawn()
    assert not built and window.mirror.live.prefixes.count
    window.deck.open("prefix")
    live.drawn()
    assert built and window.deck.docks["prefix"].view.area.rows
