"""The KV pool of one layer, and writing new tokens into it.

Layout (kv_heads, blocks, block_size, d): the blocks of a row, gathered along axis 1, are that row's context in
order and without gaps, for each head; a write is 2·T·kv_heads·d·n bytes.
"""

from __future__ import annotations

import torch


def write_kv(
    keys: torch.Tensor,
    values: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor,
    stored: torch.Tensor | None = None,
) -> None:
    """keys, values: a layer's pools. k, v (T, kv_heads, d) go to `slots` (T) = block · block_size + offset; or only
    those tokens that `stored` names, to as many slots."""
    for pool, new in ((keys, k), (values, v)):
        if stored is not None:
            new = new.index_select(0, stored)
        pool.flatten(1, 2).index_copy_(1, slots, new.transpose(0, 1))
