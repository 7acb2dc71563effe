"""Changes of settings on time plots: what changed, the figures before and after, one mark for what changed at once."""

from __future__ import annotations

import numpy as np
import pytest

from app.bench.pool_decoder import pixels
from tests.ui.scenes import advance, scene, show
from ui import explain, figures
from ui.changes import Kinds
from ui.history import Mark
from ui.views.batch import BatchView
from ui.views.mark_words import FRESH, MarkWords, moments
from ui.views.memory import MemoryView


@pytest.fixture
def changed(qapp):
    """A stream in which two settings changed at one step, some time ago."""
    context = scene(steps=150)
    context.source.world.change(draft_length=2, max_batch=12)
    advance(context, 60)
    return context


def width(text: str) -> int:
    return len(text)


def test_settings_changed_at_once_are_one_mark(changed) -> None:
    (group,) = moments(changed.mirror.history.marks)
    assert {mark.key for mark in group} == {"draft_length", "max_batch"}
    assert MarkWords(changed).fitted(group, 30, width) == "batch 16 → 12, γ 4 → 2"


def test_figures_are_those_around_the_mark_as_far_as_they_fit(changed) -> None:
    (group,) = moments(changed.mirror.history.marks)
    told = figures.around(changed.mirror, group[0], changed.goals.targets)
    rates = f"{explain.rate(told.before.tokens_per_s)} → {explain.rate(told.after.tokens_per_s)} tok/s"
    words = MarkWords(changed)
    whole, short = words.fitted(group, 500, width), words.fitted(group, 55, width)
    assert whole.startswith(f"batch 16 → 12, γ 4 → 2: {rates} · TTFT ") and "goodput" in whole
    assert short == f"batch 16 → 12, γ 4 → 2: {rates}"
    assert words.fitted(group, 14, width) == "batch 16 → 12"
    assert words.fitted(group, 5, width) == ""


def test_figures_are_looked_up_a_few_times_a_second(changed, monkeypatch) -> None:
    looks, now = [], [0.0]
    around = figures.around
    monkeypatch.setattr(figures, "around", lambda *parts: (looks.append(1), around(*parts))[1])
    words, (group,) = MarkWords(changed, clock=lambda: now[0]), moments(changed.mirror.history.marks)
    for _ in range(10):
        words.fitted(group, 500, width)
    assert len(looks) == 1
    now[0] += FRESH
    words.fitted(group, 500, width)
    assert len(looks) == 2


def test_an_engine_started_again_has_no_figures(qapp) -> None:
    mark = Mark(5, 0, "engine", None, "restarted")
    assert MarkWords(scene(steps=0)).fitted([mark], 500, width) == "engine started again"


@pytest.mark.parametrize("kind", [BatchView, MemoryView])
def test_plots_over_steps_show_marks(qtbot, changed, kind) -> None:
    view = show(qtbot, kind(changed), 900, 500)
    view.refresh(Kinds.ALL)
    mark = np.uint32(view.theme.color("mark").rgba())
    columns = (pixels(view) == mark).sum(axis=0)
    assert columns.max() > 40  # an upright line
