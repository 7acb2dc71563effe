"""The command line: help with an example for each command, and mistakes in one line, never a traceback."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from app.__main__ import COMMANDS, main
from app.bench import BENCHES
from app.shot import _Shot

ALL = [[], *([name] for name in COMMANDS), *(["bench", name] for name in BENCHES)]


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_each_command_has_help_with_an_example(words, capsys):
    with pytest.raises(SystemExit) as end:
        main([*words, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert "example" in shown and " ".join(["servescope", *words]) in shown


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nonsense"], "nonsense"),
        (["bench"], "engine"),
        (["bench", "nonsense"], "nonsense"),
        (["generate"], "--prompt"),
        (["generate", "--prompt", "x", "--set", "max_batch"], "KEY=VALUE"),
        (["generate", "--prompt", "x", "--set", "max_bach=3"], "max_bach"),
        (["generate", "--prompt", "x", "--set", "max_batch=many"], "max_batch"),
        (["generate", "--prompt", "x", "--set", "block_size=24"], "block_size"),
        (["generate", "--prompt", "x", "--set", "draft_method=magic"], "draft_method"),
        (["generate", "--prompt", "x", "--set", "draft_method=model"], "draft_model=MODEL"),
        (["generate", "--prompt", "x", "--set", "draft_model=/a\udcff.gguf"], "not UTF-8"),
        (["generate", "--prompt", "x", "--set", "simulated_acceptance=0.9,1.7"], "0 to 1"),
        (["generate", "--prompt", "x", "--set", "simulated_acceptance=much"], "simulated_acceptance"),
        (["generate", "--prompt", "x", "--set", "ngram_min=5"], "ngram_min 5 is over ngram_max 4"),
        (["generate", "--prompt", "x", "--dtype", "float8"], "--dtype"),
        (["generate", "--prompt", "x", "--threads", "-1"], "--threads"),
        (["generate", "--prompt", "x", "--gpu", "first"], "nvidia-smi -L"),
        (["generate", "--prompt", "x", "--gpu", "0", "--device", "cpu"], "leave one"),
        (["generate", "--prompt", "x", "--memory-fraction", "1.5"], "--memory-fraction"),
        (["generate", "--prompt", "x", "--memory-fraction", "nan"], "--memory-fraction"),
        (["generate", "--prompts", "/no/such/file.jsonl"], "/no/such/file.jsonl"),
        (["shot"], "OUT.png"),
        (["shot", "picture.jpg"], "picture.png"),
        (["shot", "/no/such/folder/x.png"], "/no/such/folder"),
        (["shot", "x.png", "--size", "wide"], "1600x1000"),
        (["shot", "x.png", "--seconds", "-1"], "--seconds"),
        (["shot", "x.png", "--full"], "--simulate"),
        (["--scale", "9"], "--scale"),
        (["--theme", "pink"], "--theme"),
        (["--unknown"], "--unknown"),
        (["bench", "startup", "--runs", "0"], "--runs"),
        (["bench", "overhead", "--pairs", "0"], "--pairs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_on_standard_error(words, named, capsys, monkeypatch):
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    streams = capsys.readouterr()
    assert code not in (0, None) and streams.out == ""
    assert named in streams.err and len(streams.err.strip().splitlines()) == 1


def test_half_a_picture_is_none(tmp_path):
    out = tmp_path / "window.png"

    class Grabbed:
        def save(self, name: str, form: str) -> bool:
            Path(name).write_bytes(b"the disk was full")
            return False

    window = SimpleNamespace(mirror=SimpleNamespace(ready=object()), frame=SimpleNamespace(whole=lambda: None),
                             grab=Grabbed)  # fmt: skip
    shot = _Shot(out, 0.0)
    session = SimpleNamespace(source=SimpleNamespace(state="ready"), window=window)
    assert not shot.taken(session)  # ready only now
    assert shot.taken(session) and "could not be written" in shot.failure and not out.exists()
