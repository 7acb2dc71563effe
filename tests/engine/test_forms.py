"""Which form of weights is taken, what is said about it, and what can't be had; with a runner that only holds."""

from __future__ import annotations

import builtins
import sys
import types
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType

from engine.config import EngineConfig, LiveSettings
from engine.model.packed_weights import PackedWeights
from engine.model.problem import ModelProblem
from engine.model.store import ModelFiles
from engine.model.tensor_plan import Planned, open_planned
from engine.runner import forms
from engine.runner.build import build_runner
from engine.runner.forms import PREFERENCE, choose
from tests.support import gguf_files, tiny_models

T = GGMLQuantizationType
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 16}  # fmt: skip
SLOW = "this CPU has no instruction for products of bytes"


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, ModelFiles]:
    """gguf: Q4_1; half: F16; directory: safetensors; narrow: heads that products of bytes don't fit."""
    home = tmp_path_factory.mktemp("models")
    model = tiny_models.make(tiny_models.config_of("llama", tied=True, **SIZES))
    gguf_files.write(home / "gguf", model, T.Q4_1)
    gguf_files.write(home / "half", model, T.F16)
    model.save_pretrained(home / "directory")
    tiny_models.save(home / "narrow", "llama", tied=True, **SIZES | {"head_dim": 8})
    kinds = {"gguf": "gguf", "half": "gguf", "directory": "hf", "narrow": "hf"}
    return {name: ModelFiles(kind, home / name, home / name, name) for name, kind in kinds.items()}


@pytest.fixture
def planned(models) -> dict[str, Planned]:
    return {name: open_planned(files) for name, files in models.items()}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """A CPU and an environment as described, whatever this one is; every form is preferred as the table says."""

    def make(kernels: str | None = None, slow: str | None = None, bfloat16: bool = True) -> None:
        monkeypatch.setattr(forms, "AUTO", tuple(PREFERENCE))
        monkeypatch.setattr(forms, "_why_no_kernels", lambda: kernels)
        monkeypatch.setattr(forms, "_why_slow", lambda: slow)
        monkeypatch.setattr(forms, "cpu_dtype", lambda: torch.bfloat16 if bfloat16 else torch.float32)

    return make


# --- auto ---


def test_the_first_choice_needs_no_words(machine, planned):
    machine()
    assert choose("auto", "cpu", planned["gguf"]) == forms.Choice("file")


@pytest.mark.parametrize(("model", "word"), [("half", "F16"), ("directory", "F32")])
def test_rounded_where_the_file_has_nothing_packed(machine, planned, model: str, word: str):
    machine()
    choice = choose("auto", "cpu", planned[model])
    assert choice.form == "int8" and choice.notice.count("\n") == 0
    assert choice.notice.startswith("Weights are held in int8; packed as in the file they can't be: ")
    assert word in choice.notice


NONE = "numba is not installed"


@pytest.mark.parametrize(
    ("bfloat16", "kernels", "form"),
    [(True, None, "bfloat16"), (False, None, "bfloat16"), (True, NONE, "bfloat16"), (False, NONE, "float32")],
)
def test_floats_on_an_older_cpu(machine, planned, bfloat16: bool, kernels: str | None, form: str):
    """The compiled program multiplies bfloat16 as float32; torch needs a CPU that knows it."""
    machine(kernels=kernels, slow=SLOW, bfloat16=bfloat16)
    choice = choose("auto", "cpu", planned["gguf"])
    assert choice.form == form
    why = kernels or SLOW
    assert choice.notice == f"Weights are held in {form}; packed as in the file they can't be: {why}."  # said once


def test_floats_for_heads_that_do_not_fit(machine, planned):
    machine()
    choice = choose("auto", "cpu", planned["narrow"])
    assert choice.form == "bfloat16" and "8 numbers wide" in choice.notice


def test_floats_without_numba(machine, planned):
    machine(kernels="numba is not installed")
    choice = choose("auto", "cpu", planned["gguf"])
    assert choice.form == "bfloat16" and choice.notice.count("numba is not installed") == 1


def test_two_reasons_are_both_told(machine, planned):
    machine(slow=SLOW)
    notice = choose("auto", "cpu", planned["directory"]).notice
    assert "F32" in notice and f"rounded to int8 they can't be: {SLOW}" in notice


def test_a_card_takes_bfloat16(machine, planned):
    machine()
    assert choose("auto", "cuda", planned["gguf"]) == forms.Choice("bfloat16")


def test_preferences_are_forms_that_can_be_asked_for():
    from typing import get_args

    from engine.config import Dtype

    assert set(forms.AUTO) <= set(PREFERENCE) == set(get_args(Dtype)) - {"auto"}
    assert forms.AUTO[-1] == "float32"  # which every CPU can


# --- asked for ---


@pytest.mark.parametrize("form", list(PREFERENCE))
def test_what_is_asked_for_is_taken(machine, planned, form: str):
    machine()
    assert choose(form, "cpu", planned["gguf"]) == forms.Choice(form)


@pytest.mark.parametrize("form", forms.PACKED)
def test_slow_but_asked_for(machine, planned, form: str):
    machine(slow=SLOW)
    choice = choose(form, "cpu", planned["gguf"])
    assert choice.form == form and SLOW in choice.notice


def test_the_file_holds_nothing_packed(machine, planned):
    machine()
    with pytest.raises(ModelProblem, match=r"is F16, .*; take int8, bfloat16 or float32"):
        choose("file", "cpu", planned["half"])


def test_shapes_that_do_not_fit(machine, planned):
    machine()
    for form in forms.PACKED:
        with pytest.raises(ModelProblem, match=r"8 numbers wide.*; take bfloat16 or float32"):
            choose(form, "cpu", planned["narrow"])


@pytest.mark.parametrize("form", forms.PACKED)
def test_packed_forms_on_a_card(planned, form: str, monkeypatch: pytest.MonkeyPatch):
    assert choose(form, "cuda", planned["gguf"]) == forms.Choice(form)
    with pytest.raises(ModelProblem, match=r"8 numbers wide.*; take bfloat16 or float32"):
        choose(form, "cuda", planned["narrow"])
    monkeypatch.setattr(forms, "find_spec", lambda name: None)
    with pytest.raises(ModelProblem, match="Triton is not installed; take bfloat16 or float32"):
        choose(form, "cuda", planned["gguf"])


def test_the_file_holds_nothing_packed_for_a_card_either(planned):
    with pytest.raises(ModelProblem, match=r"is F16, .*; take int8, bfloat16 or float32"):
        choose("file", "cuda", planned["half"])


def test_numba_is_missing(planned, monkeypatch: pytest.MonkeyPatch):
    really = builtins.__import__

    def without(name: str, *rest):
        if name.partition(".")[0] in ("numba", "llvmlite"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return really(name, *rest)

    for name in [n for n in sys.modules if n == "engine.runner.packed" or n.startswith("engine.cpu.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModelProblem, match=r"(numba|llvmlite) is not installed; pip install 'numba"):
        choose("file", "cpu", planned["gguf"])


def test_the_remedy_is_the_version_that_is_required():
    assert f'"{forms.NUMBA}"' in (Path(__file__).parents[2] / "pyproject.toml").read_text()


# --- told before anyone asks ---


def test_forms_that_cannot_be_had_are_told(planned, monkeypatch: pytest.MonkeyPatch):
    assert forms.absent("cpu", planned["gguf"]) == {}
    assert list(forms.absent("cpu", planned["half"])) == ["file"]
    assert all("8 numbers wide" in why for why in forms.absent("cpu", planned["narrow"]).values())
    assert forms.absent("cuda", planned["gguf"]) == {} and list(forms.absent("cuda", planned["half"])) == ["file"]
    monkeypatch.setattr(forms, "find_spec", lambda name: None)
    assert forms.absent("cuda", planned["gguf"]) == dict.fromkeys(forms.PACKED, "Triton is not installed")
    assert forms.absent("cpu", planned["gguf"]) == dict.fromkeys(forms.PACKED, "numba is not installed")


# --- built ---


class Held:
    """A runner that only holds."""

    def __init__(self, config, weights: PackedWeights, name, threads, block_size, num_blocks, baseline=0):
        self.weights, self.threads, self.num_blocks, self.notices = weights, threads, num_blocks, []

    def max_blocks(self) -> int:
        return 20

    def resize(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks


def build(files: ModelFiles, form: str, blocks: int = 8) -> Held:
    config = EngineConfig(dtype=form, device="cpu", threads=1, settings=LiveSettings(kv_blocks=blocks))
    return build_runner(config, files)


@pytest.fixture
def held(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine()
    module = types.ModuleType("engine.runner.packed")
    module.PackedRunner = Held
    monkeypatch.setitem(sys.modules, "engine.runner.packed", module)


def test_the_runner_gets_the_weights_in_their_form(held, models):
    runner = build(models["gguf"], "file")
    assert (runner.weights.form, runner.threads, runner.num_blocks, runner.notices) == ("Q4_1", 1, 8, [])
    other = build(models["directory"], "int8")
    assert other.weights.form == "int8" and list(other.absent) == ["file"]


def test_notices_reach_the_user(held, models):
    said = build(models["directory"], "auto", blocks=50).notices
    assert "held in int8" in said[0] and "kv_blocks lowered from 50 to 20" in said[1]


def test_memory_that_ran_out_is_told_with_the_form(held, models, monkeypatch: pytest.MonkeyPatch):
    def full(self, num_blocks: int) -> None:
        raise MemoryError

    monkeypatch.setattr(Held, "resize", full)
    with pytest.raises(ModelProblem, match="in file doesn't fit into the memory"):
        build(models["gguf"], "file")
