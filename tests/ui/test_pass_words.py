"""How a pass ran, in words: overlap or why not, graphs and their padding, waste; and nothing on a CPU."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from engine.records import ROW, Serial, unpack
from tests.ui.scenes import scene, show
from ui.changes import Kinds
from ui.context import ViewContext
from ui.history import OVERLAPS
from ui.mirror import Mirror
from ui.pass_words import WHY, How, how
from ui.views.batch import BatchView
from ui.views.step_strips import describe


def told(*steps: dict) -> tuple[ViewContext, list[int]]:
    """A scene whose last steps have these fields, and the tokens that each of those computed."""
    context, computed = scene(steps=80), []
    for fields in steps:
        context.source.advance(1)  # type: ignore[attr-defined]
        record = msgspec.structs.replace(context.source.poll()[0], **fields)
        computed.append(int(unpack(record.rows, ROW)["scheduled"].sum()))
        context.mirror.apply(record)
    return context, computed


@pytest.mark.parametrize(
    ("given", "lines", "brief"),
    [
        (How(computed=40), [], ""),
        (How("overlapped"), ["overlapped with the step before"], "overlapped"),
        (How("drafts"), ["not overlapped: drafts are proposed from tokens on the host"], "not overlapped: drafts"),
        (How(graph=True, computed=8), ["replayed from a graph of 8 tokens"], "graph"),
        (
            How("overlapped", graph=True, computed=3, wasted=2, padded=3),
            [
                "overlapped with the step before",
                "replayed from a graph of 8 tokens, 3 of them padding",
                "2 tokens wasted: their sequences had stopped",
            ],
            "overlapped · graph, 3 of 8 padding · 2 wasted",
        ),
        (How(wasted=1), ["1 token wasted: its sequence had stopped"], "1 wasted"),
    ],
)
def test_words(given: How, lines: list[str], brief: str) -> None:
    assert given.lines == lines and given.brief == brief


def test_every_reason_has_words() -> None:
    assert set(WHY) == set(get_args(Serial)) - {""}
    assert set(OVERLAPS) == {"", "overlapped", *WHY} and len(OVERLAPS) == len(WHY) + 2


@pytest.mark.parametrize("serial", [why for why in get_args(Serial) if why])
def test_a_past_step_keeps_why_it_did_not_overlap(qapp, serial: Serial) -> None:
    context, _ = told({"serial": serial}, {"overlapped": True})
    history = context.mirror.history
    columns = history.slice(history.last - 1)
    assert [how(columns, at).overlap for at in (0, 1)] == [serial, "overlapped"]
    assert f"not overlapped: {WHY[serial][1]}" in describe(history, history.last - 1, history.last - 1)


def test_the_graph_s_shape_counts_what_was_wasted_and_padded(qapp) -> None:
    context, (first, second) = told(
        {"overlapped": True, "graph": True, "padded": 5, "wasted": 2}, {"serial": "idle", "graph": False}
    )
    history = context.mirror.history
    words = describe(history, history.last - 1, history.last - 1)
    assert f"replayed from a graph of {first + 7:,} tokens, 5 of them padding" in words
    assert "2 tokens wasted" in words and f"{first:,} of " in words
    words = describe(history, history.last, history.last)
    assert "graph" not in words and "wasted" not in words and f"{second:,} of " in words


def test_the_line_at_the_top_speaks_of_the_shown_step(qtbot) -> None:
    context, (first, _) = told({"overlapped": True, "graph": True, "padded": 5}, {"serial": "drafts"})
    view, last = show(qtbot, BatchView(context), 1000, 240), context.mirror.history.last
    assert view._summary.endswith(" · not overlapped: drafts")
    context.cursor.pin(last - 1)
    view.refresh(Kinds.CURSOR)
    assert view._summary.endswith(f" · overlapped · graph, 5 of {first + 5:,} padding")


def test_nothing_is_said_where_steps_do_not_overlap(qtbot) -> None:
    context = scene(steps=80)
    view, history = show(qtbot, BatchView(context), 1000, 240), context.mirror.history
    words = describe(history, 80, 80) + view._summary
    assert not any(word in words for word in ("overlap", "graph", "padding", "wasted", " · <"))
    assert view._summary.rpartition(" · ")[2].startswith("bound by: ")


def test_what_is_kept_of_passes_is_bounded(qapp) -> None:
    context, mirror = scene(steps=0), Mirror(capacity=50)
    context.source.advance(3_000)
    for message in context.source.poll():
        step = getattr(message, "step", 0)
        mirror.apply(msgspec.structs.replace(message, padded=step) if hasattr(message, "padded") else message)
    columns = mirror.history.slice()
    assert len(columns) == 50 and columns.padded.tolist() == columns.step.tolist()
    assert all(len(mirror.history._buffers[name]) <= 1_024 for name in ("overlap", "graph", "wasted", "padded"))
