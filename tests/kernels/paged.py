"""A paged pool in which every slot that no row holds is NaN, and its rows' blocks lie anywhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Roundings of the dtype in a result. float32: a weight's relative error is its score's error, a sum of d products of
# numbers near 1, and up to 1,025 weights are summed. float16, bfloat16: the result's own rounding and those of weights,
# which are rounded for the product with the values and mostly cancel; the sum of weights is float32.
ROUNDINGS = {torch.float32: 16.0, torch.float16: 1.5, torch.bfloat16: 1.5}


@dataclass
class Pool:
    keys: torch.Tensor
    values: torch.Tensor
    tables: torch.Tensor
    contexts: torch.Tensor

    def double(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.keys.double(), self.values.double(), self.tables


def pool(contexts: list[int], kv_heads: int, d: int, block_size: int, dtype: torch.dtype) -> Pool:
    generator = torch.Generator().manual_seed(sum(contexts) + d + block_size)
    blocks = [-(-context // block_size) for context in contexts]
    spare = 2
    order = torch.randperm(sum(blocks) + spare, generator=generator)
    shape = (kv_heads, len(order), block_size, d)
    keys, values = torch.full(shape, torch.nan, dtype=dtype), torch.full(shape, torch.nan, dtype=dtype)
    tables = torch.full((len(contexts), max(blocks) + 1), int(order[-1]), dtype=torch.int32)  # the rest: a block of NaN
    first = 0
    for row, context in enumerate(contexts):
        own = order[first : first + blocks[row]]
        first += blocks[row]
        tables[row, : len(own)] = own
        at = torch.arange(context)
        slots = own[at // block_size] * block_size + at % block_size
        for numbers in (keys, values):
            numbers.flatten(1, 2)[:, slots] = torch.randn((kv_heads, context, d), generator=generator).to(dtype)
    return Pool(keys, values, tables, torch.tensor(contexts, dtype=torch.int32))


def queries(count: int, heads: int, d: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn((count, heads, d), generator=torch.Generator().manual_seed(count)).to(dtype)
