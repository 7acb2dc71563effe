"""Packed weights: a file's own numbers to the last bit, or rounded to 8 bits; and what can't be had, and why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from transformers import PreTrainedModel

from engine.cpu.packed_matrix import PackedMatrix, dequantise, quantise
from engine.model import packed_weights, weights
from engine.model.gguf_blocks import take_apart
from engine.model.packed_weights import PackedWeights, load_packed, why_not_packed
from engine.model.problem import ModelProblem
from engine.model.store import ModelFiles, resolve
from engine.model.tensor_plan import open_planned
from engine.model.weights import Weights
from tests.support import gguf_files, tiny_models

T = GGMLQuantizationType
# rows of whole groups of 32
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 16}  # fmt: skip
PARTS = list(packed_weights.PackedLayer.__dataclass_fields__)


def model_of(kind: str, tied: bool = False, **changes: object) -> PreTrainedModel:
    return tiny_models.make(tiny_models.config_of(kind, tied, **{**SIZES, **changes}))


def gguf(path: Path, kind: T, architecture: str = "llama", tied: bool = False) -> ModelFiles:
    gguf_files.write(path, model_of(architecture, tied), kind, architecture)
    return ModelFiles("gguf", path, path, path.name)


def directory(path: Path, kind: str = "llama", tied: bool = False, **changes: object) -> ModelFiles:
    tiny_models.save(path, kind, tied, **{**SIZES, **changes})
    return ModelFiles("hf", path, path, path.name)


def mixed(path: Path, types: dict[str, T], **changes: object) -> ModelFiles:
    """A Q4_1 file in which the tensors that are named (without .weight) have other types."""
    write = gguf_files.GGUFWriter.add_tensor
    original = model_of("llama", **changes)

    def add(writer, name: str, data: np.ndarray, raw_dtype: T = T.F32) -> None:
        kind = types.get(name.removesuffix(".weight"))
        if kind is not None:
            data, raw_dtype = gguf_files.encode(plain[name], kind), kind
        write(writer, name, data, raw_dtype=raw_dtype)

    plain: dict[str, np.ndarray] = {}

    def keep(name: str, values: np.ndarray) -> np.ndarray:
        plain[name] = values
        return values

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_files.GGUFWriter, "add_tensor", add)
        gguf_files.write(path, original, T.Q4_1, change=keep)
    return ModelFiles("gguf", path, path, path.name)


def reference(files: ModelFiles) -> Weights:
    return weights.load(files, torch.float32, torch.device("cpu"))[1]


def unpacked(part: PackedMatrix | np.ndarray | None) -> np.ndarray | None:
    return dequantise(part) if isinstance(part, PackedMatrix) else part


def assert_equal(got: PackedWeights, wanted: Weights) -> None:
    """Every number, to the last bit."""
    for name in ("embedding", "norm", "head", "inverse_frequencies"):
        np.testing.assert_array_equal(unpacked(getattr(got, name)), getattr(wanted, name).numpy())
    assert len(got.layers) == len(wanted.layers)
    for mine, theirs in zip(got.layers, wanted.layers, strict=True):
        for name in PARTS:
            part, other = unpacked(getattr(mine, name)), getattr(theirs, name)
            assert (part is None) == (other is None), name
            if part is not None:
                assert part.dtype == np.float32
                np.testing.assert_array_equal(part, other.numpy(), err_msg=name)
    assert got.parameters == wanted.parameters


def why_not(files: ModelFiles, form: packed_weights.Form) -> str:
    why = why_not_packed(open_planned(files), form)
    with pytest.raises(ModelProblem) as caught:
        load_packed(files, form)
    assert why and why in str(caught.value) and "auto" in str(caught.value)
    return why


# --- as in the file ---


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", [T.Q4_0, T.Q4_1, T.Q8_0])
def test_every_type_is_taken_over_number_for_number(tmp_path: Path, kind: T, tied: bool):
    files = gguf(tmp_path / "x.gguf", kind, tied=tied)
    config, got = load_packed(files, "file")
    assert_equal(got, reference(files))
    assert got.form == kind.name and config.layers == 3
    assert (got.head is got.embedding) == tied
    assert got.layers[0].qkv.bits == (8 if kind == T.Q8_0 else 4)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_every_architecture(tmp_path: Path, architecture: str):
    """Llama's q and k rows are put back in order, Qwen2 has biases, Qwen3 norms on each head."""
    files = gguf(tmp_path / "x.gguf", T.Q4_1, architecture)
    got = load_packed(files, "file")[1]
    assert_equal(got, reference(files))
    assert (got.layers[0].qkv_bias is not None) == (architecture == "qwen2")
    assert (got.layers[0].qk_norm is not None) == (architecture == "qwen3")


def test_every_byte_of_a_block(tmp_path: Path):
    """Random bytes in place of weights: codes that no writer makes, such as −128 in Q8_0."""
    random = np.random.default_rng(0)
    scales = {T.Q4_0: 1, T.Q4_1: 2, T.Q8_0: 1}
    for kind, halves in scales.items():
        size = {T.Q4_0: 18, T.Q4_1: 20, T.Q8_0: 34}[kind]
        data = random.integers(0, 256, (48, 3, size), np.uint8)
        data[:, :, : 2 * halves] = random.normal(size=(48, 3, halves)).astype("<f2").view(np.uint8)
        got = packed_weights._pack(take_apart(data, kind.name))
        np.testing.assert_array_equal(dequantise(got), dequantize(data.reshape(48, -1), kind))


def test_an_embedding_of_another_type(tmp_path: Path):
    files = mixed(tmp_path / "x.gguf", {"token_embd": T.Q8_0})
    got = load_packed(files, "file")[1]
    assert_equal(got, reference(files))
    assert got.form == "Q4_1" and got.embedding.bits == 8 and got.head.bits == 4


@pytest.mark.slow
def test_the_default_model():
    files = resolve("default")
    got = load_packed(files, "file")[1]
    assert_equal(got, reference(files))
    assert got.form == "Q4_1" and got.head is got.embedding
    assert {array.codes.ctypes.data % 64 for layer in got.layers for array in (layer.qkv, layer.down)} == {0}


def test_bytes_are_those_of_the_blocks(tmp_path: Path):
    """Of rows that fill their tiles, what the file takes: 20 bytes for 32 weights in Q4_1."""
    got = load_packed(gguf(tmp_path / "x.gguf", T.Q4_1), "file")[1]
    layer = got.layers[0]
    norms = layer.attention_norm.nbytes + layer.mlp_norm.nbytes
    assert layer.bytes == norms + 64 * (128 + 64 + 2 * 96 + 96) * 20 // 32
    assert got.bytes == sum(each.bytes for each in got.layers) + got.norm.nbytes + 2 * 112 * 64 * 20 // 32
    tied = load_packed(gguf(tmp_path / "y.gguf", T.Q4_1, tied=True), "file")[1]
    assert tied.bytes == got.bytes - 112 * 64 * 20 // 32


# --- rounded to 8 bits ---


@pytest.mark.parametrize("kind", ["llama3", "qwen2", "qwen3"])
def test_int8_of_a_directory(tmp_path: Path, kind: str):
    files = directory(tmp_path, kind)
    got, wanted = load_packed(files, "int8")[1], reference(files)
    assert got.form == "int8" and got.parameters == wanted.parameters
    for mine, theirs in zip(got.layers, wanted.layers, strict=True):
        for name in PARTS:
            part, other = getattr(mine, name), getattr(theirs, name)
            if isinstance(part, PackedMatrix):
                other = dequantise(quantise(other.numpy()))
                np.testing.assert_array_equal(dequantise(part), other)
            elif part is not None:
                np.testing.assert_array_equal(part, other.numpy())
    np.testing.assert_array_equal(got.inverse_frequencies, wanted.inverse_frequencies.numpy())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_int8_of_half_a_float(tmp_path: Path, dtype: torch.dtype):
    model = model_of("llama").to(dtype)
    model.save_pretrained(tmp_path)
    got = load_packed(ModelFiles("hf", tmp_path, tmp_path, "x"), "int8")[1]
    head, norm = (tensor.float().detach().numpy() for tensor in (model.lm_head.weight, model.model.norm.weight))
    np.testing.assert_array_equal(dequantise(got.head), dequantise(quantise(head)))
    np.testing.assert_array_equal(got.norm, norm)


def test_int8_of_a_file_takes_over_what_is_8_bits_already(tmp_path: Path):
    files = mixed(tmp_path / "x.gguf", {"token_embd": T.Q8_0})
    got, wanted = load_packed(files, "int8")[1], reference(files)
    np.testing.assert_array_equal(dequantise(got.embedding), wanted.embedding.numpy())
    np.testing.assert_array_equal(dequantise(got.layers[1].down), dequantise(quantise(wanted.layers[1].down.numpy())))


def test_rounding_in_pieces_is_rounding(monkeypatch: pytest.MonkeyPatch):
    weight = np.random.default_rng(1).normal(size=(101, 64)).astype(np.float32)
    monkeypatch.setattr(packed_weights, "CHUNK", 40 * 64)  # two tiles, and five rows in the last
    got, wanted = packed_weights._by_tiles(weight, quantise), quantise(weight)
    np.testing.assert_array_equal(got.codes, wanted.codes)
    np.testing.assert_array_equal(got.scales, wanted.scales)
    assert (got.rows, got.columns, got.bits) == (wanted.rows, wanted.columns, wanted.bits)


def test_progress_grows_to_the_whole(tmp_path: Path):
    seen: list[tuple[str, int, int]] = []
    load_packed(directory(tmp_path), "int8", lambda *p: seen.append(p))
    done = [d for _, d, _ in seen]
    assert done == sorted(done) and done[-1] == seen[-1][2] > 0


# --- what can't be had ---


def test_a_directory_holds_nothing_packed(tmp_path: Path):
    assert "F32" in why_not(directory(tmp_path), "file")


def test_types_without_a_product(tmp_path: Path):
    why = why_not(mixed(tmp_path / "x.gguf", {"output": T.F16}), "file")
    assert "lm_head.weight is F16" in why and "Q4_0, Q4_1, Q8_0" in why
    assert why_not_packed(open_planned(ModelFiles("gguf", tmp_path / "x.gguf", tmp_path, "x")), "int8") is None


def test_parts_of_one_matrix_of_different_widths(tmp_path: Path):
    assert "q, k and v of layer 1" in why_not(mixed(tmp_path / "x.gguf", {"blk.1.attn_v": T.Q8_0}), "file")
    assert "gate and up of layer 0" in why_not(mixed(tmp_path / "y.gguf", {"blk.0.ffn_up": T.Q8_0}), "file")


def test_layers_of_different_widths(tmp_path: Path):
    assert "down" in why_not(mixed(tmp_path / "x.gguf", {"blk.2.ffn_down": T.Q8_0}), "file")


def test_two_types_of_four_bits_go_together(tmp_path: Path):
    files = mixed(tmp_path / "x.gguf", {"blk.1.attn_v": T.Q4_0, "blk.2.ffn_down": T.Q4_0})
    assert_equal(load_packed(files, "file")[1], reference(files))


def test_shapes(tmp_path: Path):
    assert "8 numbers wide" in why_not(directory(tmp_path / "narrow", head_dim=8), "int8")
    assert "80 numbers long" in why_not(directory(tmp_path / "long", intermediate_size=80), "int8")
