"""A draft head's steps as one compiled program on a team of threads, phase by phase.

What it computes is in `engine.speculation.head_model`, how in `forward` and `team`. Between two drafted tokens stands
no Python where drafts are greedy: the likeliest token of each row is found here and goes on into the next step.

Everything comes by address, in the records below. A row's result depends on that row alone.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from engine.cpu.embedding import embed
from engine.cpu.packed_matrix import GROUP
from engine.cpu.product import MATRIX, WORDS, product
from engine.cpu.quantise import normalise_row, swiglu_row
from engine.cpu.team import LINE, claim, next_chunk, over
from engine.cpu.vector import Emitter, f32, number_at, set_number

# B rows, D width, F inner, K kept tokens.

HEAD = np.dtype(
    [(name, np.int64) for name in ("width", "inner", "kept")]
    + [("epsilon", np.float32), ("unused", np.int32)]
    + [(name, np.int64) for name in ("state_norm", "token_norm", "mlp_norm", "norm", "vocabulary")]
    + [(name, MATRIX) for name in ("embedding", "join", "gate_up", "down", "head")]
)
DRAFT = np.dtype(
    [
        (name, np.int64)
        for name in (
            "rows",  # B
            "steps",  # drafted tokens, of every row
            "threads",
            "state",  # (B, D) float32, in and out
            "tokens",  # (steps + 1, B) int64: those given, then those drafted
            "embedded",  # (B, D) float32
            "codes",  # (B, widest) int8
            "words",  # (B, widest / 32) WORDS
            "gate_up",  # (B, 2F) float32
            "logits",  # (B, K padded) float32, of the last step
        )
    ]
)
PHASES = 9  # of a step
_WORDS = WORDS.itemsize


@intrinsic
def _number(context, address):
    def generate(context, builder, signature, arguments):
        return Emitter(builder).load(arguments[0], f32, 4)

    return types.float32(types.int64), generate


@njit(nogil=True)
def _multiply(line, number, draft, matrix, start, start_stride, out, out_stride):
    each = max(2, matrix.tiles // (draft.threads * 4) // 2 * 2)
    chunks = (matrix.tiles + each - 1) // each
    chunk = claim(line, number, chunks)
    while chunk >= 0:
        product(
            chunk * each, min(matrix.tiles, (chunk + 1) * each), draft.rows, matrix,
            draft.codes, draft.words, start, start_stride, out, out_stride,
        )  # fmt: skip
        chunk = next_chunk(line, number, chunks)
    return over(line, number, chunks)


@njit(nogil=True)
def _enter(line, number, head, draft, tokens):
    """State and token, each normalised, side by side."""
    width, both = head.width, 2 * head.width
    chunk = claim(line, number, draft.rows)
    while chunk >= 0:
        codes, words = draft.codes + chunk * both, draft.words + chunk * both // GROUP * _WORDS
        embedded = draft.embedded + chunk * width * 4
        embed(head.embedding, tokens + 8 * chunk, embedded)
        state = draft.state + chunk * width * 4
        normalise_row(0, width, state, head.state_norm, head.epsilon, codes, words)
        after = words + width // GROUP * _WORDS
        normalise_row(0, width, embedded, head.token_norm, head.epsilon, codes + width, after)
        chunk = next_chunk(line, number, draft.rows)
    return over(line, number, draft.rows)


@njit(nogil=True)
def _normalise(line, number, head, draft, weight):
    width = head.width
    chunk = claim(line, number, draft.rows)
    while chunk >= 0:
        at = draft.words + chunk * width // GROUP * _WORDS
        normalise_row(0, width, draft.state + chunk * width * 4, weight, head.epsilon, draft.codes + chunk * width, at)
        chunk = next_chunk(line, number, draft.rows)
    return over(line, number, draft.rows)


@njit(nogil=True)
def _swiglu(line, number, head, draft):
    inner = head.inner
    chunk = claim(line, number, draft.rows)
    while chunk >= 0:
        gate, at = draft.gate_up + chunk * inner * 8, draft.words + chunk * inner // GROUP * _WORDS
        swiglu_row(0, inner, gate, gate + inner * 4, draft.codes + chunk * inner, at)
        chunk = next_chunk(line, number, draft.rows)
    return over(line, number, draft.rows)


@njit(nogil=True)
def _choose(line, number, head, draft, stride, tokens):
    """Each row's likeliest kept token, the first of equals; NaN is never larger."""
    chunk = claim(line, number, draft.rows)
    while chunk >= 0:
        at, best, place = draft.logits + chunk * stride, _number(draft.logits + chunk * stride), 0
        for i in range(1, head.kept):
            value = _number(at + 4 * i)
            if value > best:
                best, place = value, i
        set_number(tokens + 8 * chunk, number_at(head.vocabulary + 8 * place))
        chunk = next_chunk(line, number, draft.rows)
    return over(line, number, draft.rows)


@njit(nogil=True)
def draft_steps(rank, number, lines, heads, drafts):
    """What every thread of the team runs. `lines`: address of the counters; heads (1) HEAD, drafts (1) DRAFT."""
    head, draft = heads[0], drafts[0]
    width, gates, wide = head.width * 4, head.inner * 8, head.head.tiles * 64
    nothing = np.int64(0)
    line = lines
    for step in range(draft.steps):
        tokens = draft.tokens + step * draft.rows * 8
        if not _enter(line, number, head, draft, tokens):
            return
        line += LINE
        if not _multiply(line, number, draft, head.join, head.join.start, nothing, draft.state, width):
            return
        line += LINE
        if not _normalise(line, number, head, draft, head.mlp_norm):
            return
        line += LINE
        if not _multiply(line, number, draft, head.gate_up, head.gate_up.start, nothing, draft.gate_up, gates):
            return
        line += LINE
        if not _swiglu(line, number, head, draft):
            return
        line += LINE
        if not _multiply(line, number, draft, head.down, draft.state, width, draft.state, width):
            return
        line += LINE
        if not _normalise(line, number, head, draft, head.norm):
            return
        line += LINE
        if not _multiply(line, number, draft, head.head, head.head.start, nothing, draft.logits, wide):
            return
        line += LINE
        if not _choose(line, number, head, draft, wide, tokens + draft.rows * 8):
            return
        line += LINE
