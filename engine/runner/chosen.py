"""The tokens that a launched pass chooses, where it runs; and one copy of them to the host, awaited by event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from engine.runner.batch import Ints
from engine.runner.step_inputs import CHOSEN
from engine.runner.transfers import Events, Returning, ToHost
from engine.sampler import BadLogits, Sampler, SampleRow

if TYPE_CHECKING:
    from engine.runner.device_sampler import Decided, DeviceSampler

_BAD = -1  # no token: its logits are no numbers


class Chosen:
    """See `engine.runner.launch.Pending`."""

    def __init__(self, returning: Returning):
        self._returning = returning
        self._tokens: Ints | None = None

    def result(self) -> Ints:
        if self._tokens is None:
            self._tokens = self._returning.wait().copy()
        if bad := int((self._tokens == _BAD).sum()):
            raise BadLogits(
                f"the model gave logits that are no numbers in {bad} of {len(self._tokens)} rows; "
                "the weights may be damaged, or the precision too low: try float32"
            )
        return self._tokens


class Drawn:
    """The same, where the device's sampler decided."""

    def __init__(self, decided: Decided):
        self._decided = decided

    def result(self) -> Ints:
        return np.array([outcome.tokens[0] for outcome in self._decided.outcomes()], dtype=np.int64)


class Chooser:
    """Greedy rows take their likeliest token. Where any row is sampled `sampler` decides all: the host's, which the
    launch then waits for, unless there is one for the device."""

    def __init__(
        self,
        vocabulary: int,
        device: torch.device,
        sampler: DeviceSampler | None = None,
        events: Events | None = None,
    ):
        self._device_sampler, self._sampler = sampler, Sampler(vocabulary)
        self._values = torch.zeros(CHOSEN, device=device)
        self._best = torch.zeros(CHOSEN, dtype=torch.int64, device=device)
        self._told = torch.zeros(CHOSEN, dtype=torch.int64, device=device)
        self._finite = torch.zeros(CHOSEN, dtype=torch.bool, device=device)
        self._bad = torch.full((), _BAD, device=device)
        self._down = ToHost(torch.int64, CHOSEN, device, events)

    def choose(self, logits: torch.Tensor, rows: list[SampleRow], chosen: torch.Tensor) -> Chosen | Drawn:
        """logits (N, vocabulary); their tokens go to `chosen` too, which the next pass reads."""
        count = len(rows)
        greedy = all(row.greedy and row.penalties is None for row in rows)
        if not greedy and self._device_sampler is not None:
            decided = self._device_sampler.launch(logits, rows)
            chosen[:count].copy_(decided.tokens)
            return Drawn(decided)
        if greedy:
            self._likeliest(logits, count)
        else:
            tokens = [outcome.tokens[0] for outcome in self._sampler.sample(logits, rows)]
            self._best[:count] = torch.tensor(tokens, dtype=torch.int64).to(self._best.device)
            self._told[:count].copy_(self._best[:count])
        chosen[:count].copy_(self._best[:count])
        return Chosen(self._down.send(self._told[:count]))

    def _likeliest(self, logits: torch.Tensor, count: int) -> None:
        """The check that logits are numbers comes with the tokens: a maximum carries a NaN through."""
        if not count:
            return
        values, best, finite = self._values[:count], self._best[:count], self._finite[:count]
        torch.max(logits, dim=1, out=(values, best))
        torch.lt(values.abs_(), torch.inf, out=finite)  # no NaN is
        torch.where(finite, best, self._bad, out=self._told[:count])
