"""The window's bench prints figures that are there and make sense; what they are depends on the machine."""

from __future__ import annotations

import argparse
import json

import pytest

from app.bench import window
from app.options import UsageError


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    window.add_arguments(parser)
    return parser.parse_args(words)


def test_it_measures_each_size(qapp, capsys) -> None:
    words = ["--blocks", "300", "--blocks", "5000", "--sequences", "6", "--frames", "4", "--size", "500x300", "--json"]
    assert window.run(arguments(*words)) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["blocks"], one["sequences"]) for one in told["results"]] == [(300, 6), (5000, 6)]
    for one in told["results"]:
        for name in ("encode_us", "decode_us", "apply_us", "pool_frame_ms", "tables_frame_ms"):
            assert 0 < one[f"{name}_p50"] <= one[f"{name}_p99"]


def test_it_prints_a_line_each(qapp, capsys) -> None:
    assert window.run(arguments("--blocks", "300", "--sequences", "6", "--frames", "2", "--size", "200x200")) == 0
    assert "300 blocks" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("--size", "big"), ("--frames", "0"), ("--blocks", "-4")])
def test_bad_words_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        window.run(arguments(*words))
