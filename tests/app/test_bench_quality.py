"""`servescope bench quality`: its command line, its figures in both forms of output, and the text it reads."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import get_args

import pytest

from app.__main__ import main
from app.bench import runs
from app.bench.quality import FORMS, TEXTS, chosen
from engine.config import Dtype
from engine.tokenizer import Tokenizer
from tests.support.oracle import default_model
from tests.support.tiny_directory import make_directory

FIGURES = ("perplexity", "ratio", "difference_percent", "standard_error_percent", "same_top_1", "kl_nats")


def test_whole_runs_give_one_object(tmp_path: Path, capfd):
    model = make_directory(tmp_path)
    words = ["--model", str(model), "--tokens", "200", "--forms", "bfloat16", "--threads", "1", "--chunk", "50"]
    capfd.readouterr()  # transformers tells how it saves
    assert main(["bench", "quality", *words, "--json"]) == 0
    out, err = capfd.readouterr()
    found = json.loads(out)
    assert len(err.strip().splitlines()) == 1 and "float32, bfloat16" in err
    assert [form["form"] for form in found["forms"]] == ["float32", "bfloat16"]
    assert found["absent"] == {} and found["chunk"] == 50 and found["window"] == 512
    assert list(found["texts"]) == list(TEXTS) and sum(found["texts"].values()) in (199, 200)
    for form in found["forms"]:
        for figures in (form, *(form["texts"][name] for name in TEXTS)):
            assert all(isinstance(figures[name], float) for name in FIGURES)
        assert form["scored"] == sum(found["texts"].values()) - len(TEXTS)
    assert found["forms"][0]["bytes_ratio"] == 1 > found["forms"][1]["bytes_ratio"] > 0


def test_in_words(monkeypatch, capsys):
    figures = dict(zip((*FIGURES, "scored"), (21.5, 1.002, 0.2, 0.05, 0.97, 0.001, 20), strict=True))
    form = {"form": "bfloat16", "weight_bytes": 1 << 20, **figures, "texts": {"prose": dict(figures)}}
    answer = {
        "model": "tiny", "device": "CPU", "window": 512, "chunk": 512, "texts": {"prose": 21}, "forms": [form],
        "absent": {"other": "there is none"},
    }  # fmt: skip
    asked = []
    monkeypatch.setattr(runs, "fresh_process", lambda *words, timeout: asked.append(words) or answer)
    assert main(["bench", "quality"]) == 0
    shown = capsys.readouterr().out
    for part in ("21.5000", "+0.200 %", "± 0.050 %", "97.00%", "1.0 MiB (1.00×)", "other: not measured: there is none"):
        assert part in shown
    (module, job), wanted = asked[0], json.loads(asked[0][1])
    assert module == "engine.likelihood" and wanted["forms"] == list(FORMS) and wanted["optional"]
    assert all(Path(path).is_file() for path in wanted["texts"].values()) and len(job) < 4000


def test_forms_are_those_of_the_configuration():
    assert {"auto", "float32", *FORMS} == set(get_args(Dtype)) and "bfloat16" in FORMS
    assert chosen(None) == list(FORMS)
    assert chosen("bfloat16, float32,bfloat16") == ["bfloat16"] and chosen("float32") == []


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--forms", "float8"], "'float8'"),
        (["--forms", ""], "--forms"),
        (["--forms", "auto"], "'auto'"),
        (["--tokens", "3"], "--tokens"),
        (["--tokens", "many"], "--tokens"),
        (["--chunk", "0"], "--chunk"),
        (["--chunk", "513"], "--chunk"),
        (["--dtype", "bfloat16"], "--forms bfloat16"),
        (["--set", "max_batch=2"], "chooses the settings itself"),
        (["--threads", "-1"], "--threads"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line(words, named, capsys):
    try:
        code = main(["bench", "quality", *words])
    except SystemExit as end:
        code = end.code
    streams = capsys.readouterr()
    assert code == 2 and streams.out == ""
    assert named in streams.err and len(streams.err.strip().splitlines()) == 1


def test_a_model_that_is_not_there(tmp_path: Path, capsys):
    assert main(["bench", "quality", "--model", str(tmp_path / "gone"), "--forms", "float32"]) == 1
    streams = capsys.readouterr()
    assert streams.out == "" and "there is no file or directory" in streams.err.splitlines()[-1]


# --- the text ---


def text(name: str) -> str:
    return (files("assets") / "quality" / f"{name}.txt").read_text("utf-8")


def test_the_text_is_at_least_20_000_tokens():
    tokenizer = Tokenizer.load(Path(default_model()))
    counts = {name: len(tokenizer.encode(text(name), add_special=False)) for name in TEXTS}
    assert sum(counts.values()) >= 20_000 and counts["prose"] > 1.5 * counts["code"]
    readme = (files("assets") / "quality" / "README.md").read_text("utf-8")
    assert all(f"{count:,} |" in readme for count in (*counts.values(), sum(counts.values())))


def test_the_text_is_what_its_readme_says():
    prose, code = text("prose"), text("code")
    assert prose.lstrip().startswith("CHAPTER I\n") and "_Qu._ 27." in prose and "Gutenberg" not in prose
    assert code.count("The author disclaims copyright to this source code.") == 2
    assert code.count("/*\n** 20") == 2


def test_the_text_goes_with_the_package():
    root = Path(str(files("assets")))
    patterns = tomllib.loads((root.parent / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]
    shipped = {path for pattern in patterns["assets"] for path in root.glob(pattern)}
    assert {root / "quality" / name for name in ("prose.txt", "code.txt", "README.md")} <= shipped
