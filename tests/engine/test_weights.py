"""Hugging Face directories: what is refused, and with which words; how weights come in."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.model.architecture import from_huggingface
from engine.model.problem import ModelProblem
from engine.model.store import ModelFiles
from engine.model.weights import Weights, load
from tests.support import tiny_models

CPU = torch.device("cpu")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tiny_models.save(tmp_path, "llama", tied=False)
    return tmp_path


def weights_of(directory: Path, dtype: torch.dtype = torch.float32) -> Weights:
    return load(ModelFiles("hf", directory, directory, "tiny"), dtype, CPU)[1]


def problem(directory: Path) -> str:
    with pytest.raises(ModelProblem) as caught:
        weights_of(directory)
    return str(caught.value)


def edit_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def edit_tensors(directory: Path, changes: dict[str, torch.Tensor | None]) -> None:
    path = directory / "model.safetensors"
    tensors = {**load_file(path), **changes}
    save_file({k: v for k, v in tensors.items() if v is not None}, path)


# --- what comes in ---


def test_projections_are_fused_in_order(directory: Path):
    stored = load_file(directory / "model.safetensors")
    layer = weights_of(directory).layers[1]
    at = "model.layers.1."
    assert torch.equal(layer.qkv, torch.cat([stored[f"{at}self_attn.{n}_proj.weight"] for n in "qkv"]))
    assert torch.equal(layer.gate_up, torch.cat([stored[f"{at}mlp.{n}_proj.weight"] for n in ("gate", "up")]))


def test_parameters_are_counted_once(tmp_path: Path):
    for tied in (False, True):
        model = tiny_models.save(tmp_path / str(tied), "qwen3", tied)
        assert weights_of(tmp_path / str(tied)).parameters == model.num_parameters()


def test_shards(tmp_path: Path):
    model = tiny_models.make(tiny_models.config_of("qwen2", tied=False))
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert torch.equal(weights_of(tmp_path).head, model.lm_head.weight)


def test_bfloat16_checkpoint_in_float32_is_exact(directory: Path):
    stored = load_file(directory / "model.safetensors")
    edit_tensors(directory, {name: t.bfloat16() for name, t in stored.items()})
    assert torch.equal(weights_of(directory).head, stored["lm_head.weight"].bfloat16().float())


def test_a_tied_model_may_bring_a_copy_of_its_head(tmp_path: Path):
    tiny_models.save(tmp_path, "llama", tied=True)
    edit_tensors(tmp_path, {"lm_head.weight": torch.zeros(tiny_models.VOCABULARY, 48)})
    weights = weights_of(tmp_path)
    assert weights.head is weights.embedding


def test_progress_grows_to_the_whole(directory: Path):
    seen: list[tuple[str, int, int]] = []
    load(ModelFiles("hf", directory, directory, "tiny"), torch.float32, CPU, lambda *p: seen.append(p))
    done = [d for _, d, _ in seen]
    assert done == sorted(done) and done[-1] == seen[-1][2] > 0


# --- what is refused ---


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model_type": "gemma3"}, "gemma3"),
        ({"model_type": "mixtral"}, "mixtral"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "yarn"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "factor"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_attention_heads": "many"}, "config.json"),
        ({"num_attention_heads": 0}, "inconsistent"),
        ({"num_attention_heads": 0, "head_dim": None}, "config.json"),
        ({"quantization_config": "none"}, "config.json"),
        ({"rope_parameters": "none"}, "config.json"),
        ({"num_key_value_heads": 5}, "inconsistent"),
        ({"hidden_size": 52}, "shape"),
        ({"num_hidden_layers": 4}, "lacks"),
        ({"num_hidden_layers": 2}, "no place"),
        ({"attention_bias": True}, "q_proj.bias"),
    ],
)
def test_descriptions_that_do_not_fit(directory: Path, changes: dict, word: str):
    edit_config(directory, **changes)
    assert word in problem(directory)


def test_config_that_is_no_json(directory: Path):
    (directory / "config.json").write_text("{")
    assert "config.json" in problem(directory)
    (directory / "config.json").write_text("[]")
    assert "config.json" in problem(directory)
    (directory / "config.json").unlink()
    assert "config.json" in problem(directory)


def test_missing_extra_and_misshapen_tensors_are_named(directory: Path):
    name = "model.layers.2.mlp.down_proj.weight"
    edit_tensors(directory, {name: torch.zeros(48, 81)})
    assert name in problem(directory)
    edit_tensors(directory, {name: None})
    assert name in problem(directory)
    edit_tensors(directory, {name: torch.zeros(48, 80), "model.layers.0.self_attn.sinks": torch.zeros(6)})
    assert "sinks" in problem(directory)


def test_integer_tensors_are_refused(directory: Path):
    edit_tensors(directory, {"lm_head.weight": torch.zeros(97, 48, dtype=torch.int8)})
    assert "I8" in problem(directory)


def test_truncated_and_corrupt_safetensors(directory: Path):
    path = directory / "model.safetensors"
    whole = path.read_bytes()
    for damaged in (b"", whole[:5], whole[:200], whole[:-100], b"\xff" * 64 + whole[64:]):
        path.write_bytes(damaged)
        assert "fetch it again" in problem(directory)


def test_a_missing_shard_is_named(tmp_path: Path):
    tiny_models.make(tiny_models.config_of("llama", tied=False)).save_pretrained(tmp_path, max_shard_size="50KB")
    gone = min(tmp_path.glob("model-*.safetensors"))
    gone.unlink()
    assert gone.name in problem(tmp_path)


def test_an_index_may_not_lead_out_of_its_directory(directory: Path):
    index = {"weight_map": {"lm_head.weight": "../model.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "outside" in problem(directory)


def test_a_damaged_index(directory: Path):
    for text in ("{", "[]", '{"weight_map": 3}', "{}"):
        (directory / "model.safetensors.index.json").write_text(text)
        assert "index.json" in problem(directory)


def test_pickles_are_never_opened(directory: Path, tmp_path: Path):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    (directory / "model.safetensors").unlink()
    assert "no model.safetensors" in problem(directory)
    (directory / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    assert "pickled" in problem(directory)
    assert not (tmp_path / "ran").exists()


def test_sliding_windows():
    base = {**tiny_models.SIZES, "model_type": "mistral"}
    assert from_huggingface({**base, "sliding_window": 100}).max_positions == 100
    assert from_huggingface({**base, "sliding_window": 4096}).max_positions == 512
    assert from_huggingface({**base, "sliding_window": None}).max_positions == 512
    qwen = {**base, "model_type": "qwen2", "sliding_window": 100}
    assert from_huggingface(qwen).max_positions == 512
    assert from_huggingface({**qwen, "use_sliding_window": True}).max_positions == 100
