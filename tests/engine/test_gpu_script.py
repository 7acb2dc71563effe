"""The script for a card runs to its end without one, so that minutes on a card aren't spent on its mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.bench import gpu


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.bench.gpu", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    return subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)


def test_a_dry_run_comes_to_its_end(tmp_path):
    out = tmp_path / "dry.json"
    done = run("--dry", "--only", "kernels", "attention", "decode", "decode_w4a16", "products", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["dry"] and "mean nothing" in found["device"] and found["ok"]
    assert {name.split(",")[0] for name in found["kernels"]["worst"]} >= {
        "paged_decode", "paged_prefill", "rope_store", "add_rms_norm", "silu_mul", "row_weights", "quantised_product",
        "verify", "dequantise",
    }  # fmt: skip
    assert {name.split(", ")[1] for name in found["kernels"]["worst"] if "quantised" in name} == {"W4A16", "W8A16"}
    assert found["attention"]["runs"] and found["decode"]["graph_ms"] > 0 and found["products"]["runs"]
    in_4_bits = found["decode_w4a16"]
    assert in_4_bits["bytes_read"] < found["decode"]["bytes_read"] / 4
    assert in_4_bits["wanted"] == 0.6 and in_4_bits["graph_ms"] > 0


@pytest.mark.slow
def test_a_dry_run_of_the_engine_is_token_equal():
    done = run("--dry", "--only", "engine", "--new-tokens", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["engine"]["token_equal"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_it_says_unmeasured():
    done = run()
    assert done.returncode == 0 and json.loads(done.stdout)["cuda"] == "unmeasured"


def asked(**changes: object):
    return type("Asked", (), {"dry": True, "model": "default", "new_tokens": 1, **changes})()


def test_a_part_without_its_packages_or_files_is_unmeasured_and_the_others_go_on(monkeypatch):
    monkeypatch.setitem(gpu.NEEDS, "kernels", ("torch", "no_such_package"))
    assert "pip install no_such_package" in gpu.attempt("kernels", asked())["unmeasured"]

    def absent(part, asked):
        raise ModuleNotFoundError("No module named 'engine.kernels.none'", name="engine.kernels.none")

    monkeypatch.setattr(gpu, "run_of", absent)
    assert gpu.attempt("attention", asked()) == {"unmeasured": "this version has no engine.kernels.none"}


def test_a_part_that_fails_is_told_and_is_not_ok(monkeypatch):
    monkeypatch.setattr(gpu, "run_of", lambda part, asked: lambda: 1 / 0)
    found = gpu.attempt("attention", asked())
    assert found["ok"] is False and "ZeroDivisionError" in found["failed"] and "Traceback" in found["detail"]


def test_a_result_is_kept_under_the_card_s_name():
    assert gpu.slug("NVIDIA H200") == "h200" and gpu.slug("NVIDIA RTX 4090 (x)") == "rtx_4090_x"
