"""Every kernel with a fault planted in it: the test that it passes without fails.

Masks that are off by one, scales and sums left out, a context or a position one too far: what is easily written and
hard to see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from engine.kernels import (
    add_rms_norm,
    dequantise,
    paged_decode,
    paged_prefill,
    paged_tiles,
    quantised_product,
    rope_store,
    sample,
    silu_mul,
    verify,
)
from engine.kernels.ahead import cases
from tests.kernels import (
    test_add_rms_norm,
    test_dequantise,
    test_paged_decode,
    test_paged_prefill,
    test_quantised_product,
    test_rope_store,
    test_sample,
    test_silu_mul,
    test_verify,
)
from tests.kernels.planted import planted

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
Check = Callable[[], None]


class Fault(NamedTuple):
    kernel: Any  # or what a kernel calls
    words: str  # of its source
    instead: str
    check: Check


def norm(added: bool = True, dtype: torch.dtype = BF16) -> Check:
    return lambda: test_add_rms_norm.check(5, 100, added, dtype)


def silu() -> None:
    test_silu_mul.check(5, 1030, F16)


def rope(normed: bool = True) -> Check:
    return lambda: test_rope_store.check(17, 80, 3, 16, F32, normed)


def decode(context: int) -> Check:
    return lambda: test_paged_decode.test_it_agrees_with_the_formula(context, 64, 3, 16, F32)


def split() -> None:
    test_paged_decode.test_however_many_programs_share_a_row(64)


def prefill() -> None:
    test_paged_prefill.test_chunks_of_prompts(17, 80, 3, 16, BF16)


def product(bits: int, split: bool = False) -> Check:
    return lambda: test_quantised_product.check(bits, 3, 65, 512, F32, split)


def floats(bits: int) -> Check:
    return lambda: test_dequantise.check(dequantise.dequantise, bits, 96, 3, 50, F32)


def weights(asked: int, kind: str = "spread") -> Check:
    def check() -> None:
        numbers = test_sample.logits_of(kind, 2, 100)
        test_sample.check(test_sample.row_weights, numbers, test_sample.settings(100)[asked : asked + 2])

    return check


def verified(drafts: str, temperature: float) -> Check:
    def check() -> None:
        for vocabulary in (17, 18, 19, 20, 21):  # some rows are accepted whole, some not
            test_verify.check(vocabulary, 4, 16, drafts, temperature, "none")

    return check


FAULTS = {
    "a weight left out": Fault(add_rms_norm._add_rms_norm, "total * scale * w", "total * scale", norm()),
    "a sum, not a mean": Fault(
        add_rms_norm._add_rms_norm, "tl.sum(total * total, 0) / width", "tl.sum(total * total, 0)", norm()
    ),
    "a number of nobody": Fault(add_rms_norm._add_rms_norm, "column < width", "column <= width", norm()),
    "a row's last number": Fault(add_rms_norm._add_rms_norm, "column < width", "column < width - 1", norm(False)),
    "a number too few": Fault(silu_mul._silu_mul, "column < width", "column < width - 1", silu),
    "a gate turned round": Fault(silu_mul._silu_mul, "tl.exp(-gate)", "tl.exp(gate)", silu),
    "gate for up": Fault(silu_mul._silu_mul, "here + width, mask", "here, mask", silu),
    "a position too far": Fault(
        rope_store._rope_store, "tl.load(positions + token)", "(tl.load(positions + token) + 1)", rope()
    ),
    "turned backwards": Fault(rope_store._rope_store, "x1 * cos[None, :] - x2", "x1 * cos[None, :] + x2", rope(False)),
    "keys not normed": Fault(rope_store._rope_store, "w1 += widened(", "w1 += 0 * widened(", rope()),
    "a quarter turn": Fault(rope_store._cos_sin, "quarter >= 2", "quarter > 2", rope(False)),
    "values among the keys": Fault(rope_store._rope_store, "to_v = values", "to_v = keys", rope(False)),
    "scores not scaled": Fault(
        paged_tiles.attend, 'widened(k), input_precision="ieee") * scale',
        'widened(k), input_precision="ieee")', decode(100)
    ),
    "a key of nobody": Fault(paged_tiles.attend, "at < end", "at <= end", decode(17)),
    "its own key unseen": Fault(paged_tiles.attend, "at[None, :] <= position", "at[None, :] < position", prefill),
    "a maximum forgotten": Fault(paged_tiles.attend, "acc * shrink[:, None]", "acc", decode(100)),
    "the sum of the last tile": Fault(paged_tiles.attend, "total * shrink + tl.sum", "tl.sum", decode(100)),
    "stretches weighed alike": Fault(
        paged_tiles.merge, "part * tl.exp2(sums - top[None, :])[:, :, None]", "part", split
    ),
    "a stretch left out": Fault(paged_tiles.merge, "split < active", "split < active - 1", split),
    "arrivals not reset": Fault(
        paged_tiles.attend_stretch, "tl.store(arrivals + unit, 0)", "pass", split
    ),
    "a context one short": Fault(
        paged_decode._paged_decode, "context - 1, GROUP, context,", "context - 2, GROUP, context - 1,", decode(17)
    ),
    "a later key seen": Fault(
        paged_prefill._paged_prefill, "first = context - count", "first = context - count + 1", prefill
    ),
    "the row before": Fault(paged_prefill._paged_prefill, "tables + row * table_stride", "tables", prefill),
    "codes off by one": Fault(quantised_product._quantised_product, "- 128.0", "- 127.0", product(8)),
    "halves in the wrong order": Fault(
        quantised_product._quantised_product, "tl.join(codes & 15, codes >> 4)",
        "tl.join(codes >> 4, codes & 15)", product(4)
    ),
    "no offset": Fault(quantised_product._quantised_product, " + of_group * offset[:, None]", "", product(4)),
    "no scale": Fault(quantised_product._quantised_product, "part * scale[:, None]", "part", product(4)),
    "a group of a split left out": Fault(
        quantised_product._quantised_product, "begin + share)", "begin + share - 1)", product(8, split=True)
    ),
    "a split left out": Fault(
        quantised_product._quantised_product, "tl.range(0, SPLITS)", "tl.range(1, SPLITS)", product(8, split=True)
    ),
    "floats off by one": Fault(dequantise._dequantise, "- 128.0", "- 127.0", floats(8)),
    "floats without offset": Fault(dequantise._dequantise, " + offset[:, None]", "", floats(4)),
    "the next row picked": Fault(dequantise._dequantise, "(first + row)", "(first + row + 1) % outputs", floats(8)),
    "the last of equals": Fault(
        sample._sample_peaks, "tl.min(tl.where(x == peak, at, vocabulary)",
        "tl.max(tl.where(x == peak, at, -1)", weights(0, "equal")
    ),
    "a block's peak unseen": Fault(
        sample._sample_temper, "mask=each < blocks, other=-float", "mask=each < 1, other=-float", weights(0)
    ),
    "a maximum not tempered": Fault(
        sample._sample_temper, "top.to(tl.float64) / temperature", "top.to(tl.float64)", weights(0)
    ),
    "equals all kept": Fault(sample._sample_filter, "(key > low) |", "(key >= low) |", weights(4, "equal")),
    "one too many kept": Fault(
        sample._sample_filter, "equal = wanted - above", "equal = wanted - above + 1", weights(4, "equal")
    ),
    "a block's last token": Fault(sample._sample_sums, "mask=at < vocabulary", "mask=at < vocabulary - 1", weights(0)),
    "drafts kept after a rejection": Fault(
        verify._verify_accept, "tl.where(passes, going, 0)", "passes.to(tl.int32)", verified("float64", 1.5)
    ),
    "accepted by q / p": Fault(verify._verify_accept, "* q < p", "* p < q", verified("float64", 1.5)),
    "greedy drafts by chance": Fault(
        verify._verify_accept, "(tl.load(best + place) == token).to(tl.float64)",
        "tl.full((), 1.0, tl.float64)", verified("certain", 0.0)
    ),
    "a residual of p alone": Fault(
        verify._left, "tl.load(q_totals + drafted), 0.0)", "1e30, 0.0)", verified("float64", 1.5)
    ),
    "the drafted token again": Fault(
        verify._left, "tl.where(at == tl.load(own + 3 + accepted), 0.0, w)", "w", verified("certain", 1.5)
    ),
    "the residual of the first place": Fault(
        verify._verify_left, "place = tl.load(own) + accepted", "place = tl.load(own)", verified("float64", 1.5)
    ),
    "an end from p after a rejection": Fault(
        verify._verify_end, "resampled = tl.sum(remains, axis=0) > 0",
        "resampled = tl.sum(remains, axis=0) < 0", verified("float64", 1.5)
    ),
    "a bonus of the wrong place": Fault(
        verify._verify_end, "place = tl.load(own) + accepted", "place = tl.load(own)", verified("float64", 1.5)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str):
    fault = FAULTS[name]
    fault.check()
    with planted(fault.kernel, fault.words, fault.instead), pytest.raises(AssertionError):
        fault.check()


def test_every_kernel_has_had_one():
    assert {case.kernel.fn.__name__ for case in cases()} <= {fault.kernel.fn.__name__ for fault in FAULTS.values()}


def test_words_that_are_not_there_plant_nothing():
    with planted(silu_mul._silu_mul, "column > width", "column"), pytest.raises(AssertionError, match="occurs 0 times"):
        silu()
