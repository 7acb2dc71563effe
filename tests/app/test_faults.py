"""Bad input and faults, line by line. What other files already test is named here, not repeated.

| fault | test |
| --- | --- |
| missing, truncated, corrupt model file | engine/test_gguf: truncated_anywhere, damaged_headers_never_crash; engine/test_weights: truncated_and_corrupt; app/test_generate: a_truncated_model, a_missing_model; engine/test_store: files_that_are_none, what_is_not_there |
| description broken, of wrong types, absurdly large | impossible_descriptions, more_layers_than_tensors, json_nested_too_deep; engine/test_weights: descriptions_that_do_not_fit |
| unsupported architecture or tensor type, wrong shapes | engine/test_gguf: unsupported_*, wrong_shape; engine/test_weights: integer_tensors, missing_extra_and_misshapen; pickles_are_never_opened |
| tokenizer absent or hostile | engine/test_tokenizer: broken_files, absent_tokenizer; tokenizers_of_wrong_types, junk_beside_a_tokenizer, a_word_without_a_token |
| chat template absent or hostile | engine/test_chat_template: ways_out_are_closed, growth_ends_at_once, time_is_limited; engine/test_tokenizer: no_template, broken_template; a_slow_template_is_run_once |
| prompt too long, empty, no Unicode | app/test_generate: prompt_too_long, bad_option; engine/test_tokenizer: bad_requests; engine/test_client: text_that_is_no_unicode; numbers_beyond_64_bits |
| absurd options and settings | absurd_numbers, every_setting_out_of_its_range; app/test_main: a_mistake_is_one_line |
| prompts file | app/test_generate: bad_file_is_named |
| no display | app/test_display; test_faults_window: a_display_that_cannot_be_opened |
| no NVIDIA driver, NVML values that are N/A | app/test_nvml; app/test_doctor: driver_and_nvml |
| CUDA asked for without CUDA | engine/test_runner: devices |
| out of memory | engine/test_runner: pool_that_does_not_fit, first_pool, no_memory_at_all; engine/test_worker: memory_that_runs_out; failed_allocations, weights_without_room, a_pass_without_room, a_limit_on_addresses, a_slip_of_the_finger |
| child killed, crashed, stopped | engine/test_client: killed_child, native_output; app/test_integration_lives; test_faults_window: a_stopped_engine_owes_an_answer, silence_is_said |
| parent killed | engine/test_client: gone_two_seconds_after_its_parent |
| full disk or unwritable cache | engine/test_store: full_disk, fills_up_meanwhile, cache_that_cannot_be_made; ways_a_cache_can_refuse, no_home |
| Ctrl-C | app/test_generate: ctrl_c; test_faults_window: ctrl_c_at_any_moment |
| window closed mid-load | engine/test_client: closing_in_the_middle_of_loading; app/test_integration_lives: closing_the_window |
| output that can't be written or shown | output_that_cannot_be_written, closed_streams, characters_that_the_terminal_lacks |
| settings file damaged | app/test_settings; ui/test_window: damaged_memory; test_faults_window: remembered_scales |
"""  # noqa: E501

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer as Library
from tokenizers.models import WordLevel

from app import doctor, fitting, paths
from app.__main__ import main
from app.options import typed
from engine import memory
from engine.config import WIDEST, EngineConfig, LiveSettings
from engine.model import cache, checkpoint, gguf_tokenizer, safetensors_file, store, tensor_plan
from engine.model.architecture import from_huggingface
from engine.model.chat_template import ChatTemplate, TemplateProblem
from engine.model.problem import ModelProblem
from engine.records import Request
from engine.runner import build as runner_build
from engine.runner.pooled import dummy_batch
from engine.runner.torch_runner import TorchRunner
from engine.tokenizer import BadPrompt, Tokenizer
from engine.worker import explain

ROOT = Path(__file__).resolve().parents[2]
HUGE = "1" + "0" * 400  # more digits than a float has
posix = pytest.mark.skipif(os.name != "posix", reason="descriptors and /dev of POSIX")


def run(command: str, **environment: str) -> subprocess.CompletedProcess:
    """A shell line in which `servescope` is the program."""
    program = f"'{sys.executable}' -m app"
    return subprocess.run(
        ["bash", "-c", command.replace("servescope", program)], cwd=ROOT, env={**os.environ, **environment},
        capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


# --- the command line ---


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[(option, HUGE) for option in ("--max-tokens", "--top-k", "--seed", "--threads")],
        *[(option, "9" * 5000) for option in ("--max-tokens", "--seed")],
        *[(option, value) for option in ("--temperature", "--top-p", "--min-p") for value in ("nan", "inf", "-inf")],
        ("--max-tokens", "1e18"), ("--top-p", "0"), ("--threads", "100000"), ("--model", "\udcff.gguf"),
        *[("--set", f"{key}={HUGE}") for key in ("max_batch", "kv_blocks", "top_k")],
        ("--set", "block_size=²"), ("--set", "temperature=nan"), ("--set", "=5"), ("--set", "max_batch="),
    ],
)  # fmt: skip
def test_absurd_numbers_are_one_line(capsys, option, value):
    try:
        code = main(["generate", "--prompt", "x", option, value])
    except SystemExit as end:
        code = end.code
    told = capsys.readouterr()
    assert code == 2 and told.out == "" and option in told.err and len(told.err.splitlines()) == 1


@pytest.mark.parametrize("key", WIDEST)
def test_every_setting_out_of_its_range_is_refused_before_the_engine_starts(capsys, key):
    limit = WIDEST[key]
    whole = isinstance(getattr(LiveSettings(), key), int)
    for value in (limit.low - 1, limit.high + 1):
        assert main(["generate", "--prompt", "x", "--set", f"{key}={int(value) if whole else value}"]) == 2
        told = capsys.readouterr().err
        assert key in told and ("is outside" in told or "must be one of" in told) and "e+" not in told


def test_the_last_of_several_wins_and_a_slip_of_the_finger_makes_no_pool(capsys):
    settings = LiveSettings(max_context=2_000_000_000)
    fitted = fitting.fit(EngineConfig(settings=settings), {"max_context"}).settings
    assert fitted.kv_blocks * 16 == fitting.LONGEST and fitted.max_context == 2_000_000_000


def test_what_a_narrow_locale_hides_is_found_again(monkeypatch):
    monkeypatch.setattr(os, "fsencode", lambda text: text.encode("ascii", "surrogateescape"))
    assert typed("caf\udcc3\udca9") == "café" and typed("plain") == "plain"
    assert typed("\udcff") == "\udcff"  # no UTF-8 either: refused where it is used


@posix
@pytest.mark.parametrize("command", ["servescope --help > /dev/full", "servescope doctor --json > /dev/full"])
def test_output_that_cannot_be_written_is_one_line(command):
    done = run(command)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("servescope: ") and "No space left" in done.stderr


@posix
def test_a_reader_that_leaves_is_no_fault():
    done = run("servescope generate --help | true; exit ${PIPESTATUS[0]}")
    assert done.returncode in (0, 1) and done.stderr == ""


CLOSED = """
from app.__main__ import _mend_streams
_mend_streams()
from tests.support.clients import running
if __name__ == "__main__":
    with running() as (client, seen):
        raise SystemExit(0 if client.state == "ready" else 3)
"""


@posix
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_an_engine_starts_with_closed_streams(tmp_path, closed):
    """A pipe to the child must not get the number of a stream that the child then writes to."""
    script = tmp_path / "closed.py"
    script.write_text(CLOSED)
    done = run(f"'{sys.executable}' '{script}' {closed}", PYTHONPATH=str(ROOT))
    assert done.returncode == 0


def test_characters_that_the_terminal_lacks_are_escaped():
    done = run("servescope generate --help", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "\\u2026" in done.stdout


def test_what_nobody_foresaw_is_one_line_too(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda: 1 // 0)
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err.startswith("servescope: ZeroDivisionError")
    monkeypatch.setenv("SERVESCOPE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])


# --- models ---

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97, "max_position_embeddings": 128,
}  # fmt: skip
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "change",
    [
        *[{key: value} for key in LLAMA if key != "model_type" for value in (0, -1, 10**12, 10**400, "big", [1], None)
          if (key, value) not in (("num_key_value_heads", 0), ("num_key_value_heads", None))],
        {"rms_norm_eps": NAN}, {"rms_norm_eps": 0}, {"rms_norm_eps": INF}, {"rope_theta": -1}, {"rope_theta": INF},
        {"rope_parameters": "x"}, {"rope_parameters": [1]}, {"head_dim": 10**12}, {"head_dim": 7},
        {"quantization_config": "x"}, {"model_type": ["llama"]}, {"hidden_act": "gelu"},
        {"rope_scaling": {"rope_type": "llama3", "factor": 0, "low_freq_factor": 1, "high_freq_factor": 4,
                          "original_max_position_embeddings": 64}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
                          "original_max_position_embeddings": 64}},
    ],
    ids=lambda change: str(change)[:50],
)  # fmt: skip
def test_impossible_descriptions_are_refused_in_a_few_words(change):
    assert from_huggingface(LLAMA).layers == 2
    with pytest.raises(ModelProblem) as problem:
        from_huggingface(LLAMA | change)
    assert len(str(problem.value)) < 400


def test_more_layers_than_tensors_are_refused_before_they_are_planned(monkeypatch):
    config = from_huggingface(LLAMA | {"num_hidden_layers": 10**9})
    small = SimpleNamespace(config=config, shapes={"a": (1,)})
    monkeypatch.setattr(tensor_plan, "open_checkpoint", lambda files: small)
    with pytest.raises(ModelProblem, match="1,000,000,000 layers"):
        tensor_plan.open_planned(SimpleNamespace(name="it"))


def test_json_nested_too_deep_is_a_broken_file(tmp_path):
    deep = tmp_path / "config.json"
    deep.write_text("[" * 200_000)
    (tmp_path / "model.safetensors.index.json").write_text("[" * 200_000)
    for read in (
        lambda: checkpoint._read_config(deep),
        lambda: Tokenizer.load(tmp_path),
        lambda: store._absent_shards(tmp_path),
        lambda: safetensors_file.SafetensorsFiles(tmp_path),
    ):
        with pytest.raises(ModelProblem):
            read()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokens", [1, 2, 3]), ("tokens", "abc"), ("tokens", [["a"]]), ("merges", [5]), ("merges", ["a"]),
        ("merges", ["a b c"]), ("merges", [["a", "b"]]), ("pre", 7), ("pre", ["gpt2"]), ("model", ["gpt2"]),
    ],
)  # fmt: skip
def test_tokenizers_of_wrong_types_are_model_problems(key, value):
    values = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "ab"],
              "tokenizer.ggml.merges": ["a b"]}  # fmt: skip
    assert gguf_tokenizer.build(values, "file").tokenizer.get_vocab_size() == 3
    with pytest.raises(ModelProblem, match="file"):
        gguf_tokenizer.build(values | {f"tokenizer.ggml.{key}": value}, "file")


@pytest.mark.parametrize("scores", [["x", "y", "z"], [None, None, None], [1.0]])
def test_scores_of_wrong_types_are_model_problems(scores):
    values = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a", "b", "ab"]}
    with pytest.raises(ModelProblem):
        gguf_tokenizer.build(values | {"tokenizer.ggml.scores": scores}, "file")


def words(directory: Path, **files: object) -> Path:
    """A directory with a tokenizer of three words and no word for the others."""
    Library(WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="<none>")).save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def test_junk_beside_a_tokenizer_is_left_alone(tmp_path):
    junk = {"eos_token_id": [[1], {"a": 1}, "x", None, 2], "chat_template": [{"name": ["x"], "template": 5}, 3, None]}
    loaded = Tokenizer.load(words(tmp_path, config=junk, tokenizer_config=junk | {"bos_token": 7, "eos_token": [1]}))
    assert loaded.eos_ids == {2} and not loaded.has_chat_template


def test_a_word_without_a_token_is_a_bad_prompt(tmp_path):
    tokenizer = Tokenizer.load(words(tmp_path))
    assert tokenizer.encode_request(Request(number=1, prompt="a", raw=True)) == [0]
    with pytest.raises(BadPrompt, match="type something else"):
        tokenizer.encode_request(Request(number=1, prompt="unheard of", raw=True))


def test_a_slow_template_is_run_once(monkeypatch):
    monkeypatch.setattr("engine.model.chat_template.TIME_LIMIT", 0.05)
    template = ChatTemplate("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
    for limit in (0.05, 0.0):
        monkeypatch.setattr("engine.model.chat_template.TIME_LIMIT", limit)
        with pytest.raises(TemplateProblem, match=r"more than 0\.05 seconds"):
            template.render([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("name", ["~nobody-of-this-name/model", "", "  ", "a" * 5000, "a\0b"])
def test_names_that_are_no_path(name):
    with pytest.raises(ModelProblem):
        store.resolve(name)


# --- disk and home ---


@pytest.mark.parametrize("code", [errno.EFBIG, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EIO, errno.ENOENT])
def test_ways_a_cache_can_refuse(tmp_path, code):
    with pytest.raises(ModelProblem, match="SERVESCOPE_CACHE"), cache.explained(tmp_path, 5):
        raise OSError(code, os.strerror(code))


def test_no_home_directory(monkeypatch):
    def homeless(path: Path | None = None) -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("SERVESCOPE_CACHE", "XDG_CACHE_HOME", "SERVESCOPE_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ModelProblem, match="SERVESCOPE_CACHE"):
        cache.cache_dir()
    assert doctor.model_cache().state == "missing" and "SERVESCOPE_CACHE" in doctor.model_cache().remedy
    assert not paths.config_dir().parent.is_dir()


def test_a_cache_that_cannot_be_looked_into(monkeypatch, tmp_path):
    def denied(directory: Path) -> Path:
        raise PermissionError(errno.EACCES, "Permission denied", str(directory))

    monkeypatch.setattr(store, "cached_default", denied)
    monkeypatch.setenv("SERVESCOPE_CACHE", str(tmp_path))
    check = doctor.model_cache()
    assert check.state == "missing" and str(tmp_path) in check.detail and "SERVESCOPE_CACHE" in check.remedy


# --- memory ---

TORCHS = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"


@pytest.mark.parametrize(
    ("error", "ran_out"),
    [(MemoryError(), True), (RuntimeError(TORCHS), True), (RuntimeError("std::bad_alloc"), True),
     (torch.OutOfMemoryError("CUDA out of memory"), True), (RuntimeError("shape mismatch"), False),
     (ValueError("out of memory"), False)],
)  # fmt: skip
def test_failed_allocations_are_told_from_other_errors(error, ran_out):
    assert memory.ran_out(error) is ran_out
    assert ("Memory ran out" in explain(error)) is ran_out


def test_weights_without_room_are_a_model_problem(monkeypatch):
    def read(*_: object) -> None:
        raise RuntimeError(TORCHS + " allocate 5 bytes")

    monkeypatch.setattr(runner_build, "open_planned", lambda files: SimpleNamespace(config=None))
    monkeypatch.setattr(runner_build, "read", read)
    with pytest.raises(ModelProblem, match=r"doesn't fit .* smaller model") as problem:
        runner_build.build_runner(EngineConfig(device="cpu", dtype="float32"), SimpleNamespace(name="it"))
    assert "enforce" not in str(problem.value)


def test_a_pass_without_room_is_a_memory_error_that_a_smaller_pool_cures():
    def forward(*_: object) -> None:
        raise RuntimeError(TORCHS)

    runner = SimpleNamespace(
        config=SimpleNamespace(heads=1, kv_heads=1), block_size=16, dtype=torch.float32, device=torch.device("cpu"),
        _transformer=SimpleNamespace(forward=forward), _pool=SimpleNamespace(layers=[]),
    )  # fmt: skip
    with pytest.raises(MemoryError, match="can't allocate memory"):
        TorchRunner.execute(runner, dummy_batch([1], 16))


@pytest.mark.skipif(sys.platform != "linux", reason="address space is looked up in /proc")
def test_a_limit_on_addresses_counts(monkeypatch):
    import resource

    unlimited = memory.available_bytes()
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1 << 20, 1 << 20))
    assert memory.available_bytes() == 0 < unlimited
