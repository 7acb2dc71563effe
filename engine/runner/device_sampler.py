"""The sampler of a device: a batch's rows decided where their logits are, told when the host comes to ask.

Decides as engine/sampler.py does, with its uniform numbers, so tokens and verdicts are the same. What a step's rows ask
for goes up in three small arrays; weights, acceptance and the ending tokens stay down (engine/kernels/sample.py and
verify.py), and one array of results comes back, copied while the host does something else and awaited by event. The
ending tokens are on the device besides, for a pass that is launched before the host knows them.

Penalties are taken there too, on a copy, so that who looks at the logits afterwards sees the model's own. What asks for
logits on the host anyway is left to the host's sampler: a rule other than the exact one. Beams and what a view looks at
never come here. Rows are decided in groups, so that memory has a bound whatever the batch is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels import sample, verify
from engine.kernels.sample import Kinds
from engine.penalties import held_at
from engine.random_numbers import ACCEPT, RESAMPLE, SAMPLE, seeds_array, uniform
from engine.runner.sampler_memory import SamplerMemory
from engine.runner.transfers import Events, Returning, ToDevice, ToHost
from engine.sampler import Decision, Outcome, Sampler, SampleRow, outcome, penalised_places, refuse
from engine.speculation.accept import ExactRule

# Of the weights of a group's rows, 8 bytes a token of the vocabulary: 220 rows of 152,064.
MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """Rows decided together: which of a batch's rows, and which rows of its logits."""

    rows: slice
    places: slice


@dataclass(frozen=True, slots=True)
class Asked:
    """A batch as the kernels take it, on the host: R rows with at most γ drafts, N rows of logits."""

    rows: NDArray[np.int64]  # (R, ROW + γ)
    uniforms: NDArray[np.float64]  # (R, 2γ + 1)
    params: NDArray[np.float64]  # (N, PARAMS)
    kinds: Kinds


def ask(rows: list[SampleRow], parts: list[Part] | None = None) -> Asked:
    """What `rows`, at least one, ask for. First places count from the beginning of their part; None: all are one."""
    lengths = np.array([len(row.drafts) for row in rows])
    gamma = int(lengths.max())
    each = np.arange(gamma + 1)
    table = np.zeros((len(rows), verify.ROW + gamma), dtype=np.int64)
    table[:, 0] = np.cumsum(lengths + 1) - (lengths + 1)
    table[:, 1] = lengths
    drawn = np.array([0 if row.q_rows is None else len(row.q_rows) for row in rows])
    table[:, 2] = np.where(drawn > 0, np.cumsum(drawn) - drawn, -1)
    table[:, verify.ROW :][each[:-1] < lengths[:, None]] = [token for row in rows for token in row.drafts]
    seeds = seeds_array([row.seed for row in rows])[:, None]
    positions = np.array([row.position for row in rows])[:, None] + each
    tests = uniform(seeds, positions[:, :-1], ACCEPT)
    ends = uniform(seeds, positions, np.where(each < lengths[:, None], RESAMPLE, SAMPLE))
    temperature = np.array([row.temperature for row in rows])
    params = np.zeros((len(rows), sample.PARAMS))
    params[:, 0] = np.where([row.greedy for row in rows], 0.0, temperature)
    params[:, 1] = [math.log(row.min_p) if row.min_p > 0 else -math.inf for row in rows]
    params[:, 2] = [max(row.top_k, 0) for row in rows]
    params[:, 3] = [row.top_p for row in rows]
    hot = [row for row in rows if not row.greedy]
    for part in parts or ():
        table[part.rows, 0] -= part.places.start
        here = table[part.rows, 2]
        if (drawn_here := here >= 0).any():
            here[drawn_here] -= here[drawn_here][0]
    kinds = Kinds(bool(hot), any(row.top_k > 0 for row in hot), any(row.top_p < 1 for row in hot))
    return Asked(table, np.concatenate([tests, ends], axis=1), np.repeat(params, lengths + 1, axis=0), kinds)


def parts_of(rows: list[SampleRow], most: int) -> list[Part]:
    """`rows` in order, `most` rows of logits at a time, or one row's."""
    found: list[Part] = []
    first = place = 0  # of the part that is being filled
    end = 0
    for i, row in enumerate(rows):
        size = len(row.drafts) + 1
        if i > first and end + size - place > most:
            found.append(Part(slice(first, i), slice(place, end)))
            first, place = i, end
        end += size
    return [*found, Part(slice(first, len(rows)), slice(place, end))]


class Decided:
    """A batch that is decided on the device. `tokens` (R) int64 there: the ending token of each row, until the next
    batch."""

    def __init__(self, rows: list[SampleRow], asked: Asked, results: Returning, tokens: torch.Tensor):
        self.tokens = tokens
        self._rows, self._asked = [copy(row) for row in rows], asked  # the caller's change
        self._results = results
        self._outcomes: list[Outcome] | None = None

    def outcomes(self) -> list[Outcome]:
        """Wait for them. Raises BadLogits."""
        if self._outcomes is None:
            self._outcomes = self._told(self._results.wait())
        return self._outcomes

    def _told(self, found: NDArray[np.float64]) -> list[Outcome]:
        if len(bad := np.flatnonzero(found[:, verify.BAD])):
            refuse(float(found[bad[0], verify.BAD_VALUE]), int(found[:, verify.BAD].sum()), len(self._asked.params))
        gamma = self._asked.rows.shape[1] - verify.ROW
        tests = self._asked.uniforms[:, :gamma].tolist()
        ends = self._asked.uniforms[:, gamma:].tolist()
        told = []
        for row, numbers, draws, last_draws in zip(self._rows, found.tolist(), tests, ends, strict=True):
            count, accepted = len(row.drafts), int(numbers[verify.ACCEPTED])
            p, q = numbers[verify.RESULT :][:count], numbers[verify.RESULT + gamma :][:count]
            nan = math.nan
            told.append(
                outcome(
                    row,
                    Decision(
                        accepted=accepted,
                        last=int(numbers[verify.LAST]),
                        last_p=numbers[verify.LAST_P],
                        last_q=numbers[verify.LAST_Q],
                        last_draw=nan if row.greedy else last_draws[accepted],
                        p=p,
                        q=q,
                        draws=[nan] * count if row.greedy else draws[:count],
                    ),
                )
            )
        return told


class DeviceSampler(Sampler):
    """`kernels`: the Triton kernels, or else the references in torch. `events`: see `ToDevice`. Its memory grows to the
    largest batch that has come, up to `MOST_BYTES` for the weights; a step like one before allocates nothing."""

    def __init__(
        self,
        vocabulary: int,
        device: torch.device,
        kernels: bool | None = None,
        block: int = sample.BLOCK,
        events: Events | None = None,
        most_bytes: int = MOST_BYTES,
    ):
        super().__init__(vocabulary)
        self.device = device
        kernels = device.type == "cuda" if kernels is None else kernels
        self._weigh: Callable[..., None] = sample.row_weights if kernels else sample.row_weights_reference
        self._verify: Callable[..., None] = verify.verify if kernels else verify.verify_reference
        self._most = max(1, most_bytes // (8 * vocabulary))
        self._block = block
        self.give_back()
        self._up, self._down = ToDevice(device, events), ToHost(torch.float64, 1 << 10, device, events)

    @property
    def bytes(self) -> int:
        """On the device."""
        return self._memory.bytes + self._up.bytes

    def sample(self, logits: torch.Tensor, rows: list[SampleRow], rule: ExactRule | None = None) -> list[Outcome]:
        if rule is not None or not rows:
            return super().sample(logits, rows, rule)
        return self.launch(logits, rows).outcomes()

    @torch.inference_mode()
    def launch(self, logits: torch.Tensor, rows: list[SampleRow]) -> Decided:
        """Decide `rows`, at least one, as `Sampler.sample` would; nothing is waited for. They may change afterwards,
        and so may what is in `logits` once later work on the device is asked for."""
        wanted = sum(len(row.drafts) + 1 for row in rows)
        if logits.shape != (wanted, self.vocabulary):
            raise ValueError(f"logits {tuple(logits.shape)} for {wanted} rows of {self.vocabulary}")
        parts = parts_of(rows, self._most)
        asked = ask(rows, parts)
        held = [self._held(rows[part.rows], part.places.stop - part.places.start) for part in parts]
        sent = self._up.send([asked.rows, asked.uniforms, asked.params, *(array for each in held for array in each)])
        (table, uniforms, params), penalties = sent[:3], iter(sent[3:])
        gamma = asked.rows.shape[1] - verify.ROW
        results, tokens = self._memory.results(len(rows), gamma), self._memory.tokens(len(rows))
        for part, own in zip(parts, held, strict=True):
            here = logits[part.places]
            if own:
                here = self._memory.penalised(here, *(next(penalties) for _ in own))
            work = self._memory.workspace(len(here), self._most)
            left = self._memory.left(part.rows.stop - part.rows.start)
            drawn = [row.q_rows for row in rows[part.rows] if row.q_rows is not None and len(row.q_rows)]
            q_rows, q_totals = self._memory.drawn(drawn) if drawn else (None, None)
            self._weigh(here, params[part.places], work, asked.kinds)
            self._verify(
                table[part.rows], uniforms[part.rows], params[part.places], work, q_rows, q_totals, left,
                results[part.rows], tokens[part.rows], asked.kinds,
            )  # fmt: skip
        return Decided(rows, asked, self._down.send(results), tokens)

    def _held(self, rows: list[SampleRow], count: int) -> tuple[NDArray, ...]:
        """What takes `rows`' penalties from their `count` rows of logits; nothing where nobody has any."""
        places = penalised_places(rows, count)
        if not places:
            return ()
        at, counted, by = held_at(places, self.vocabulary)
        return at, counted.astype(np.float64), by

    def give_back(self) -> None:
        """Let go of the memory; what comes next takes what it needs."""
        self._memory = SamplerMemory(self.vocabulary, self.device, self._block)

    def shrink(self) -> None:
        """Decide half as many rows at a time."""
        self._most = max(1, self._most // 2)

    def warm_up(self, logits: torch.Tensor, gammas: Iterable[int]) -> None:
        """Take the memory of a batch with logits (N, vocabulary), any numbers, and have every kernel compiled that
        greedy and sampled rows take, with drafts of `gammas` tokens and without."""
        for gamma in sorted({0, *gammas}):
            count = len(logits) // (gamma + 1)
            for row in (SampleRow(), SampleRow(temperature=1.0, top_k=2, top_p=0.5)):
                rows = [replace(row, drafts=[0] * gamma) for _ in range(count)]
                if rows:
                    self.launch(logits[: count * (gamma + 1)], rows)
