"""Paged prefill and verification against the formula in float64, in the interpreter: ragged, some rows empty."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.paged_decode import decode_workspace
from engine.kernels.paged_prefill import paged_prefill, paged_prefill_reference
from tests.kernels.agreement import assert_agrees
from tests.kernels.paged import ROUNDINGS, Pool, pool, queries
from tests.kernels.pairwise import pairwise

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CPU = torch.device("cpu")


def agrees(held: Pool, counts: list[int], group: int, splits: bool, multiprocessors: int = 32) -> torch.Tensor:
    kv_heads, _, _, d = held.keys.shape
    dtype = held.keys.dtype
    starts = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
    q = queries(int(starts[-1]) + 2, kv_heads * group, d, dtype)  # two of padding
    out = torch.full_like(q, torch.nan)
    workspace = decode_workspace(64, kv_heads * group, d, CPU, multiprocessors) if splits else None
    given = held.keys, held.values, held.tables, starts, held.contexts
    paged_prefill(q, *given, out, max(counts), workspace)
    wanted = torch.full(q.shape, torch.nan, dtype=torch.float64)
    paged_prefill_reference(q.double(), *held.double(), starts, held.contexts, wanted, max(counts))
    assert_agrees(out[:-2], wanted[:-2], ROUNDINGS[dtype])
    assert out[-2:].isnan().all(), "wrote where no row is"
    assert workspace is None or not workspace.arrivals.any()
    return out


@pytest.mark.parametrize(
    ("tokens", "d", "group", "block_size", "dtype"),
    pairwise((1, 17, 100, 1025), (64, 80, 96, 128), (1, 3, 4, 8), (16, 32, 128), DTYPES),
)
def test_chunks_of_prompts(tokens: int, d: int, group: int, block_size: int, dtype: torch.dtype):
    """A whole prompt; a row that is empty; the last 3 of 70 tokens."""
    agrees(pool([tokens, 9, 70], 1, d, block_size, dtype), [tokens, 0, 3], group, splits=False)


@pytest.mark.parametrize(
    ("queries_", "d", "group", "block_size", "dtype"),
    pairwise((1, 2, 5, 9), (64, 80, 96, 128), (1, 3, 4, 8), (16, 32, 128), DTYPES),
)
def test_verification_of_drafts(queries_: int, d: int, group: int, block_size: int, dtype: torch.dtype):
    """γ + 1 queries at the end of contexts that programs share; one of them is all there is of its row."""
    held = pool([400, queries_, 257], 1, d, block_size, dtype)
    agrees(held, [queries_, queries_, 1], group, splits=True)


def test_the_last_chunk_of_a_long_context_in_stretches():
    """Whole tiles of queries that see only some of the stretches: 40 of 1,025, in float32's tiles of 16 lines."""
    agrees(pool([1025, 30], 1, 64, 32, torch.float32), [40, 30], 4, splits=True)


def test_a_context_shorter_than_its_queries():
    """Rows that pad a captured batch have queries and no context; a query that sees no key gets zeros."""
    out = agrees(pool([0, 3, 200], 1, 64, 16, torch.float32), [5, 5, 5], 2, splits=True)
    assert not out[:7].any() and out[7:15].all()
