"""The price of preemption: shares, words, and the strip that shows it."""

from __future__ import annotations

import msgspec
import pytest

from engine.records import ROW, unpack
from tests.ui.scenes import scene, show
from tests.ui.test_batch import pixels
from ui import pressure
from ui.changes import Kinds
from ui.context import ViewContext
from ui.pressure import Pressure
from ui.views.batch import BatchView
from ui.views.step_strips import describe


def pressed(steps: int, recomputed: float, swap: int = 0) -> ViewContext:
    """The last `steps` steps computed this share of their tokens again, and swapped for `swap` ns each."""
    context = scene(steps=100)
    for _ in range(steps):
        context.source.advance(1)  # type: ignore[attr-defined]
        record = context.source.poll()[0]
        computed = int(unpack(record.rows, ROW)["scheduled"].sum())
        timing = msgspec.structs.replace(record.timing, swap=swap)
        record = msgspec.structs.replace(record, recomputed=round(recomputed * computed), timing=timing)
        context.mirror.apply(record)
    return context


def test_shares_are_of_all_tokens_and_of_all_time(qapp):
    context = pressed(60, 0.5, 1_000_000)
    history = context.mirror.history
    now = pressure.lately(history, history.last)
    assert now.recomputed == pytest.approx(0.5, abs=0.02) and 0.05 < now.swapping < 0.5
    assert now.thrashes and now.words.startswith("thrashing: 50 % of the tokens computed again, ")
    columns = history.slice(history.last, history.last)
    share = pressure.shares(columns)
    assert share.shape == (2, 1)
    assert share[1, 0] == 1_000_000 / int(pressure.time_of(columns)[0])
    early = pressure.lately(history, 90)
    assert early == Pressure(0.0, 0.0) and early.words == ""


def test_words_name_what_there_is():
    assert Pressure(0.06, 0.0).words == "6 % of the tokens computed again"
    assert Pressure(0.0, 0.3).words == "thrashing: 30 % of the time swapping"


def test_the_strip_appears_with_the_first_preemption_and_names_thrash(qtbot):
    calm = show(qtbot, BatchView(scene(steps=150)), 1000, 240)
    context = pressed(60, 0.5)
    view = show(qtbot, BatchView(context), 1000, 240)
    image, danger = pixels(view.grab().toImage()), view.theme.color("danger").rgba()
    x, low = view.axis.x(context.mirror.history.last) + 1, view._plot.bottom()
    assert view._plot.height() < (calm.grab(), calm._plot.height())[1]
    strip = image[low + view.theme.px(12) : low + view.theme.px(30), x]
    assert view._summary.startswith("thrashing: 50 % of the tokens")
    assert 2 <= int((strip == danger).sum()) <= 10
    words = describe(context.mirror.history, context.mirror.history.last, context.mirror.history.last)
    assert "computed again, after a preemption" in words
    context.cursor.pin(90)
    view.refresh(Kinds.CURSOR)
    assert view._summary.startswith("step 90")
