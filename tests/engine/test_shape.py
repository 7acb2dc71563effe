"""A description read without torch says what the loader's own reading says; a broken one is told in one line."""

from __future__ import annotations

import json
import os
from importlib.resources import files

import pytest

from engine.model import architecture
from engine.model.problem import ModelProblem
from engine.model.tensor_plan import Planned, make_plan
from engine.shape import KINDS, LONGEST_FILE, BadDescription, from_config, read_config
from tests.support.tiny_models import KINDS as TINY
from tests.support.tiny_models import config_of

GOOD = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 512,
}  # fmt: skip


def presets() -> list[dict]:
    listed = json.loads((files("assets") / "calculator" / "models.json").read_text("utf-8"))
    return [one["config"] for one in listed if one["config"]["model_type"] in KINDS]


def test_the_kinds_are_the_loaders():
    assert {kind: switches[:2] for kind, switches in architecture.ARCHITECTURES.items()} == KINDS


CONFIGS = [
    *presets(),
    *(config_of(kind, tied).to_dict() for kind in TINY for tied in (False, True)),
    GOOD | {"attention_bias": True, "mlp_bias": True},
    GOOD | {"model_type": "qwen3", "attention_bias": True, "head_dim": 16},
    GOOD | {"model_type": "mistral", "mlp_bias": True},
    GOOD | {"num_key_value_heads": None, "head_dim": None},
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["model_type"])
def test_the_loader_reads_the_same(config):
    ours, loaders = from_config(config).shape, architecture.from_huggingface(config)
    for name in ours.__dataclass_fields__:
        if name not in ("kind", "max_positions"):  # the loader's ends at a sliding window
            assert getattr(ours, name) == getattr(loaders, name), name
    assert ours.parameters == Planned(_Source(loaders), make_plan(loaders)).parameters


class _Source:
    def __init__(self, config):
        self.config = config


def test_a_sliding_window_is_noted():
    found = from_config(GOOD | {"model_type": "mistral", "sliding_window": 128})
    assert found.shape.max_positions == 512 and "sliding window of 128" in found.notes[0]
    assert not from_config(GOOD | {"model_type": "qwen2", "sliding_window": 128}).notes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "falcon"}, "falcon is no kind that this engine loads"),
        ({"quantization_config": {"quant_method": "awq"}}, "stored quantised (awq)"),
        ({"quantization_config": "?"}, "stored quantised (unknown)"),
    ],
)
def test_what_the_engine_would_not_load_is_calculated_and_noted(changes, words):
    found = from_config(GOOD | changes)
    assert words in found.notes[0] and found.shape.kv_heads == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 0}, {"num_hidden_layers": -1}, {"num_hidden_layers": "many"}, {"hidden_size": []},
        {"hidden_size": float("nan")}, {"hidden_size": float("inf")}, {"vocab_size": 10**400},
        {"num_attention_heads": 0}, {"num_key_value_heads": 3}, {"num_attention_heads": None}, {"layer_types": 5},
        {"sliding_window": [1], "model_type": "mistral"}, {"sliding_window": "x", "model_type": "mistral"},
        {"kv_lora_rank": 512}, {"num_local_experts": 8}, {"layer_types": ["full_attention", "linear_attention"]},
        {"model_type": "x" * 10_000, "hidden_size": 0}, {"hidden_size": "\ud800\n\u202e" * 500},
    ],
)  # fmt: skip
def test_a_broken_description_is_refused_in_one_line(changes):
    with pytest.raises(BadDescription) as refused:
        from_config(GOOD | changes)
    line = str(refused.value)
    assert line.isprintable() and len(line) < 200


@pytest.mark.parametrize("key", [key for key in GOOD if key not in ("model_type", "num_key_value_heads")])
def test_a_missing_key_is_named(key):
    with pytest.raises(BadDescription, match=f"lacks '{key}'"):
        from_config({k: v for k, v in GOOD.items() if k != key})


def test_what_is_refused_is_refused_by_the_loader_too():
    """Where both read a kind, nothing is taken here whose sizes the loader finds impossible."""
    for changes in ({"hidden_size": 0}, {"num_key_value_heads": 3}, {"vocab_size": 1 << 31}, {"hidden_size": "x"}):
        with pytest.raises(ModelProblem):
            architecture.from_huggingface(GOOD | changes)
        with pytest.raises(BadDescription):
            from_config(GOOD | changes)


# --- files ---


def test_a_file_or_its_directory(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(GOOD))
    assert read_config(folder) == read_config(folder / "config.json")
    assert read_config(folder).name == "my-model"


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[1, 2]", b"null", b"\xff\xfe\x00", b"[" * 200_000, b'{"a": ' * 50_000, b"9" * 5_000, b"NaN",
     b'{"model_type": "\\ud800"}', b" " * (LONGEST_FILE + 1)],
)  # fmt: skip
def test_a_hostile_file_is_refused_in_one_line(tmp_path, data):
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(BadDescription) as refused:
        read_config(tmp_path / "config.json")
    assert str(refused.value).isprintable() and len(str(refused.value)) < 200


def test_what_is_no_file(tmp_path):
    with pytest.raises(BadDescription, match="no file"):
        read_config(tmp_path / "absent.json")
    with pytest.raises(BadDescription, match="no file"):
        read_config(tmp_path)
    with pytest.raises(BadDescription, match="no file"):
        read_config(tmp_path / "nul\0byte")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(BadDescription, match="no file"):
            read_config(tmp_path / "pipe")
