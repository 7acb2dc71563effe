"""`servescope bench peers`: with programs that only look like peers, so that what is tested is the race itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf.quants import dequantize

from app.__main__ import main
from app.bench import peer_weights, peers
from app.bench.peer_report import OURS, compare
from app.bench.peer_servers import Disturbance
from engine.model.gguf_file import GgufFile
from tests.support import fake_peer, gguf_files, tiny_models

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def simple(monkeypatch, tmp_path):
    """Neither weights nor an engine: `convert` and `of_ours` give what they would."""

    def ours(_args, points, disturbed):
        sample = {point.name: 100.0 for point in points}
        return sample | (dict.fromkeys(peers.DISTURBED, 20.0) if disturbed else {})

    weights = peers.Weights(tmp_path / "m.gguf", "Q4_1", 1000, tmp_path / "hf", tmp_path / "bf16.gguf")
    monkeypatch.setattr(peers, "convert", lambda _args, _folder: weights)
    monkeypatch.setattr(peers, "of_ours", ours)
    monkeypatch.setattr(peers, "DISTURBANCE", Disturbance(2, 8, 250, 16))  # light, and long: machines may be busy


def assert_all_gone(folder: Path, count: int) -> None:
    started = fake_peer.pids(folder)
    assert len(started) == count and not any(fake_peer.alive(pid) for pid in started)


@pytest.mark.slow
def test_all_peers_at_a_point_and_under_a_newcomer(simple, tmp_path, capsys):
    server = fake_peer.write_program(tmp_path / "llama" / "llama-server")
    fake_peer.write_program(tmp_path / "llama" / "llama-batched-bench")
    fake_peer.write_program(tmp_path / "env" / "bin" / "python")
    words = ["--vllm", str(tmp_path / "env"), "--llama-server", str(server), "--pairs", "2", "--json"]
    assert main(["bench", "peers", *words, "--points", "decode_1,prefill_1024,interference"]) == 0
    found = json.loads(capsys.readouterr().out)
    served = ["vLLM", "llama.cpp Q4_1", "llama.cpp BF16"]
    offline = ["vLLM offline", "llama.cpp Q4_1 offline", "llama.cpp BF16 offline"]
    point = found["points"]["decode_1"]
    assert set(point["values"]) == {OURS, *served, *offline} and all(len(v) == 2 for v in point["values"].values())
    assert point["medians"]["llama.cpp BF16 offline"] == 40.25 and point["medians"]["vLLM offline"] == 50.0
    assert point["ratios"]["vLLM offline"]["median"] == 2.0
    assert found["points"]["prefill_1024"]["medians"]["llama.cpp Q4_1 offline"] == 500.5
    assert point["best_served_peer"] in served
    assert set(found["interference"]["ttft_ms"]["values"]) == {OURS, *served}  # a newcomer needs a server
    assert found["versions"]["vLLM"] == "1.2.3" and found["versions"]["llama.cpp"] == "7 (fake)"
    assert found["machine"]["cores"] and len(found["machine"]["busy_before_pairs"]) == 2
    assert_all_gone(tmp_path / "llama", 2)
    assert_all_gone(tmp_path / "env" / "bin", 2)


def test_in_words(simple, tmp_path, capsys):
    server = fake_peer.write_program(tmp_path / "llama-server")
    words = ["--llama-server", str(server), "--pairs", "1", "--points", "decode_1", "--llama-bf16", str(server)]
    assert main(["bench", "peers", *words]) == 0
    streams = capsys.readouterr()
    assert "llama.cpp BF16" in streams.out and "best peer" in streams.out and "without" in streams.out
    assert "pair 1 of 1: llama.cpp Q4_1" in streams.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "--vllm ENV"),
        (["--vllm", "/no/such/env"], "/no/such/env"),
        (["--llama-server", "/no/such/server"], "/no/such/server"),
        (["--llama-server", sys.executable, "--llama-bf16", "/no/such.gguf"], "/no/such.gguf"),
        (["--llama-server", sys.executable, "--points", "decode_9"], "decode_9"),
        (["--llama-server", sys.executable, "--pairs", "0"], "--pairs"),
        (["--llama-server", sys.executable, "--threads", "9999"], "--threads"),
    ],
)
def test_wrong_words_are_one_line(words, named, capsys):
    assert main(["bench", "peers", *words]) == 2
    said = capsys.readouterr().err
    assert named in said and said.count("\n") == 1


def test_an_environment_without_vllm_is_one_line(simple, tmp_path, capsys):
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        "#!/bin/sh\necho 'Traceback' >&2\necho \"ModuleNotFoundError: No module named 'vllm'\" >&2\nexit 1\n"
    )
    python.chmod(0o755)
    assert main(["bench", "peers", "--vllm", str(tmp_path / "env"), "--pairs", "1"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "servescope bench peers: vLLM ended with 1: ModuleNotFoundError: No module named 'vllm'"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_stops_what_it_started(tmp_path, number, code):
    gguf = tmp_path / "tiny.gguf"
    gguf_files.write(gguf, tiny_models.make(tiny_models.config_of("llama", True)))
    server = fake_peer.write_program(tmp_path / "llama-server", ready=False)
    command = [sys.executable, "-m", "app", "bench", "peers", "--llama-server", str(server), "--model", str(gguf)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, start_new_session=True) as process:
        deadline = time.monotonic() + 120
        while not fake_peer.pids(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(process.pid, number)
        try:
            assert process.wait(30) == code
        except BaseException:  # lest leaving the block waits for it
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        assert b"Traceback" not in process.stderr.read()
    assert_all_gone(tmp_path, 1)


def test_a_ratio_is_taken_pair_by_pair_and_the_best_peer_has_the_best_median():
    samples = {
        OURS: [{"rate": 10.0, "gap": 10.0}, {"rate": 20.0, "gap": 10.0}, {"rate": 30.0, "gap": 10.0}],
        "a": [{"rate": 10.0, "gap": 5.0}, {"rate": 10.0, "gap": 5.0}, {"rate": 10.0, "gap": 5.0}],
        "b offline": [{"rate": 20.0}, {"rate": 20.0}, {"rate": 5.0}],
    }
    rate = compare(samples, "rate", "tokens/s")
    assert rate["ratios"]["a"]["median"] == 2.0 and (rate["ratios"]["a"]["min"], rate["ratios"]["a"]["max"]) == (1, 3)
    assert rate["best_peer"] == "b offline" and rate["best_ratio"]["median"] == 1.0
    assert rate["best_served_peer"] == "a" and rate["best_served_ratio"]["median"] == 2.0
    gap = compare(samples, "gap", "ms")
    assert gap["best_peer"] == "a" and gap["best_ratio"]["median"] == 2.0 and "b offline" not in gap["values"]


@pytest.mark.parametrize("tied", [True, False])
def test_peers_get_the_very_weights_of_the_file(tmp_path, monkeypatch, tied):
    from transformers import AutoModelForCausalLM

    from engine.model import gguf_tokenizer

    class NoTokenizer:
        eos_token = "</s>"

        class tokenizer:
            @staticmethod
            def save(path):
                Path(path).write_text("{}")

    model = tiny_models.make(tiny_models.config_of("llama", tied, num_attention_heads=4, num_key_value_heads=2,
                                                   hidden_size=64, intermediate_size=96))  # fmt: skip
    gguf = tmp_path / "m.gguf"
    gguf_files.write(gguf, model, gguf_files.T.Q4_1)
    monkeypatch.setattr(gguf_tokenizer, "build", lambda *_: NoTokenizer)
    about = peer_weights.main(str(gguf), tmp_path, [peer_weights.HUGGING_FACE, peer_weights.BF16])
    assert about == {"gguf": str(gguf), "vocabulary": tiny_models.VOCABULARY, "type": "Q4_1"}

    source, made = GgufFile(gguf), GgufFile(tmp_path / peer_weights.BF16)
    assert list(made.tensors) == list(source.tensors)
    for name in source.tensors:
        wanted = torch.from_numpy(source.read(name))
        wanted = wanted.bfloat16().float() if wanted.ndim > 1 else wanted
        np.testing.assert_array_equal(made.read(name), wanted.numpy())
    assert {k: v for k, v in made.fields.items() if "file_type" not in k} == {
        k: v for k, v in source.fields.items() if "file_type" not in k
    }

    def as_peers_have_it(values: np.ndarray) -> np.ndarray:
        kind = gguf_files.T.Q4_1
        read = dequantize(gguf_files.encode(values, kind), kind).reshape(values.shape)
        return torch.from_numpy(read).bfloat16().float().numpy()

    gguf_files.rounded(model, as_peers_have_it)
    with torch.no_grad():
        for parameter in model.parameters():  # vectors are bfloat16 in this form too
            parameter.copy_(parameter.bfloat16())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / peer_weights.HUGGING_FACE, dtype=torch.float32)
    for name, parameter in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], parameter, rtol=0, atol=0)
    tokens = list(range(20))
    torch.testing.assert_close(tiny_models.logits(loaded, tokens), tiny_models.logits(model, tokens), rtol=0, atol=1e-5)
