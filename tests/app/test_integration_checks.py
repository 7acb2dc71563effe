"""A request is checked in the real window: run again without drafts by the real engine, while others come and go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine import records as r
from tests.support.live_window import LiveWindow, tiny_config, undisturbed
from tests.support.tiny_directory import make_directory

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def live(qapp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveWindow]:
    config = tiny_config(make_directory(tmp_path_factory.mktemp("model")))
    shown = LiveWindow(config)
    shown.config = config
    yield shown
    shown.close()


def test_a_check_counts_all_tokens_equal_and_disturbs_nobody(live: LiveWindow) -> None:
    view = live.window.deck.docks["requests"].view
    first = live.load(3, tokens=120)
    live.await_end(first)
    live.drawn()
    seq = next(row.seq for row in live.window.mirror.history.requests if row.number == first[0])
    live.window.selection.choose(seq)
    live.drawn()
    live.click(view.check_button)
    live.pump(lambda: live.window.mirror.live.shadows)
    since = len(live.source.sent)
    others = live.load(4, tokens=60)  # it gives way
    live.await_end(others)
    live.pump(lambda: live.window.mirror.live.shadows[seq].done)
    live.drawn()
    state = live.window.mirror.live.shadows[seq]
    assert (state.equal, state.different, state.tokens) == (120, 0, 120)
    assert 100 < state.shadow_pace.tokens <= 119, "tokens of passes that computed it again are no measure"
    assert view.check_line.isVisible() and view.check_line.told.headline == "120 of 120 tokens equal"
    assert live.window.mirror.drift == 0
    asked = [c.request for c in live.source.sent[since:] if isinstance(c, r.Submit)]
    tokens, alone = live.source.seen.tokens(), undisturbed(live.config, asked)
    assert len(alone) == 4 and all(tokens[number] == alone[number] for number in others)
