"""A packed batch on the device: all of a step's integers in one buffer, at addresses that stay.

One copy from pinned memory brings them there; a second, on the device, lays the block tables out at the width that
graphs know them by, which is that of the longest context there can be, while only what this step needs is sent.
Tokens that the pass before chose are on the device already: `known` holds those, then the tokens sent, and `pick` says
which of them each token is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.runner.batch import PackedBatch

CHOSEN = 16384  # tokens that one pass can choose, at most: a power of two over max_batch · (γ + 1)
_ALIGNED = 4  # int32s; kernels read from addresses of 16 bytes on faster
_STAGES = 2  # a step is staged while the one before is still being copied


@dataclass(frozen=True)
class StepInputs:
    """T tokens in R rows, padded. All int32, views of one buffer but for `tables`."""

    known: torch.Tensor  # (CHOSEN + T)
    pick: torch.Tensor  # (T) indices into `known`
    positions: torch.Tensor  # (T)
    slots: torch.Tensor  # (T) −1: not written
    logit_index: torch.Tensor  # (N) indices into T
    row_starts: torch.Tensor  # (R + 1)
    contexts: torch.Tensor  # (R)
    tables: torch.Tensor  # (R, width)


class Staging:
    """`ints` beyond `CHOSEN`, and `rows` tables of `width`, on the device."""

    def __init__(self, ints: int, rows: int, width: int, device: torch.device):
        self.ints, self.rows, self.width, self.device = ints, rows, width, device
        self._buffer = torch.zeros(CHOSEN + ints, dtype=torch.int32, device=device)
        self._tables = torch.zeros((rows, width), dtype=torch.int32, device=device)
        pinned = device.type == "cuda"
        self.staged = [torch.zeros(ints, dtype=torch.int32, pin_memory=pinned) for _ in range(_STAGES)]
        self._arrays = [tensor.numpy() for tensor in self.staged]
        self._copied = [torch.cuda.Event() if pinned else None for _ in range(_STAGES)]
        self._turn = 0

    @property
    def chosen(self) -> torch.Tensor:
        """(CHOSEN) the tokens that the last pass chose."""
        return self._buffer[:CHOSEN]

    @property
    def bytes(self) -> int:
        return self._buffer.nbytes + self._tables.nbytes

    def views(self, tokens: int, rows: int, wanted: int) -> StepInputs:
        """Of a pass over so many, padded."""
        places, _ = layout(tokens, rows, wanted)
        parts = [self._buffer[CHOSEN + start : CHOSEN + start + count] for start, count in places]
        _, pick, positions, slots, logit_index, row_starts, contexts = parts
        known = self._buffer[: CHOSEN + tokens]
        return StepInputs(known, pick, positions, slots, logit_index, row_starts, contexts, self._tables[:rows])

    def put(self, batch: PackedBatch | None, tokens: int, rows: int, wanted: int) -> None:
        """Send `batch`, padded to so many; None: nothing but padding. It doesn't wait for the copy."""
        self._turn = (self._turn + 1) % _STAGES
        copied, array = self._copied[self._turn], self._arrays[self._turn]
        if copied is not None:
            copied.synchronize()  # of two steps ago; at once
        places, end = layout(tokens, rows, wanted)
        height, width = batch.tables.shape if batch is not None else (0, 0)
        array[:end] = 0
        ids, pick, positions, slots, logit_index, row_starts, contexts = (array[s : s + n] for s, n in places)
        pick[:] = np.arange(CHOSEN, CHOSEN + tokens)
        slots[:] = -1
        if batch is not None:
            count = len(batch.tokens)
            ids[:count], positions[:count], slots[:count] = batch.tokens, batch.positions, batch.slots
            if batch.sources is not None:
                pick[:count] = np.where(batch.sources < 0, pick[:count], batch.sources)
                ids[:count][batch.sources >= 0] = 0  # unknown here
            logit_index[: len(batch.logit_index)] = batch.logit_index
            row_starts[: height + 1], row_starts[height + 1 :] = batch.row_starts, count
            contexts[:height] = batch.contexts
            array[end : end + height * width] = batch.tables.reshape(-1)
        total = end + height * width
        here = self._buffer[CHOSEN:]
        here[:total].copy_(self.staged[self._turn][:total], non_blocking=True)
        if copied is not None:
            copied.record()
        if height * width:
            self._tables[:height, :width].copy_(here[end:total].view(height, width))


def layout(tokens: int, rows: int, wanted: int) -> tuple[list[tuple[int, int]], int]:
    """Where each part begins and its length: tokens, pick, positions, slots, logit_index, row_starts, contexts; and
    where the tables begin."""
    places, start = [], 0
    for count in (tokens, tokens, tokens, tokens, wanted, rows + 1, rows):
        places.append((start, count))
        start += -(-count // _ALIGNED) * _ALIGNED
    return places, start


def ints_of(batch: PackedBatch) -> int:
    """What it takes, unpadded."""
    return layout(len(batch.tokens), len(batch.contexts), len(batch.logit_index))[1] + batch.tables.size
