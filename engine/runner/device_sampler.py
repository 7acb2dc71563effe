"""The sampler of a device: a batch's rows decided where their logits are, told when the host comes to ask.

Decides as engine/sampler.py does, with its uniform numbers, so tokens and verdicts are the same. What a step's rows ask
for goes up in three small arrays; weights, acceptance and the ending tokens stay down (engine/kernels/sample.py and
verify.py), and one array of results comes back, copied while the host does something else and awaited by event. The
ending tokens are on the device besides, for a pass that is launched before the host knows them.

Penalties are taken there too (engine/penalties.py changes logits where they are). What asks for logits on the host
anyway is left to the host's sampler: a rule other than the exact one, and what the views look at.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels import sample, verify
from engine.kernels.sample import Kinds, SampleWorkspace
from engine.random_numbers import ACCEPT, RESAMPLE, SAMPLE, seeds_array, uniform
from engine.sampler import Decision, Outcome, Sampler, SampleRow, outcome, penalised, refuse
from engine.speculation.accept import ExactRule


@dataclass(frozen=True, slots=True)
class Asked:
    """A batch as the kernels take it, on the host: R rows with at most γ drafts, N rows of logits."""

    rows: NDArray[np.int64]  # (R, ROW + γ)
    uniforms: NDArray[np.float64]  # (R, 2γ + 1)
    params: NDArray[np.float64]  # (N, PARAMS)
    kinds: Kinds


def ask(rows: list[SampleRow]) -> Asked:
    """What `rows`, at least one, ask for."""
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
    kinds = Kinds(bool(hot), any(row.top_k > 0 for row in hot), any(row.top_p < 1 for row in hot))
    return Asked(table, np.concatenate([tests, ends], axis=1), np.repeat(params, lengths + 1, axis=0), kinds)


class Decided:
    """A batch that is decided on the device. `tokens` (R) int64 there: the ending token of each row."""

    def __init__(self, rows: list[SampleRow], asked: Asked, results: torch.Tensor, tokens: torch.Tensor):
        self.tokens = tokens
        self._rows, self._asked = [copy(row) for row in rows], asked  # the caller's change
        self._results, self._copied = _fetched(results)

    def outcomes(self) -> list[Outcome]:
        """Wait for them. Raises BadLogits."""
        if self._copied is not None:
            self._copied.synchronize()
        found = self._results.numpy()
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


def _fetched(results: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
    """A copy on the host that is under way, and what to wait for."""
    if results.device.type != "cuda":
        return results, None
    host = torch.empty(results.shape, dtype=results.dtype, pin_memory=True)
    host.copy_(results, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()
    return host, copied


class DeviceSampler(Sampler):
    """`kernels`: the Triton kernels, or else the references in torch. Its workspace grows to the largest batch that has
    come, 8 bytes a token of the vocabulary and row of logits; after that a step allocates small things only."""

    def __init__(self, vocabulary: int, device: torch.device, kernels: bool | None = None, block: int = sample.BLOCK):
        super().__init__(vocabulary)
        self.device = device
        self._block = block
        kernels = device.type == "cuda" if kernels is None else kernels
        self._weigh: Callable[..., None] = sample.row_weights if kernels else sample.row_weights_reference
        self._verify: Callable[..., None] = verify.verify if kernels else verify.verify_reference
        self._work: SampleWorkspace | None = None

    def sample(self, logits: torch.Tensor, rows: list[SampleRow], rule: ExactRule | None = None) -> list[Outcome]:
        if rule is not None or not rows:
            return super().sample(logits, rows, rule)
        return self.launch(logits, rows).outcomes()

    def launch(self, logits: torch.Tensor, rows: list[SampleRow]) -> Decided:
        """Decide `rows`, at least one, as `Sampler.sample` would; nothing is waited for. They may change afterwards,
        and so may what is in `logits` once later work on the device is asked for."""
        wanted = sum(len(row.drafts) + 1 for row in rows)
        if logits.shape != (wanted, self.vocabulary):
            raise ValueError(f"logits {tuple(logits.shape)} for {wanted} rows of {self.vocabulary}")
        asked = ask(rows)
        q_rows, q_totals = self._drawn(rows)
        work = self._workspace(wanted)
        up = [self._up(array) for array in (asked.rows, asked.uniforms, asked.params)]
        gamma = asked.rows.shape[1] - verify.ROW
        results = torch.zeros((len(rows), verify.RESULT + 2 * gamma), dtype=torch.float64, device=self.device)
        left = torch.zeros((len(rows), work.blocks), dtype=torch.float64, device=self.device)
        tokens = torch.zeros(len(rows), dtype=torch.int64, device=self.device)
        self._weigh(penalised(logits, rows), up[2], work, asked.kinds)
        self._verify(*up, work, q_rows, q_totals, left, results, tokens, asked.kinds)
        return Decided(rows, asked, results, tokens)

    def _drawn(self, rows: list[SampleRow]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """All rows' draft distributions, one below the other, and their sums."""
        found = [row.q_rows.to(self.device) for row in rows if row.q_rows is not None and len(row.q_rows)]
        if not found:
            return None, None
        q_rows = torch.cat(found)
        return q_rows, q_rows.sum(dim=1, dtype=torch.float64)

    def _workspace(self, places: int) -> SampleWorkspace:
        if self._work is None or len(self._work.weights) < places:
            self._work = sample.sample_workspace(places, self.vocabulary, self.device, self._block)
        return self._work

    def _up(self, array: NDArray) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self.device.type != "cuda":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)
