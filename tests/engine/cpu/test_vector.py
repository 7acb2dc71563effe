"""The instructions that are made of others: e^x, and dot products of bytes in each of their forms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from engine.cpu.vector import DOT_256, LANES, Emitter, address, f32, i8, i32, vector


@intrinsic
def _exp(context, source, to, count):
    def generate(context, builder, signature, arguments):
        e = Emitter(builder)
        source, to, count = arguments

        def body(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            e.store(e.exp(e.load(e.at(source, index, 64), vector(f32))), e.at(to, index, 64))
            return []

        e.loop(count, [], body)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@njit
def exp_of(x, y):
    _exp(address(x), address(y), x.size // LANES)


def _exp_of(x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    exp_of(x, y)
    return y


def test_exp_over_its_whole_range() -> None:
    x = np.linspace(-87, 88, 1 << 22, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    units = np.abs(_exp_of(x) - exact) / np.spacing(exact.astype(np.float32))
    assert units.max() < 0.9


def test_exp_of_special_values() -> None:
    x = np.full(LANES, -np.inf, np.float32)
    x[:6] = 0, -0.0, -87.5, -1e30, -3e38, 1e-30
    assert _exp_of(x).tolist() == [1, 1, 0, 0, 0, 1] + [0] * (LANES - 6)


def _dot_256(e: Emitter, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    parts = zip(e._split(total), e._split(unsigned), e._split(signed), strict=True)
    return e._join(*(e.call("llvm.x86.avx512.vpdpbusd.256", vector(i32, 8), *part) for part in parts))


def _dot(form: Callable[..., ir.Value]) -> Callable[..., None]:
    @intrinsic
    def dot(context, total, unsigned, signed, to):
        def generate(context, builder, signature, arguments):
            e = Emitter(builder)
            kinds = vector(i32), vector(i8, 64), vector(i8, 64)
            e.store(form(e, *map(e.load, arguments[:3], kinds)), arguments[3])
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, types.intp, types.intp), generate

    @njit
    def run(total, unsigned, signed, to):
        dot(address(total), address(unsigned), address(signed), address(to))

    return run


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(Emitter.dot_bytes, id="the host's"),
        pytest.param(Emitter._dot_spelled_out, id="spelled out"),
        pytest.param(_dot_256, id="256 bits", marks=pytest.mark.skipif(not DOT_256, reason="the CPU has none")),
    ],
)
def test_dot_bytes_is_the_sum_of_four_products(form: Callable[..., ir.Value]) -> None:
    run, rng = _dot(form), np.random.default_rng(0)
    extremes = [(255, -128), (255, 127), (0, -128), (128, -1), (127, 127)]
    cases = [(np.full(64, a, np.uint8), np.full(64, b, np.int8)) for a, b in extremes]
    cases += [(rng.integers(0, 256, 64, np.uint8), rng.integers(-128, 128, 64, np.int8)) for _ in range(50)]
    for unsigned, signed in cases:
        total = rng.integers(-(2**29), 2**29, LANES, np.int32)
        products = unsigned.astype(np.int32) * signed.astype(np.int32)
        found = np.empty(LANES, np.int32)
        run(total, unsigned, signed, found)
        np.testing.assert_array_equal(found, total + products.reshape(LANES, 4).sum(axis=1))
