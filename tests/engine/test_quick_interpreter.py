"""The interpreter that kernels are tested in gives to the bit what Triton's own gives, and is left as it was."""

from __future__ import annotations

import torch
from triton.language import core
from triton.runtime import interpreter

from engine.kernels.add_rms_norm import add_rms_norm
from engine.kernels.paged_decode import decode_workspace, paged_decode
from tests.kernels.paged import pool, queries
from tests.support.quick_interpreter import quick_interpreter


def results() -> list[torch.Tensor]:
    """Of kernels with functions of their own and of Triton's, loops, products, masks and whole numbers."""
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        held, q = pool([300, 0, 17], 1, 80, 16, dtype), queries(3, 3, 80, dtype)
        attended = torch.empty_like(q)
        workspace = decode_workspace(3, 3, 80, q.device)
        paged_decode(q, held.keys, held.values, held.tables, held.contexts, attended, workspace)
        rows = torch.randn(3, 100, generator=torch.Generator().manual_seed(1)).to(dtype)
        normed = torch.empty_like(rows)
        add_rms_norm(rows, rows.clone(), torch.ones(100), 1e-5, normed)
        found += [attended, normed]
    return found


def test_results_are_tritons_own():
    touched = [(core.block_type, "__init__"), (core.tensor, "__init__"), (core.tuple, "__eq__")]
    touched += [(interpreter, "_get_np_dtype"), (interpreter.InterpretedFunction, "__call__")]
    before = [getattr(*one) for one in touched]
    plain = results()
    with quick_interpreter():
        quick = results()
    again = results()
    assert all(torch.equal(a, b) for a, b in zip(plain, quick, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    assert [getattr(*one) for one in touched] == before
