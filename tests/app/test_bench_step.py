"""The step bench over tiny models: its parts make up the step, its roofline is the formula, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.__main__ import main
from engine.cpu.forward import OPS
from engine.cpu.speed import byte_products, read_bandwidth
from tests.support.tiny_directory import make_directory

WHOLE_GROUPS = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
                "head_dim": 16}  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return make_directory(tmp_path_factory.mktemp("tiny"), **WHOLE_GROUPS)


def bench(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["bench", "step", *arguments]))
    captured = capsys.readouterr()
    assert ended.value.code == 0, captured.err
    return captured.out


@pytest.mark.slow
@pytest.mark.parametrize("form", ["int8", "float32"])
def test_parts_and_roofline(directory: Path, form: str, capsys: pytest.CaptureFixture):
    load = ("--streams", "1", "3", "--steps", "5", "--prompt-tokens", "9")
    answer = json.loads(bench(capsys, "--model", str(directory), "--dtype", form, "--threads", "2", *load, "--json"))
    assert answer["dtype"] == form and answer["device"] == "CPU, 2 threads" and answer["products_per_s"] > 1e8
    assert [batch["streams"] for batch in answer["batches"]] == [1, 3]
    for batch in answer["batches"]:
        assert set(batch["parts_ms"]) == {"schedule", "prepare", "forward", "sample", "record"}
        assert set(batch["forward_ms"]) == (set(OPS) if form == "int8" else {"model"})
        assert all(value >= 0 for value in batch["parts_ms"].values())
        assert batch["step_ms"] >= max(batch["parts_ms"].values())
        assert 9 < batch["context"] < 9 + 64
        # 3 layers of 64 · (4 + 2 · 2) · 16 + 64 · 64 + 3 · 64 · 96 weights, and the head
        assert batch["products"] == batch["streams"] * (3 * (64 * 128 + 64 * 64 + 3 * 64 * 96) + 97 * 64)
        read = batch["bytes"] / batch["bytes_per_s"], batch["products"] / answer["products_per_s"]
        assert batch["ceiling_ms"] == pytest.approx(1e3 * max(read), abs=1e-4)
        assert batch["bound"] == ("bytes" if read[0] >= read[1] else "products")
    one, three = answer["batches"]
    assert three["bytes"] > one["bytes"] > 64 * 97


@pytest.mark.slow
def test_in_words(directory: Path, capsys: pytest.CaptureFixture):
    told = bench(capsys, "--model", str(directory), "--dtype", "int8", "--streams", "2", "--steps", "3")
    for word in ("schedule", "prepare", "gate_up", "attention", "sample", "record", "of the roofline"):
        assert word in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda"], "measures the CPU"),
        (["--set", "max_batch=2"], "chooses the settings itself"),
        (["--streams", "0"], "--streams 0"),
        (["--steps", "0"], "--steps 0"),
    ],
)
def test_what_it_refuses(arguments: list[str], message: str, capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["bench", "step", *arguments]))
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_a_form_that_cannot_be_had_is_said(tmp_path: Path, capsys: pytest.CaptureFixture):
    path = make_directory(tmp_path)
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["bench", "step", "--model", str(path), "--dtype", "file"]))
    assert ended.value.code == 1 and "bench step: " in capsys.readouterr().err


def test_ceilings_are_those_of_a_computer():
    assert 1e8 < read_bandwidth(1, 1 << 24) < 1e13
    assert 1e8 < byte_products(1) < 1e13
