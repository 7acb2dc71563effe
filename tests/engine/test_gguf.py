"""GGUF files: every number as the format defines it, every model as transformers runs it, every fault named."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize
from transformers import PreTrainedModel

from engine.config import EngineConfig, LiveSettings
from engine.model.gguf_file import GgufFile
from engine.model.problem import ModelProblem
from engine.model.store import ModelFiles
from engine.runner.base import Runner
from engine.runner.build import build_runner
from tests.support import gguf_files, gguf_scalars, tiny_models
from tests.support.paged import Driven, Driver

T = GGMLQuantizationType
# rows of whole blocks of 32
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 16}


def oracle_of(kind: str, tied: bool = False, **changes: object) -> PreTrainedModel:
    return tiny_models.make(tiny_models.config_of(kind, tied, **{**SIZES, **changes}))


def load(path: Path) -> Runner:
    config = EngineConfig(dtype="float32", device="cpu", threads=1, settings=LiveSettings(kv_blocks=32))
    return build_runner(config, ModelFiles("gguf", path, path, path.name))


def assert_same_logits(path: Path, oracle: PreTrainedModel) -> None:
    prompt = np.random.default_rng(0).integers(0, tiny_models.VOCABULARY, 80).tolist()
    (got,) = Driver(load(path)).run([(Driven(prompt), 80)])
    torch.testing.assert_close(got, tiny_models.logits(oracle, prompt), rtol=1e-5, atol=2e-5)


# --- numbers ---


def one_tensor(path: Path, data: np.ndarray, kind: T) -> np.ndarray:
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("x", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path).read("x")


@pytest.mark.parametrize("kind", list(gguf_scalars.BLOCK))
def test_quantised_bytes_made_by_hand(tmp_path: Path, kind: T):
    """Random bytes with sane halves: every bit pattern of scales, minima and quants occurs."""
    random = np.random.default_rng(int(kind))
    numbers, size = gguf_scalars.BLOCK[kind]
    data = random.integers(0, 256, (6, 5 * size), dtype=np.uint8)
    halves = {T.Q4_1: (0, 2), T.Q4_K: (0, 2), T.Q6_K: (208,)}.get(kind, (0,))
    for row in data:
        for block in range(5):
            for at in halves:
                struct.pack_into("<e", row, block * size + at, random.normal() * 0.1)
    got = one_tensor(tmp_path / "x.gguf", data, kind)
    assert got.shape == (6, 5 * numbers) and got.dtype == np.float32
    np.testing.assert_allclose(got, gguf_scalars.decode(data, kind), rtol=1e-6, atol=1e-6)


def test_a_tensor_longer_than_a_chunk(tmp_path: Path):
    values = np.random.default_rng(1).normal(size=(1100, 1024)).astype(np.float32)  # over 2²⁰ numbers
    data = gguf_files.encode(values, T.Q8_0)
    np.testing.assert_array_equal(one_tensor(tmp_path / "x.gguf", data, T.Q8_0), dequantize(data, T.Q8_0))


@pytest.mark.parametrize("kind", [T.F32, T.F16, T.BF16])
def test_plain_numbers_come_through_unchanged(tmp_path: Path, kind: T):
    values = np.random.default_rng(2).normal(size=(7, 64)).astype(np.float32)
    expected = {
        T.F32: values,
        T.F16: values.astype(np.float16).astype(np.float32),
        T.BF16: torch.from_numpy(values).bfloat16().float().numpy(),
    }[kind]
    np.testing.assert_array_equal(one_tensor(tmp_path / "x.gguf", gguf_files.encode(values, kind), kind), expected)


# --- models ---


@pytest.mark.parametrize("kind", [T.F32, T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1])
def test_every_type(tmp_path: Path, kind: T):
    oracle = oracle_of("llama")
    gguf_files.write(tmp_path / "x.gguf", oracle, kind)

    def through_file(values: np.ndarray) -> np.ndarray:
        data = gguf_files.encode(values, kind)
        if kind in gguf_scalars.BLOCK:
            return gguf_scalars.decode(data, kind).astype(np.float32)
        return dequantize(data, kind).astype(np.float32)

    gguf_files.rounded(oracle, through_file)
    assert_same_logits(tmp_path / "x.gguf", oracle)


@pytest.mark.parametrize("kind", [T.Q4_K, T.Q6_K])
def test_k_quants(tmp_path: Path, kind: T):
    """gguf can't write these: each matrix of the model is random bytes, and the oracle gets their numbers."""
    oracle = oracle_of("qwen2", hidden_size=256, intermediate_size=256, num_attention_heads=16)
    random, (numbers, size) = np.random.default_rng(3), gguf_scalars.BLOCK[kind]
    matrices = {}
    for name, parameter in oracle.named_parameters():
        if parameter.dim() > 1:
            data = random.integers(0, 256, (parameter.shape[0], parameter.shape[1] // numbers * size), np.uint8)
            for row in data:
                for start in range(0, data.shape[1], size):
                    scale = 1e-4 if kind == T.Q4_K else 3e-5
                    struct.pack_into("<e", row, start + (0 if kind == T.Q4_K else 208), scale)
                    if kind == T.Q4_K:
                        struct.pack_into("<e", row, start + 2, scale * 7)
            matrices[gguf_files.gguf_name(name)] = data
            parameter.data = torch.from_numpy(gguf_scalars.decode(data, kind).astype(np.float32))
    write_k_quants(tmp_path / "x.gguf", oracle, matrices, kind)
    assert_same_logits(tmp_path / "x.gguf", oracle)


def write_k_quants(path: Path, oracle: PreTrainedModel, matrices: dict[str, np.ndarray], kind: T) -> None:
    original = gguf_files.encode
    waiting = iter(matrices.values())

    def encode(values: np.ndarray, stored: T) -> np.ndarray:
        return next(waiting) if stored == kind else original(values, stored)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_files, "encode", encode)
        gguf_files.write(path, oracle, kind, "qwen2")


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("kind", "architecture"), [("llama", "llama"), ("mistral", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")]
)
def test_every_architecture(tmp_path: Path, kind: str, architecture: str, tied: bool):
    oracle = oracle_of(kind, tied)
    gguf_files.write(tmp_path / "x.gguf", oracle, architecture=architecture)
    assert_same_logits(tmp_path / "x.gguf", oracle)


def test_rope_divisors(tmp_path: Path):
    """Llama 3's scaling comes as a tensor that divides the frequencies."""
    oracle = oracle_of("llama3", attention_bias=False, mlp_bias=False)
    plain = 1.0 / 10_000.0 ** (np.arange(0, 16, 2) / 16)
    divisors = plain / oracle.model.rotary_emb.inv_freq.numpy()
    assert divisors.max() > 7  # some frequencies really are stretched
    gguf_files.write(tmp_path / "x.gguf", oracle, rope_freqs=divisors)
    assert_same_logits(tmp_path / "x.gguf", oracle)


# --- faults ---


def problem(path: Path) -> str:
    with pytest.raises(ModelProblem) as caught:
        load(path)
    return str(caught.value)


def test_truncated_anywhere(tmp_path: Path):
    gguf_files.write(tmp_path / "whole.gguf", oracle_of("llama"))
    whole = (tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for kept in (0, 3, 4, 10, 30, 200, 1000, len(whole) // 2, len(whole) - 40_000):
        path.write_bytes(whole[:kept])
        assert str(path) in problem(path)


def test_damaged_headers_never_crash(tmp_path: Path):
    """Random bytes of the header replaced: a ModelProblem or a model, never another exception."""
    gguf_files.write(tmp_path / "whole.gguf", oracle_of("llama"))
    whole = (tmp_path / "whole.gguf").read_bytes()
    random, path = np.random.default_rng(5), tmp_path / "damaged.gguf"
    for _ in range(150):
        damaged = bytearray(whole)
        for at in random.integers(4, 2500, random.integers(1, 4)):
            damaged[at] = random.integers(0, 256)
        path.write_bytes(damaged)
        try:
            load(path)
        except ModelProblem as error:
            assert str(error)


def test_unsupported_type_is_named(tmp_path: Path):
    oracle = oracle_of("llama")
    gguf_files.write(tmp_path / "x.gguf", oracle, T.Q5_0)
    said = problem(tmp_path / "x.gguf")
    assert "Q5_0" in said and "Q4_K" in said


def test_unsupported_architecture_is_named(tmp_path: Path):
    gguf_files.write(tmp_path / "x.gguf", oracle_of("llama"), architecture="gemma2")
    assert "gemma2" in problem(tmp_path / "x.gguf")


def test_unsupported_rope_scaling_is_named(tmp_path: Path):
    gguf_files.write(tmp_path / "x.gguf", oracle_of("llama"), metadata={"rope.scaling.type": "yarn"})
    assert "yarn" in problem(tmp_path / "x.gguf")


def test_mixture_of_experts_is_refused(tmp_path: Path):
    gguf_files.write(tmp_path / "x.gguf", oracle_of("llama"), metadata={"expert_count": 8})
    assert "experts" in problem(tmp_path / "x.gguf")


def test_missing_tensor_is_named(tmp_path: Path):
    drop = {"blk.1.ffn_up.weight"}
    gguf_files.write(tmp_path / "x.gguf", oracle_of("llama"), change=lambda n, v: None if n in drop else v)
    assert "model.layers.1.mlp.up_proj.weight" in problem(tmp_path / "x.gguf")


def test_wrong_shape_is_named(tmp_path: Path):
    gguf_files.write(
        tmp_path / "x.gguf",
        oracle_of("llama"),
        change=lambda n, v: v[:-32] if n == "blk.0.ffn_gate.weight" else v,
    )
    assert "mlp.gate_proj.weight" in problem(tmp_path / "x.gguf")


def test_damaged_rope_divisors_are_refused(tmp_path: Path):
    gguf_files.write(tmp_path / "x.gguf", oracle_of("llama"), rope_freqs=np.zeros(8))
    assert "rope_freqs" in problem(tmp_path / "x.gguf")
