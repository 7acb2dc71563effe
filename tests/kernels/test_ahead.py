"""Kernels compiled for five cards without one: none that runs in every step spills, none multiplies in tf32."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest
import triton

import engine.kernels
from app.__main__ import main
from engine.kernels.ahead import SHARED_BYTES, TARGETS, Compiled, cases, faults, sample

GOOD = Compiled("one", "float32", 90, True, 4, 64, 1024, 0, False, False, 0.1)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a minute and a half of one core, and there may be others
def test_no_kernel_does_what_none_may():
    """Every case for one card at least, every kernel for all. In a process that doesn't interpret them; and in one
    test, so that where tests are spread over processes they are compiled once."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "engine.kernels.ahead", "--sample"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=870)
    assert done.returncode == 0, done.stderr[-4000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["faults"] == []

    found = answer["compiled"]
    assert {(one["kernel"], one["variant"]) for one in found} == {(case.name, case.variant) for case in cases()}
    for kernel in {case.name for case in cases()}:
        assert {one["target"] for one in found if one["kernel"] == kernel} == set(TARGETS)
    for one in found:
        assert 8 <= one["registers"] <= 255 and 0 <= one["shared_bytes"] <= SHARED_BYTES[one["target"]]
        if one["kernel"] in ("paged_decode", "paged_prefill", "quantised_product"):
            on_tensor_cores = not one["variant"].startswith("float32")
            assert one["tensor_cores"] == on_tensor_cores, one


def test_every_file_with_a_kernel_says_what_to_compile():
    named = {case.kernel.fn.__name__ for case in cases()}
    for module in pkgutil.iter_modules(engine.kernels.__path__):
        contents = import_module(f"engine.kernels.{module.name}")
        own = [
            thing for thing in vars(contents).values()
            if isinstance(thing, triton.runtime.KernelInterface) and thing.fn.__module__ == contents.__name__
        ]  # fmt: skip
        launched = [kernel.fn.__name__ for kernel in own if kernel.fn.__name__ == f"_{module.name}"]
        assert set(launched) <= named


def test_faults_are_told_in_words():
    def with_(**changes) -> Compiled:
        return Compiled(**{**vars(GOOD), **changes})

    assert faults([GOOD, with_(hot=False, spilled_bytes=8)]) == []
    assert faults([with_(spilled_bytes=8)]) == ["one (float32) on sm_90 spills 8 bytes a thread"]
    assert "101377 bytes of shared memory of 101376" in faults([with_(target=120, shared_bytes=99 * 1024 + 1)])[0]
    assert faults([with_(tf32=True)]) == ["one (float32) on sm_90 multiplies in tf32"]


def test_a_sample_has_every_case_and_no_more_than_it_needs():
    every = cases()
    work = sample(every, TARGETS)
    assert {(case.name, case.variant) for case, _ in work} == {(case.name, case.variant) for case in every}
    assert len(work) < 2 * (len(every) + len(TARGETS) * len({case.name for case in every}))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--compile is missing"),
        (["--compile", "--targets", "75"], "--targets 75: choose from 80, 89, 90, 100, 120"),
        (["--compile", "--kernels", "nothing"], "there is no kernel nothing (there are: "),
    ],
)
def test_bad_input_gets_one_message(capsys, words, said):
    with pytest.raises(SystemExit) as ended:
        sys.exit(main(["bench", "kernels", *words]))
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_the_bench_prints_one_object(capsys):
    assert main(["bench", "kernels", "--compile", "--kernels", "silu_mul", "--targets", "90", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {one["variant"] for one in result["compiled"]} == {"float32", "float16", "bfloat16"}
    assert all(one["kernel"] == "silu_mul" and one["target"] == 90 for one in result["compiled"])


def test_the_bench_prints_a_table(capsys):
    assert main(["bench", "kernels", "--compile", "--kernels", "silu_mul", "--targets", "80"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 3 and "registers" in lines[1] and "sm_80" in lines[2]
