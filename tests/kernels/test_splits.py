"""How many programs share a row's keys: from shapes and the card alone, within the workspace that was made."""

from __future__ import annotations

import torch

from engine.kernels.splits import LEAST, MOST, choose, decode_workspace

CPU = torch.device("cpu")


def test_one_row_fills_the_card():
    programs = 264  # an H200's 132 multiprocessors, two on each
    for units in (1, 2, 8, 32, 100):
        work = units * choose(units, programs)
        assert work >= 0.95 * min(0.95 * programs, units * MOST)


def test_a_full_batch_is_cut_a_little_still():
    assert choose(64 * 8, 264) == LEAST


def test_no_more_than_the_workspace_holds():
    workspace = decode_workspace(8, 32, 128, CPU, 132)
    for rows in range(1, 9):
        for kv_heads in (1, 8, 32):
            splits = workspace.splits(rows * kv_heads, 32 // kv_heads * 128)
            assert splits >= min(choose(rows * kv_heads, 264), LEAST)
            assert rows * 32 * 128 * splits <= len(workspace.means)
            assert rows * 32 * splits <= len(workspace.log_sums)


def test_decode_gets_the_splits_it_chose():
    workspace = decode_workspace(64, 32, 128, CPU, 132)
    for rows in (1, 2, 7, 33, 64):
        assert workspace.splits(rows * 8, 4 * 128) == choose(rows * 8, 264)


def test_more_work_than_it_was_made_for_is_not_split():
    assert decode_workspace(1, 4, 64, CPU).splits(5, 64) == 1
