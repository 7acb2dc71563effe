"""The window's bench prints figures that are there and make sense, and finds a window that shows what isn't so."""

from __future__ import annotations

import argparse
import json

import numpy as np
import pytest

from app.bench import window, window_simulated
from app.bench.pool_decoder import misread
from app.bench.recount import differences
from app.bench.window_load import WORDS, Load, Steady
from app.options import UsageError
from engine.records import USED, Request
from engine.simulation.build import build
from engine.simulation.words import FILLER
from tests.ui.scenes import scene, show
from ui.views.pool import PoolView


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    window.add_arguments(parser)
    return parser.parse_args(words)


def test_each_scale_has_its_figures_and_the_largest_is_recounted(qapp, capsys) -> None:
    words = ["--blocks", "300", "--blocks", "5000", "--sequences", "6", "--steps", "100", "--seconds", "1",
             "--recounts", "2", "--json"]  # fmt: skip
    assert window.run(arguments(*words)) == 0
    small, large = json.loads(capsys.readouterr().out)["runs"]
    assert [one["blocks"] for one in (small, large)] == [300, 5000]
    for one in (small, large):
        assert (one["sequences"], one["size"], one["simulated"]) == (6, [1920, 1080], True)
        assert set(one["views_visible"]) == set(window_simulated.MAIN) <= set(one["views"])
        for name in ("encode_us", "apply_us", "frame_ms"):
            assert 0 < one[f"{name}_p50"] <= one[f"{name}_p99"]
        assert all(0 < view["ms_p50"] <= view["ms_p99"] for view in one["views"].values())
        assert 0 < one["steps_per_s_reached"] < 110 and one["frames_per_s"] > 1
        assert one["pool"]["used"] > 0 and one["pool"]["cached"] > 0
        assert min(one["rss_mb_start"], one["rss_mb_end"]) > 10
    assert "recounted" not in small
    assert (large["recounted"], large["equal"], large["picture_pixels_wrong"]) == (2, 2, 0)


@pytest.mark.slow(seconds=25)
def test_at_scale_the_window_is_what_the_engines_structures_are(qapp, capsys) -> None:
    words = ["--blocks", "100000", "--sequences", "128", "--steps", "200", "--seconds", "1",
             "--recounts", "3", "--json"]  # fmt: skip
    assert window.run(arguments(*words)) == 0
    (one,) = json.loads(capsys.readouterr().out)["runs"]
    assert (one["recounted"], one["equal"], one["picture_pixels_wrong"], one["differences"]) == (3, 3, 0, [])
    assert one["running"] > 100 and one["pool"]["free"] < 10_000 and one["pool"]["shared"] > 0


@pytest.mark.parametrize("words", [
    ("--size", "big"), ("--seconds", "0"), ("--blocks", "-4"), ("--blocks", "20", "--sequences", "16"),
    ("--sequences", "4000"), ("--drafts", "99"), ("--recounts", "-1"),
    ("--size", "10x10"), ("--steps", "nan"), ("--seconds", "inf"), ("--blocks", "2147483648"), ("--live", "nan"),
    ("--live", "-5"),
])  # fmt: skip
def test_bad_words_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        window.run(arguments(*words))


def test_a_run_that_differs_fails() -> None:
    assert window._right({}) and window._right({"recounted": 3, "equal": 3, "picture_pixels_wrong": 0})
    assert not window._right({"recounted": 3, "equal": 2, "picture_pixels_wrong": 0})
    assert not window._right({"recounted": 3, "equal": 3, "picture_pixels_wrong": 1})


def test_what_differs_from_the_engines_structures_is_named(qapp) -> None:
    context = scene(300, 8, 40)
    state, frame = context.mirror.live, context.source.world.keyframe()  # type: ignore[attr-defined]
    assert differences(state, frame) == []
    state.filled[7] += 1
    state.running.reverse()
    seq = state.table_seqs[0]
    state.tables.get(seq)[0] ^= 1
    found = differences(state, frame)
    assert len(found) == 3 and "filled of 1 blocks, the first 7" in found[0]
    assert found[1:] == [f"the table of sequence {seq}", "the running sequences"]


@pytest.mark.parametrize(("blocks", "size"), [(300, (700, 360)), (20_000, (420, 300)), (60_000, (200, 160))])
def test_a_picture_that_shows_another_pool_is_misread(qtbot, blocks, size) -> None:
    context = scene(blocks, 16, 60)
    state = context.mirror.live
    view = show(qtbot, PoolView(context), *size)
    assert misread(view.canvas, state, context.theme) == 0
    other = state.copy()
    changed = np.flatnonzero(other.blocks_state != USED)[:: max(1, blocks // 300)]
    assert len(changed) > 20
    other.blocks_state[changed] = USED
    other.owner[changed], other.filled[changed] = 3, other.block_size
    assert misread(view.canvas, other, context.theme) > len(changed) / 5


def test_the_load_fills_the_pool_and_keeps_the_batch_full() -> None:
    assert len(FILLER) - 1 == WORDS and FILLER[-1].isspace()
    load = Load(2_000, 12, 0.0)
    engine = build(load.config(), lambda *_: None).engine
    asked: list[Request] = []
    steady = Steady(load, asked.append)
    steady.begin()
    full = 0
    for _ in range(400):
        for request in asked:
            engine.submit(request.number, request.token_ids, request)
        asked.clear()
        record = engine.step()
        engine.check()
        steady.hear([record])
        full += steady.busy
    assert full > 300 and steady.running == 12 and steady.held > 0.9
    assert engine.pool.used_count > 2_000 * 0.4 and record.waiting >= 1
