"""The operations that the forward pass on a card is made of, under one set of signatures.

Every one writes into tensors that it is given and allocates none that outlive it. Which set is used is handed over:
the Triton kernels on a card, the same in the interpreter, or the formulas in torch on any device. What they take and
give is told in the kernels' own files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from engine.runner.graphs import as_one

Op = Callable[..., None]


def _no_op(*args: object) -> None:
    raise NotImplementedError("this set of operations has none for quantised weights")


@dataclass(frozen=True)
class Ops:
    add_rms_norm: Op
    rope_store: Op
    silu_mul: Op
    paged_decode: Op
    paged_prefill: Op
    workspace: Callable[[int, int, int, torch.device], Any]  # rows, heads, d: what a launch of attention needs besides
    quantised_product: Op = _no_op
    dequantise: Op = _no_op
    product_workspace: Callable[[int, int, torch.device], Any] = _no_op  # rows, most outputs: what products share

    def told_whole(self) -> Ops:
        """The same, each seen from outside as one operation, as a launch of a kernel is."""
        told = {each.name: as_one(getattr(self, each.name)) for each in fields(self) if "workspace" not in each.name}
        return replace(self, **told)


def kernel_ops() -> Ops:
    """Compiled on a card; in the interpreter where TRITON_INTERPRET=1 was set before triton was first imported."""
    from engine.kernels.add_rms_norm import add_rms_norm
    from engine.kernels.dequantise import dequantise
    from engine.kernels.paged_decode import decode_workspace, paged_decode
    from engine.kernels.paged_prefill import paged_prefill
    from engine.kernels.quantised_product import product_workspace, quantised_product
    from engine.kernels.rope_store import rope_store
    from engine.kernels.silu_mul import silu_mul

    return Ops(
        add_rms_norm,
        rope_store,
        silu_mul,
        paged_decode,
        paged_prefill,
        decode_workspace,
        quantised_product,
        dequantise,
        product_workspace,
    )


def torch_ops() -> Ops:
    """The formulas. Attention reads lengths on the host, row by row: right anywhere, fast nowhere."""
    from engine.kernels.add_rms_norm import add_rms_norm_reference
    from engine.kernels.dequantise import dequantise_reference
    from engine.kernels.paged_decode import paged_decode_reference
    from engine.kernels.paged_prefill import paged_prefill_reference
    from engine.kernels.quantised_product import quantised_product_reference
    from engine.kernels.rope_store import rope_store_reference
    from engine.kernels.silu_mul import silu_mul_reference

    return Ops(
        add_rms_norm_reference,
        rope_store_reference,
        silu_mul_reference,
        paged_decode_reference,
        paged_prefill_reference,
        lambda *_: None,
        quantised_product_reference,
        dequantise_reference,
        lambda *_: None,
    )
