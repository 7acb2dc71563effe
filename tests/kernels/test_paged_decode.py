"""Paged decode against the formula in float64, in the interpreter: rows cut among programs, ragged, some empty."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.paged_decode import decode_workspace, paged_decode, paged_decode_reference
from tests.kernels.agreement import assert_agrees
from tests.kernels.paged import ROUNDINGS, Pool, pool, queries
from tests.kernels.pairwise import pairwise

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CPU = torch.device("cpu")


def decoded(q: torch.Tensor, held: Pool, multiprocessors: int = 4) -> torch.Tensor:
    workspace = decode_workspace(len(q), q.shape[1], q.shape[2], CPU, multiprocessors)
    workspace.means.fill_(torch.nan)  # what an earlier launch left
    workspace.log_sums.fill_(torch.nan)
    out = torch.full_like(q, torch.nan)
    paged_decode(q, held.keys, held.values, held.tables, held.contexts, out, workspace)
    assert not workspace.arrivals.any(), "the next launch would merge too early"
    return out


def formula(q: torch.Tensor, held: Pool) -> torch.Tensor:
    out = torch.full(q.shape, torch.nan, dtype=torch.float64)
    paged_decode_reference(q.double(), *held.double(), held.contexts, out)
    return out


@pytest.mark.parametrize(
    ("context", "d", "group", "block_size", "dtype"),
    pairwise((1, 17, 100, 1025), (64, 80, 96, 128), (1, 3, 4, 8), (16, 32, 128), DTYPES),
)
def test_it_agrees_with_the_formula(context: int, d: int, group: int, block_size: int, dtype: torch.dtype):
    held = pool([context, 0, 3], 2, d, block_size, dtype)
    q = queries(3, 2 * group, d, dtype)
    assert_agrees(decoded(q, held), formula(q, held), ROUNDINGS[dtype])


@pytest.mark.parametrize("multiprocessors", [1, 8, 64])
def test_however_many_programs_share_a_row(multiprocessors: int):
    """Stretches of 128 keys at least: 1,025 of them are cut into nine at most, the last of one key."""
    held = pool([1025, 128, 129, 0, 640], 1, 64, 16, torch.float32)
    q = queries(5, 3, 64, torch.float32)
    assert_agrees(decoded(q, held, multiprocessors), formula(q, held), ROUNDINGS[torch.float32])


def test_a_replay_over_the_same_buffers_sees_other_contexts():
    """As a captured graph does: nothing but what the tensors hold has changed between two launches."""
    held = pool([700, 300, 5], 1, 64, 16, torch.float32)
    q = queries(3, 3, 64, torch.float32)
    workspace, out = decode_workspace(3, 3, 64, CPU), torch.empty_like(q)
    for contexts in ([700, 300, 5], [129, 0, 1], [700, 299, 4]):
        held.contexts.copy_(torch.tensor(contexts))
        paged_decode(q, held.keys, held.values, held.tables, held.contexts, out, workspace)
        assert_agrees(out, formula(q, held), ROUNDINGS[torch.float32])


def test_an_empty_row_gets_zeros():
    held = pool([0, 5, 0], 1, 64, 16, torch.bfloat16)
    out = decoded(queries(3, 2, 64, torch.bfloat16), held)
    assert not out[0].any() and not out[2].any() and out[1].all()


def test_the_reference_is_what_torch_gives():
    held = pool([37], 2, 64, 16, torch.float64)
    q = queries(1, 6, 64, torch.float64)
    at = torch.arange(37)
    slots = held.tables[0].long()[at // 16] * 16 + at % 16
    k, v = held.keys.flatten(1, 2)[:, slots], held.values.flatten(1, 2)[:, slots]
    wanted = torch.nn.functional.scaled_dot_product_attention(q.transpose(0, 1), k, v, enable_gqa=True).transpose(0, 1)
    torch.testing.assert_close(formula(q, held), wanted)


def test_what_it_cant_read_it_refuses():
    held = pool([20], 2, 64, 16, torch.float32)
    q = queries(1, 6, 64, torch.float32)
    workspace = decode_workspace(1, 6, 64, CPU)

    def refused(words: str, **changed: torch.Tensor) -> None:
        given = {"q": q, "out": q.clone(), "workspace": workspace, **vars(held)}
        with pytest.raises(ValueError, match=words):
            paged_decode(**(given | changed))

    refused("int32", contexts=held.contexts.long())
    refused("differ", out=q[:, :4].clone())
    refused("5 query heads over 2", q=q[:, :5], out=q[:, :5].clone())
    refused("laid out alike", values=held.values.transpose(1, 2).contiguous().transpose(1, 2))
    refused("lie together", q=q.transpose(1, 2).contiguous().transpose(1, 2))
    refused("one of float32", q=q.half())
