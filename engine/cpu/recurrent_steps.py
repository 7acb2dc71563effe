"""A draft head over matrices of 4 bits, run by the compiled program in `recurrent`. Knows nothing of sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from engine.cpu import product
from engine.cpu.compiled import compile_for
from engine.cpu.packed_matrix import GROUP, PackedMatrix, aligned, quantise_small
from engine.cpu.recurrent import DRAFT, HEAD, PHASES, draft_steps
from engine.cpu.team import Team

if TYPE_CHECKING:
    from engine.speculation.head_model import HeadWeights

Ints = NDArray[np.int64]
MOST = 16  # steps of one call
_ROWS_GROW = 16


class PackedSteps:
    """See engine.speculation.head_model.Steps. The head's matrices and its rows of the target's head are rounded to 4
    bits; the embedding is the target's own."""

    def __init__(self, weights: HeadWeights, embedding: PackedMatrix, head_rows: NDArray[np.float32], threads: int):
        self._width, self._inner = weights.down.shape
        self._kept = len(weights.vocabulary)
        norms = ("state_norm", "token_norm", "mlp_norm", "norm")
        self._norms = {name: np.ascontiguousarray(getattr(weights, name).numpy(), np.float32) for name in norms}
        self._vocabulary = np.ascontiguousarray(weights.vocabulary.numpy(), np.int64)
        self._matrices = {name: quantise_small(getattr(weights, name).numpy()) for name in ("join", "gate_up", "down")}
        self._matrices["head"] = quantise_small(head_rows)
        self._embedding = embedding
        self.bytes = sum(matrix.bytes for matrix in self._matrices.values())
        self._starts: list[NDArray[np.float32]] = []
        self._head = self._describe(weights.epsilon)
        self._draft = np.zeros(1, DRAFT)
        self._draft["threads"] = threads
        self._arrays: dict[str, NDArray] = {}
        self._rows = 0
        compile_for(draft_steps, 0, 0, 0, self._head, self._draft)
        self._team = Team(threads, PHASES * MOST)

    def greedy(self, states: NDArray[np.float32], tokens: Ints, steps: int) -> Ints:
        self.start(states)
        return self._run(tokens, steps)

    def start(self, states: NDArray[np.float32]) -> None:
        self._make_room(len(states))
        self._arrays["state"][: len(states)] = states

    def logits(self, tokens: Ints) -> torch.Tensor:
        self._run(tokens, 1)
        padded = self._matrices["head"].padded_rows
        rows = self._arrays["logits"].reshape(-1)[: len(tokens) * padded].reshape(len(tokens), padded)
        return torch.from_numpy(rows[:, : self._kept])

    def _run(self, tokens: Ints, steps: int) -> Ints:
        rows = len(tokens)
        chain = np.zeros((steps + 1, rows), np.int64)
        chain[0] = tokens
        self._draft["rows"], self._draft["steps"], self._draft["tokens"] = rows, steps, chain.ctypes.data
        # a thread that is late may still look at its step's records
        self._team.run(draft_steps, self._team.lines.ctypes.data, self._head, self._draft.copy())
        return chain[1:]

    def _make_room(self, rows: int) -> None:
        if rows <= self._rows:
            return
        self._rows = rows + _ROWS_GROW
        widest = max(2 * self._width, self._inner)
        shapes: dict[str, tuple[tuple[int, ...], type]] = {
            "state": ((self._rows, self._width), np.float32),
            "embedded": ((self._rows, self._width), np.float32),
            "codes": ((self._rows, widest), np.int8),
            "words": ((self._rows, widest // GROUP * product.WORDS.itemsize), np.uint8),
            "gate_up": ((self._rows, 2 * self._inner), np.float32),
            "logits": ((self._rows, self._matrices["head"].padded_rows), np.float32),
        }
        for name, (shape, kind) in shapes.items():
            self._arrays[name] = aligned(shape, kind)
            self._draft[name] = self._arrays[name].ctypes.data

    def _describe(self, epsilon: float) -> NDArray:
        head = np.zeros(1, HEAD)
        head["width"], head["inner"], head["kept"], head["epsilon"] = self._width, self._inner, self._kept, epsilon
        for name, norm in self._norms.items():
            head[name] = norm.ctypes.data
        head["vocabulary"] = self._vocabulary.ctypes.data
        head["embedding"] = product.describe(self._embedding, None)
        for name, matrix in self._matrices.items():
            start = np.zeros(matrix.padded_rows, np.float32)
            self._starts.append(start)
            head[name] = product.describe(matrix, start)
        return head
