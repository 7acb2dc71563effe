"""`servescope generate`: prompts in, answers out in their order, and every mistake in one clear line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from app import headless
from app.__main__ import main
from app.fitting import fit, given
from engine import records as r
from engine.config import AUTO, EngineConfig, LiveSettings
from tests.support.inprocess import InProcessEngine
from tests.support.tiny_directory import make_directory

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def in_process(monkeypatch):
    """An engine in this process, with a table for a model, in the place of a child."""
    monkeypatch.setattr(headless, "EngineClient", InProcessEngine)


def lines(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def prompt_file(path: Path, *prompts: str) -> str:
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return str(path)


def test_one_object_a_line_in_the_order_of_the_prompts(in_process, tmp_path, capsys):
    prompts = [f"{'word ' * (20 - i)}{i}" for i in range(20)]
    file = prompt_file(tmp_path / "prompts.jsonl", *prompts)
    assert main(["generate", "--prompts", file, "--max-tokens", "12", "--json", "--set", "max_batch=4"]) == 0
    found = lines(capsys)
    assert [each["prompt"] for each in found] == prompts
    for each in found:
        assert len(each["token_ids"]) == 12 and each["finish_reason"] == "length" and "error" not in each
        times = each["timings"]
        assert 0 <= times["queue_s"] <= times["ttft_s"] <= times["total_s"] and times["tpot_s"] >= 0
        drafts = each["drafts"]
        assert drafts["drafted"] >= drafts["examined"] >= drafts["accepted"] >= 0
        assert drafts["passes"] + drafts["accepted"] == 11  # each pass gives its accepted drafts and one token more
    assert found[-1]["timings"]["queue_s"] > found[0]["timings"]["queue_s"]


@pytest.mark.parametrize(
    "more",
    [["kv_blocks=8"], ["max_batch=1"], ["token_budget=8"], ["block_size=32"], ["draft_length=0"], ["max_batch=300"]],
)
def test_settings_change_nothing_about_greedy_answers(in_process, tmp_path, capsys, more):
    file = prompt_file(tmp_path / "prompts.jsonl", *(f"prompt {'x' * i}" for i in range(8)))
    command = ["generate", "--prompts", file, "--max-tokens", "16", "--json"]
    assert main(command) == 0
    expected = [each["token_ids"] for each in lines(capsys)]
    assert main([*command, *(word for item in more for word in ("--set", item))]) == 0
    assert [each["token_ids"] for each in lines(capsys)] == expected


def test_seed_makes_sampled_answers_repeatable(in_process, capsys):
    command = ["generate", "--prompt", "abc", "--temperature", "1", "--set", "draft_length=0", "--json"]
    answers = []
    for seed in ("1", "1", "2"):
        main([*command, "--seed", seed])
        answers.append(lines(capsys)[0]["token_ids"])
    assert answers[0] == answers[1] != answers[2]


def test_penalties_are_obeyed(in_process, capsys):
    command = ["generate", "--prompt", "abc", "--max-tokens", "24", "--json"]
    found = []
    for more in ((), ("--repetition-penalty", "1.5"), ("--presence-penalty", "2"), ("--frequency-penalty", "2")):
        assert main([*command, *more]) == 0
        tokens = lines(capsys)[0]["token_ids"]
        assert not more or tokens != found[0]
        found.append(tokens)
        if more:
            assert main([*command, "--set", f"{more[0][2:].replace('-', '_')}={more[1]}"]) == 0  # as a default
            assert lines(capsys)[0]["token_ids"] == tokens
    plain, *_, frequency = [max(tokens.count(token) for token in tokens) for tokens in found]
    assert frequency < plain


SAMPLED = [
    "generate", "--prompt", "abc", "--temperature", "1", "--max-tokens", "12", "--json", "--set", "draft_length=0"
]  # fmt: skip


def test_each_sample_is_that_of_its_own_seed_alone(in_process, capsys):
    assert main([*SAMPLED, "--n", "4", "--seed", "5"]) == 0
    found = lines(capsys)
    assert [each["sample"] for each in found] == [0, 1, 2, 3]
    assert len({tuple(each["token_ids"]) for each in found}) > 1
    for each in found:
        assert main([*SAMPLED, "--seed", str(5 + each["sample"])]) == 0
        (alone,) = lines(capsys)
        assert alone["token_ids"] == each["token_ids"] and "sample" not in alone
        times = each["timings"]
        assert 0 <= times["queue_s"] <= times["ttft_s"] <= times["total_s"]


def test_samples_of_several_prompts_come_in_order(in_process, tmp_path, capsys):
    file = prompt_file(tmp_path / "prompts.jsonl", "first", "x" * 500, "third")
    options = ["--n", "2", "--temperature", "1", "--max-tokens", "4", "--set", "max_context=64", "--json"]
    assert main(["generate", "--prompts", file, *options]) == 1
    found = lines(capsys)
    assert [(each["prompt"][:5], each["sample"]) for each in found] == [
        ("first", 0), ("first", 1), ("xxxxx", 0), ("third", 0), ("third", 1),
    ]  # fmt: skip
    assert found[2]["finish_reason"] == "refused"


def test_samples_as_text_have_their_numbers_above(in_process, capsys):
    assert main(["generate", "--prompt", "abc", "--n", "2", "--temperature", "1", "--max-tokens", "3"]) == 0
    out = capsys.readouterr().out
    assert out.index("[1.1] abc") < out.index("[1.2] abc")


@pytest.mark.parametrize("penalty", ["0", "1", "2"])
def test_beams_are_ranked_by_their_scores(in_process, capsys, penalty):
    options = ["--beams", "3", "--length-penalty", penalty, "--max-tokens", "6", "--json"]
    assert main(["generate", "--prompt", "abc", *options]) == 0
    (found,) = lines(capsys)
    beams = found["beams"]
    assert 1 <= len(beams) <= 3
    assert (found["token_ids"], found["text"]) == (beams[0]["token_ids"], beams[0]["text"])
    assert found["finish_reason"] == beams[0]["finish_reason"]
    scores = [beam["score"] for beam in beams]
    assert scores == sorted(scores, reverse=True)
    for beam in beams:
        wanted = beam["log_probability"] / len(beam["token_ids"]) ** float(penalty)
        assert beam["score"] == pytest.approx(wanted, abs=1e-5)
    assert found["timings"]["ttft_s"] <= found["timings"]["total_s"]


def test_the_best_beam_is_printed(in_process, capsys):
    options = ["--beams", "3", "--max-tokens", "6"]
    assert main(["generate", "--prompt", "abc", *options, "--json"]) == 0
    (found,) = lines(capsys)
    assert main(["generate", "--prompt", "abc", *options]) == 0
    assert capsys.readouterr().out == found["text"] + "\n"


def test_one_beam_without_an_end_is_greedy(in_process, capsys):
    command = ["generate", "--prompt", "abc", "--max-tokens", "5", "--json"]
    assert main(command) == 0
    greedy = lines(capsys)[0]
    assert main([*command, "--beams", "1", "--early-stopping", "yes"]) == 0
    found = lines(capsys)[0]
    assert found["token_ids"] == greedy["token_ids"]


def test_a_prompt_too_long_is_refused_and_the_others_are_answered(in_process, tmp_path, capsys):
    file = prompt_file(tmp_path / "prompts.jsonl", "short", "x" * 500, "also short")
    assert main(["generate", "--prompts", file, "--json", "--max-tokens", "4", "--set", "max_context=64"]) == 1
    captured = capsys.readouterr()
    found = [json.loads(line) for line in captured.out.splitlines()]
    assert [each["finish_reason"] for each in found] == ["length", "refused", "length"]
    assert "max_context" in found[1]["error"]
    assert captured.err.startswith("servescope generate: prompt 2: ") and captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"prompt": "a"}\n{"prompt": 3}\n', "line 2: expected an object"),
        (b'{"prompt": "a"}\n\n["a"]\n', "line 3: expected an object"),
        (b'{"prompt": "a"\n', "line 1: not JSON"),
        (b'{"promt": "a"}', "line 1: expected an object"),
        (b'{"prompt": "  "}', "line 1: the prompt is empty"),
        (b'{"prompt": "a\\ud800"}', "line 1: the prompt holds invalid Unicode"),
        (b'{"prompt": "a"}\n{"prompt": "\xff"}', "line 2: not UTF-8"),
        (b"[" * 100_000, "line 1: not JSON"),
        (b"\n \n", "no prompts in it"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, capsys, content, words):
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(content)
    assert main(["generate", "--prompts", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and words in captured.err and captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--prompt", ""], "empty"),
        (["--prompt", "a\udcff"], "Unicode"),
        (["--prompt", "a", "--max-tokens", "0"], "--max-tokens 0"),
        (["--prompt", "a", "--temperature", "-1"], "--temperature -1"),
        (["--prompt", "a", "--temperature", "nan"], "--temperature nan"),
        (["--prompt", "a", "--top-p", "1.5"], "--top-p 1.5"),
        (["--prompt", "a", "--min-p", "2"], "--min-p 2"),
        (["--prompt", "a", "--top-k", "-1"], "--top-k -1"),
        (["--prompt", "a", "--repetition-penalty", "0"], "--repetition-penalty 0"),
        (["--prompt", "a", "--repetition-penalty", "nan"], "--repetition-penalty nan"),
        (["--prompt", "a", "--presence-penalty", "3"], "--presence-penalty 3"),
        (["--prompt", "a", "--frequency-penalty", "-3"], "--frequency-penalty -3"),
        (["--prompt", "a", "--beams", "2", "--frequency-penalty", "1"], "leave --frequency-penalty out"),
        (["--prompt", "a", "--seed", "-1"], "--seed -1"),
        (["--prompt", "a", "--stop", ""], "--stop"),
        (["--prompt", "a", "--n", "0"], "--n 0: must be from 1"),
        (["--prompt", "a", "--n", "2"], "all of them would be the same; add --temperature"),
        (["--prompt", "a", "--n", "2", "--beams", "2"], "give one of them"),
        (["--prompt", "a", "--beams", "9"], "--beams 9: must be from 1 to 8"),
        (["--prompt", "a", "--beams", "0"], "--beams 0: must be from 1 to 8"),
        (["--prompt", "a", "--beams", "2", "--temperature", "0.5"], "--beams draws nothing, so --temperature"),
        (["--prompt", "a", "--beams", "2", "--seed", "1"], "--beams draws nothing, so --seed"),
        (["--prompt", "a", "--beams", "2", "--stop", "x"], "leave --stop out"),
        (["--prompt", "a", "--beams", "2", "--length-penalty", "nan"], "--length-penalty nan"),
        (["--prompt", "a", "--length-penalty", "1"], "give --beams with it"),
        (["--prompt", "a", "--early-stopping", "yes"], "give --beams with it"),
    ],
)
def test_a_bad_option_is_one_line(capsys, more, words):
    assert main(["generate", *more]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.count("\n") == 1


def test_text_streams_and_several_answers_have_their_prompts_above(in_process, tmp_path, capsys):
    file = prompt_file(tmp_path / "prompts.jsonl", "first", "second")
    assert main(["generate", "--prompts", file, "--max-tokens", "3"]) == 0
    out = capsys.readouterr().out
    assert out.index("[1] first") < out.index("[2] second")


def test_text_of_one_prompt_is_the_text_alone():
    from app.generate import _Printer

    class Told(list):
        def write(self, text: str) -> None:
            self.append(text)

        def flush(self) -> None: ...

    answer = headless.Answer(0, pieces=["Hel"])
    told, out = Told(), sys.stdout
    try:
        sys.stdout = told
        printer = _Printer(["prompt"], as_json=False)
        printer.show({0: [answer]})
        assert "".join(told) == "Hel"
        answer.pieces += ["lo", ""]
        answer.finish_reason = "stop"
        printer.show({0: [answer]})
    finally:
        sys.stdout = out
    assert "".join(told) == "Hello\n"


def test_lost_records_are_a_failure_not_a_shorter_answer():
    answers = headless.Answers([0])
    with pytest.raises(headless.EngineFailed, match="lost"):
        answers.apply(r.Gap(first=3, last=9))


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(capsys, monkeypatch):
    loading = [r.Loading(stage="fetching the model", done=i * 2**20, total=100 * 2**20) for i in range(101)]
    progress = headless.Progress("generate")
    for each in loading:
        progress.show(each)
    assert len(capsys.readouterr().err.splitlines()) == 6
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = headless.Progress("generate")
    progress.show(loading[50])
    shown = capsys.readouterr().err
    assert "50 of 100 MiB" in shown and shown.count("█") == 15
    progress.clear()
    assert capsys.readouterr().err.endswith("\033[K")


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (["kv_blocks=64"], {"kv_blocks": 64, "max_context": 1024}),
        (["max_context=16000"], {"kv_blocks": 1000, "max_context": 16000}),
        (["max_batch=300"], {"max_batch": 300, "token_budget": AUTO}),
        (["token_budget=8"], {"max_batch": 8, "token_budget": 8}),
        (["chunked_prefill=false"], {"token_budget": AUTO, "max_context": 2048}),
        (["token_budget=auto"], {"token_budget": AUTO, "max_batch": 16}),
        (["chunked_prefill=false", "token_budget=512"], {"token_budget": 512, "max_context": 512}),
        (["max_batch=16", "token_budget=8"], {"max_batch": 16, "token_budget": 8}),
        (["preemption=swap", "kv_blocks=300"], {"swap_blocks": 300}),
        (["preemption=swap", "swap_blocks=0"], {"swap_blocks": 0}),
        ([], {"kv_blocks": 512, "max_context": 2048}),
    ],
)
def test_what_was_not_asked_for_follows_what_was(items, expected):
    from engine.config import change

    settings = change(LiveSettings(), dict(item.split("=") for item in items))
    fitted = fit(EngineConfig(settings=settings), given(items)).settings
    assert {key: getattr(fitted, key) for key in expected} == expected


# --- with a real child ---


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_directory(tmp_path_factory.mktemp("generate") / "tiny")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "app", "generate", *words]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(command(*words), env=environment(), capture_output=True, text=True, timeout=120, cwd=ROOT)


def test_a_real_engine_answers(model):
    words = ("--prompt", "w5 w6 w7", "--raw", "--max-tokens", "9", "--dtype", "float32", "--json")
    done = run("--model", str(model), *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["prompt_tokens"] == 3 and len(found["token_ids"]) == 9
    assert found["text"].split() == [f"w{token}" for token in found["token_ids"]]


def test_a_truncated_model_is_one_clear_line(model, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in model.iterdir():
        data = file.read_bytes()
        (broken / file.name).write_bytes(data[: len(data) // 2] if file.suffix == ".safetensors" else data)
    done = run("--model", str(broken), "--prompt", "w1")
    assert done.returncode == 1 and done.stdout == ""
    assert "model.safetensors" in done.stderr and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_a_missing_model_is_one_clear_line():
    done = run("--model", "/no/such/model", "--prompt", "w1")
    assert done.returncode == 1 and "/no/such/model" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_ctrl_c_is_clean_and_leaves_no_process(model):
    file = model.parent / "many.jsonl"
    file.write_text('{"prompt": "w1 w2"}\n' * 400)
    words = ("--prompts", str(file), "--raw", "--max-tokens", "400", "--set", "draft_length=0", "--json")
    process = subprocess.Popen(
        command("--model", str(model), *words),
        env=environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout.readline()  # it is serving
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the child as well
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130 and errors.strip().splitlines()[-1] == "servescope: interrupted"
    assert "Traceback" not in errors
    end = time.monotonic() + 3
    while any(child.is_running() for child in children) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [child for child in children if child.is_running()]
