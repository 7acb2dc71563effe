"""What the device's sampler works in: buffers that grow to the largest batch that has come, and stay."""

from __future__ import annotations

import torch

from engine.kernels import sample, verify
from engine.kernels.sample import SampleWorkspace

_LARGE = 1 << 20


class SamplerMemory:
    """For groups of rows with up to so many places, rows of logits, at a time. All on the device."""

    def __init__(self, vocabulary: int, device: torch.device, block: int):
        self.vocabulary, self.device, self.block = vocabulary, device, block
        self._work: SampleWorkspace | None = None
        self._flat: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    @property
    def bytes(self) -> int:
        work = [] if self._work is None else [t for t in vars(self._work).values() if isinstance(t, torch.Tensor)]
        return sum(tensor.nbytes for tensor in (*work, *self._flat.values()))

    def workspace(self, places: int, most: int) -> SampleWorkspace:
        """`most`: no more is ever asked for, but for one row alone."""
        if self._work is None or len(self._work.weights) < places:
            self._work = None  # its memory first
            size = min(_rounded(places), max(places, most))
            self._work = sample.sample_workspace(size, self.vocabulary, self.device, self.block)
        return self._work

    def results(self, rows: int, gamma: int) -> torch.Tensor:
        return self._numbers("results", (rows, verify.RESULT + 2 * gamma), torch.float64)

    def tokens(self, rows: int) -> torch.Tensor:
        return self._numbers("tokens", (rows,), torch.int64)

    def left(self, rows: int) -> torch.Tensor:
        return self._numbers("left", (rows, -(-self.vocabulary // self.block)), torch.float64)

    def drawn(self, rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Draft distributions (γ, vocabulary) of some rows one below the other, in the widest of their types, and
        their sums."""
        kept = rows[0].dtype
        for each in rows[1:]:
            kept = torch.promote_types(kept, each.dtype)
        count = sum(map(len, rows))
        q = self._numbers("q", (count, self.vocabulary), kept)
        first = 0
        for each in rows:
            q[first : first + len(each)].copy_(each, non_blocking=True)
            first += len(each)
        totals = self._numbers("totals", (count,), torch.float64)
        return q, torch.sum(q, dim=1, dtype=torch.float64, out=totals)

    def penalised(
        self, logits: torch.Tensor, at: torch.Tensor, counted: torch.Tensor, by: torch.Tensor
    ) -> torch.Tensor:
        """As `engine.penalties.penalise`, of logits (N, vocabulary) float32: another (N, vocabulary). at, counted (n)
        as `held_at` gives them, counted as float64; by (3, n)."""
        out = self._numbers("penalised", tuple(logits.shape), torch.float32)
        out.copy_(logits)
        flat, count, (repetition, presence, frequency) = out.view(-1), len(at), by
        narrow = self._numbers("held", (count,), torch.float32)
        x, other = (self._numbers(name, (count,), torch.float64) for name in ("x", "other"))
        which = self._numbers("which", (count,), torch.bool)
        torch.index_select(flat, 0, at, out=narrow)
        x.copy_(narrow)
        torch.gt(x, 0, out=which)
        torch.div(x, repetition, out=other)
        torch.mul(x, repetition, out=x)
        torch.where(which, other, x, out=x)
        torch.gt(counted, 0, out=which)
        x.sub_(torch.mul(presence, which, out=other))
        x.sub_(torch.mul(frequency, counted, out=other))
        narrow.copy_(x)
        flat.scatter_(0, at, narrow)
        return out

    def _numbers(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        count = 1
        for size in shape:
            count *= size
        held = self._flat.get((name, dtype))
        if held is None or len(held) < count:
            self._flat.pop((name, dtype), None)
            del held
            held = self._flat[name, dtype] = torch.zeros(_rounded(count), dtype=dtype, device=self.device)
        return held[:count].view(shape)


def _rounded(count: int) -> int:
    """Up, so that what grows little by little rarely needs more; of large things by little."""
    if count > _LARGE:
        return -(-count // _LARGE) * _LARGE
    return 1 << (max(count, 1) - 1).bit_length()
