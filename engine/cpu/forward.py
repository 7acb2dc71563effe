"""The forward pass of a Llama-family decoder as one compiled program, run by all threads of a team at once.

A layer is ten phases: norm, qkv, rotation and KV store, attention, its quantisation, output, norm, gate and up, SwiGLU,
down. Each reads what the one before wrote whole, so that between them stands nothing but a counter. No Python
runs in a step, and nothing is allocated. A row's result depends on that row alone: a batch changes no bit of it.

Everything comes by address, in the records below. Refuses to know of sequences and of where weights come from.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from engine.cpu.attention import attend
from engine.cpu.embedding import embed
from engine.cpu.packed_matrix import GROUP
from engine.cpu.product import MATRIX, WORDS, product
from engine.cpu.quantise import normalise_row, quantise_row, swiglu_row
from engine.cpu.rope import rotate_and_store
from engine.cpu.team import LINE, claim, next_chunk, over, ticks
from engine.cpu.vector import add_row, number_at, set_number

# T tokens, N that want logits, D hidden, H heads, K key/value heads, d head width, F intermediate, V vocabulary.

MODEL = np.dtype(
    [(name, np.int64) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "block_size")]
    + [("epsilon", np.float32), ("unused", np.int32)]
    + [("norm", np.int64), ("embedding", MATRIX), ("head", MATRIX)]
)
LAYER = np.dtype(
    [(name, np.int64) for name in ("attention_norm", "qk_norm", "mlp_norm", "output_bias", "down_bias")]
    + [(name, MATRIX) for name in ("qkv", "output", "gate_up", "down")]
    + [("keys", np.int64), ("values", np.int64), ("blocks", np.int64)]  # blocks: from a head's first to the next one's
)
# One step's: the packed batch, the cut of its rows into runs of queries, and the places that phases write to.
STEP = np.dtype(
    [
        (name, np.int64)
        for name in (
            "tokens",  # (T) int64, as the three below
            "positions",
            "slots",
            "wanted",  # (N) which of T
            "rotation",  # (T, 2, d / 2) float32
            "tables",  # (R, table_width) int64
            "table_width",
            "runs",  # (runs, 3) int64: first token, tokens, row of the table
            "count",  # T
            "wanted_count",  # N
            "run_count",
            "x",  # (T, D) float32: the residual stream
            "codes",  # (T, widest) int8, or float32 if plain
            "words",  # (T, widest / 32) WORDS
            "qkv",  # (T, H + 2K, d) float32
            "attention",  # (T, H · d) float32
            "gate_up",  # (T, 2F) float32
            "logits",  # (N, V padded) float32
            "scratch",  # (threads, scratch_bytes)
            "scratch_bytes",
            "times",  # (OPS) int64 ticks, added to by the caller's thread
            "threads",
            "plain",  # 1: rows stay float32 for weights of 16 bits; else 0
        )
    ]
)
OPS = ("embed", "norm", "qkv", "rope", "attention", "quantise", "output", "gate_up", "swiglu", "down", "head")
_EMBED, _NORM, _QKV, _ROPE, _ATTENTION, _QUANTISE, _OUTPUT, _GATE_UP, _SWIGLU, _DOWN, _HEAD = range(len(OPS))

_WORDS = WORDS.itemsize
# Rows whose int8 and words a product sweeps again and again: 192 rows of 1,536 are 440 KiB, inside a core's own cache.
_PANEL = 192
_ROW_CHUNKS = 16  # chunks of a phase that works row by row, at most
_FEW_ROWS = 8  # up to here a phase is so short that claiming costs more than an uneven end


def phases(layers: int) -> int:
    return 3 + 10 * layers


@njit(nogil=True)
def _per_chunk(rows):
    return 1 + rows // _ROW_CHUNKS


@njit(nogil=True)
def _cut(total, each):
    return (total + each - 1) // each


@njit(nogil=True)
def _codes(step, row, columns):
    """Where a row lies that a product will read."""
    return step.codes + row * columns * (4 if step.plain else 1)


# --- phases: each returns whether the step is still on ---


@njit(nogil=True)
def _embed(line, number, model, step):
    each = _per_chunk(step.count)
    chunks = _cut(step.count, each)
    chunk = claim(line, number, chunks)
    while chunk >= 0:
        last = min(step.count, (chunk + 1) * each)
        for row in range(chunk * each, last):
            embed(model.embedding, step.tokens + 8 * row, step.x + row * model.hidden * 4)
        chunk = next_chunk(line, number, chunks)
    return over(line, number, chunks)


@njit(nogil=True)
def _normalise(line, number, step, rows, columns, x, weight, epsilon):
    each = _per_chunk(rows)
    chunks = _cut(rows, each)
    chunk = claim(line, number, chunks)
    while chunk >= 0:
        for row in range(chunk * each, min(rows, (chunk + 1) * each)):
            at = step.words + row * columns // GROUP * _WORDS
            normalise_row(step.plain, columns, x + row * columns * 4, weight, epsilon, _codes(step, row, columns), at)
        chunk = next_chunk(line, number, chunks)
    return over(line, number, chunks)


@njit(nogil=True)
def _multiply(line, number, step, rows, matrix, start, start_stride, out, out_stride):
    """The quantised rows by a matrix; `start` as `product` has it."""
    pieces = step.threads * (4 if rows <= _FEW_ROWS else 16)
    each = max(2, matrix.tiles // pieces // 2 * 2)
    chunks = _cut(matrix.tiles, each)
    columns = matrix.groups * GROUP
    chunk = claim(line, number, chunks)
    while chunk >= 0:
        last = min(matrix.tiles, (chunk + 1) * each)
        for row in range(0, rows, _PANEL):
            product(
                chunk * each, last, min(_PANEL, rows - row), matrix,
                _codes(step, row, columns), step.words + row * matrix.groups * _WORDS,
                start + row * start_stride, start_stride, out + row * out_stride, out_stride,
            )  # fmt: skip
        chunk = next_chunk(line, number, chunks)
    return over(line, number, chunks)


@njit(nogil=True)
def _rotate(line, number, model, layer, step):
    each = _per_chunk(step.count)
    chunks = _cut(step.count, each)
    chunk = claim(line, number, chunks)
    while chunk >= 0:
        rotate_and_store(
            chunk * each, min(step.count, (chunk + 1) * each), step.qkv, step.rotation, layer.qk_norm, model.epsilon,
            model.heads, model.kv_heads, model.head_dim, step.slots, model.block_size,
            layer.keys, layer.values, layer.blocks,
        )  # fmt: skip
        chunk = next_chunk(line, number, chunks)
    return over(line, number, chunks)


@njit(nogil=True)
def _attend(line, number, rank, model, layer, step):
    chunks = step.run_count * model.kv_heads
    scratch = step.scratch + rank * step.scratch_bytes
    chunk = claim(line, number, chunks)
    while chunk >= 0:
        run = step.runs + chunk // model.kv_heads * 24
        token, count, row = number_at(run), number_at(run + 8), number_at(run + 16)
        attend(
            token, count, number_at(step.positions + 8 * token), chunk % model.kv_heads, step.qkv, step.attention,
            model.heads, model.kv_heads, model.head_dim, step.tables + row * step.table_width * 8, model.block_size,
            layer.keys, layer.values, layer.blocks, scratch,
        )  # fmt: skip
        chunk = next_chunk(line, number, chunks)
    return over(line, number, chunks)


@njit(nogil=True)
def _quantise(line, number, step, columns, bias, hidden):
    """The attention's output; and the bias of the product that follows, put into the residual stream."""
    each = _per_chunk(step.count)
    chunks = _cut(step.count, each)
    chunk = claim(line, number, chunks)
    while chunk >= 0:
        for row in range(chunk * each, min(step.count, (chunk + 1) * each)):
            at = step.words + row * columns // GROUP * _WORDS
            quantise_row(step.plain, columns, step.attention + row * columns * 4, _codes(step, row, columns), at)
            if bias:
                add_row(hidden, bias, step.x + row * hidden * 4)
        chunk = next_chunk(line, number, chunks)
    return over(line, number, chunks)


@njit(nogil=True)
def _swiglu(line, number, step, columns, bias, hidden):
    each = _per_chunk(step.count)
    chunks = _cut(step.count, each)
    chunk = claim(line, number, chunks)
    while chunk >= 0:
        for row in range(chunk * each, min(step.count, (chunk + 1) * each)):
            gate = step.gate_up + row * columns * 8
            at = step.words + row * columns // GROUP * _WORDS
            swiglu_row(step.plain, columns, gate, gate + columns * 4, _codes(step, row, columns), at)
            if bias:
                add_row(hidden, bias, step.x + row * hidden * 4)
        chunk = next_chunk(line, number, chunks)
    return over(line, number, chunks)


@njit(nogil=True)
def _pick(line, number, model, step):
    """The rows that want logits, normalised."""
    each = _per_chunk(step.wanted_count)
    chunks = _cut(step.wanted_count, each)
    columns = model.hidden
    chunk = claim(line, number, chunks)
    while chunk >= 0:
        for row in range(chunk * each, min(step.wanted_count, (chunk + 1) * each)):
            x = step.x + number_at(step.wanted + 8 * row) * columns * 4
            at = step.words + row * columns // GROUP * _WORDS
            normalise_row(step.plain, columns, x, model.norm, model.epsilon, _codes(step, row, columns), at)
        chunk = next_chunk(line, number, chunks)
    return over(line, number, chunks)


# --- the program ---


@njit(nogil=True)
def _clock(rank, at, since):
    """Put the time since `since` to the op whose ticks stand at `at`; now."""
    if rank:
        return since
    now = ticks()
    set_number(at, number_at(at) + now - since)
    return now


@njit(nogil=True)
def forward(rank, number, lines, models, layers, steps):
    """What every thread of the team runs. `number`: the step's; `lines`: address of the phases' counters.

    models (1) MODEL, layers (L) LAYER, steps (1) STEP. Reads the batch, writes K, V and the logits.
    """
    model, step = models[0], steps[0]
    rows, hidden, inner = step.count, model.hidden, model.intermediate
    stream, gates = hidden * 4, inner * 8
    wide = (model.heads + 2 * model.kv_heads) * model.head_dim * 4
    nothing = np.int64(0)  # between rows of a bias; a literal 0 would be a type of its own, and compiled for apart
    line, times = lines, step.times
    since = ticks()
    if not _embed(line, number, model, step):
        return
    since = _clock(rank, times + 8 * _EMBED, since)
    for i in range(model.layers):
        layer = layers[i]
        line += LINE
        if not _normalise(line, number, step, rows, hidden, step.x, layer.attention_norm, model.epsilon):
            return
        since = _clock(rank, times + 8 * _NORM, since)
        line += LINE
        if not _multiply(line, number, step, rows, layer.qkv, layer.qkv.start, nothing, step.qkv, wide):
            return
        since = _clock(rank, times + 8 * _QKV, since)
        line += LINE
        if not _rotate(line, number, model, layer, step):
            return
        since = _clock(rank, times + 8 * _ROPE, since)
        line += LINE
        if not _attend(line, number, rank, model, layer, step):
            return
        since = _clock(rank, times + 8 * _ATTENTION, since)
        line += LINE
        if not _quantise(line, number, step, model.heads * model.head_dim, layer.output_bias, hidden):
            return
        since = _clock(rank, times + 8 * _QUANTISE, since)
        line += LINE
        if not _multiply(line, number, step, rows, layer.output, step.x, stream, step.x, stream):
            return
        since = _clock(rank, times + 8 * _OUTPUT, since)
        line += LINE
        if not _normalise(line, number, step, rows, hidden, step.x, layer.mlp_norm, model.epsilon):
            return
        since = _clock(rank, times + 8 * _NORM, since)
        line += LINE
        if not _multiply(line, number, step, rows, layer.gate_up, layer.gate_up.start, nothing, step.gate_up, gates):
            return
        since = _clock(rank, times + 8 * _GATE_UP, since)
        line += LINE
        if not _swiglu(line, number, step, inner, layer.down_bias, hidden):
            return
        since = _clock(rank, times + 8 * _SWIGLU, since)
        line += LINE
        if not _multiply(line, number, step, rows, layer.down, step.x, stream, step.x, stream):
            return
        since = _clock(rank, times + 8 * _DOWN, since)
    line += LINE
    if step.wanted_count == 0:
        return
    if not _pick(line, number, model, step):
        return
    since = _clock(rank, times + 8 * _NORM, since)
    line += LINE
    head = model.head
    if _multiply(line, number, step, step.wanted_count, head, head.start, nothing, step.logits, head.tiles * 64):
        _clock(rank, times + 8 * _HEAD, since)
