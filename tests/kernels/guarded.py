"""Rows within a larger tensor of NaN: what a kernel reads beyond them shows in its result, and what it writes there is
found."""

from __future__ import annotations

import torch

ABOVE, BEFORE, AFTER = 1, 3, 5  # rows of NaN over and under, numbers of NaN beside


class Guarded:
    """`rows` (rows, width) is the view that a kernel is given; NaN itself unless `numbers` fill it."""

    def __init__(self, rows: int, width: int, dtype: torch.dtype, numbers: torch.Tensor | None = None):
        self._whole = torch.full((rows + 2 * ABOVE, BEFORE + width + AFTER), torch.nan, dtype=dtype)
        self.rows = self._whole[ABOVE : ABOVE + rows, BEFORE : BEFORE + width]
        if numbers is not None:
            self.rows.copy_(numbers)

    def assert_untouched(self) -> None:
        around = self._whole.clone()
        around[ABOVE : len(around) - ABOVE, BEFORE : around.shape[1] - AFTER] = torch.nan
        assert around.isnan().all(), "wrote where no row is"
