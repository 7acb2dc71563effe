"""A processor without an instruction for products of bytes, or with a narrower one, gives the same numbers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from numba.core.codegen import get_host_cpu_features

from engine.cpu.vector import features
from tests.engine.cpu.lowered import digest

HOST = features(get_host_cpu_features())


def without(*beginnings: str) -> str:
    """Nothing of LLVM's list of features begins so."""
    kept = {name: there and not name.startswith(beginnings) for name, there in HOST.items()}
    return ",".join(("+" if there else "-") + name for name, there in kept.items())


def told(env: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.cpu.lowered"],
        env={**os.environ, "NUMBA_CPU_FEATURES": env}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.skipif(not HOST.get("avx2"), reason="of x86")
@pytest.mark.parametrize("less", [("avx512vnni", "avxvnni"), ("avx512", "avx10", "avxvnni")], ids=["no VNNI", "AVX2"])
def test_without_an_instruction_for_bytes(less: tuple[str, ...]):
    assert told(without(*less)) == ["False", "False", digest()]


@pytest.mark.slow
@pytest.mark.skipif(not HOST.get("avxvnni"), reason="the CPU has none of 256 bits without AVX-512")
def test_with_the_narrower_one():
    assert told(without("avx512", "avx10")) == ["False", "True", digest()]
