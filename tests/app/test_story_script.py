"""Stories as files: those that ship can be told, and a broken one says what to mend."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import msgspec
import pytest

from app.stories import figures, script
from app.stories.asks import Draw
from app.stories.words import BadTemplate, check, fill, ratio
from app.workload.prompts import PromptSet
from tests.support.stories import RESERVE, story


def test_every_story_that_ships_can_be_told():
    stories, problems = script.load()
    assert problems == [] and len(stories) == 8
    assert [one.order for one in stories] == list(range(1, 9))  # the keys that start them
    for one in stories:
        assert one.phase[0].name != one.phase[1].name
        texts = [one.title, one.line, *(text for phase in one.phase for text in (phase.before, phase.after))]
        assert all(len(text) < 200 for text in texts), one.key  # an audience reads them from afar
        assert len(one.title) < 40 and len(one.line) < 100


def test_a_broken_file_costs_only_its_own_story(tmp_path: Path):
    (tmp_path / "good.toml").write_text(RESERVE, encoding="utf-8-sig")  # as editors on Windows may
    (tmp_path / "bad.toml").write_text("title = yes\n", encoding="utf-8")
    (tmp_path / "latin.toml").write_bytes(b'title = "caf\xe9"')
    (tmp_path / "nested.toml").write_text("a = " + "[" * 5000, encoding="utf-8")
    (tmp_path / "notes.txt").write_text("not a story", encoding="utf-8")
    stories, problems = script.load(tmp_path)
    assert [one.key for one in stories] == ["good"]
    assert problems[0].startswith("bad.toml: not TOML") and "line 1" in problems[0]
    assert problems[1] == "latin.toml: not UTF-8; save the file as UTF-8"
    assert problems[2].startswith("nested.toml: brackets are nested too deep")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('title = "Reserve or page"', "title = 5", ["title", "expected `str`, got `int`"]),
        ('line = "for a test"', "", ["line", "missing required field", "write it"]),
        ("order = 1", 'order = 1\ncolour = "red"', ["colour", "unknown field", "mend its spelling"]),
        ("max_batch = 16", 'max_batch = "many"', ["settings.max_batch", "max_batch cannot be 'many'"]),
        ("max_batch = 16", "max_batches = 16", ["settings.max_batches", "no such setting", "max_batch"]),
        ("kv_tokens = 512", "kv_blocks = 32", ["settings.kv_blocks", "kv_tokens"]),
        ("max_tokens = 112", "max_tokens = [9, 3]", ["requests[0].max_tokens", "[least, most]"]),
        ("max_tokens = 112", "max_tokens = 112\ncount = 3", ["requests[0]", "either prompts or a count"]),
        ('name = "paged"', 'name = "paged"\nbefore = "y"\n[[phase]]\nname = "x"', ["phase", "two phases"]),
        ('stop = ["#"]', 'phase = "b"', ["requests", "phase a has none"]),
        ("order = 1", 'order = 1\npanels = ["speed"]', ["panels[0]", "no panel 'speed'", "running"]),
        ('figure = "running_max"', 'figure = "speed"', ["verdict.figure", "no figure 'speed'", "tokens_per_s"]),
        ("First reserved.", "{a.speed}", ["phase[0].before", "{a.speed}", "figures are"]),
        ("First reserved.", "{a.x.tokens}", ["phase[0].before", "names no figure"]),
        ("First reserved.", "{a.tokens", ["phase[0].before", "brace"]),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, words: list[str]):
    assert old in RESERVE
    with pytest.raises(script.BadStory) as told:
        script.read("x.toml", RESERVE.replace(old, new, 1).encode())
    message = str(told.value)
    assert message.startswith("x.toml: ") and "\n" not in message
    for word in words:
        assert word in message


def test_pools_are_given_in_tokens_and_come_out_in_blocks():
    told = story()
    assert told.settings_of(0, 16)["kv_blocks"] == 32 and told.settings_of(1, 64)["kv_blocks"] == 8
    assert told.settings_of(0, 16)["allocation"] == "reserved" and told.settings_of(1, 16)["allocation"] == "paged"
    assert "kv_blocks" in told.touched and "block_size" not in told.touched


def test_both_phases_ask_for_the_same_and_another_seed_for_something_else():
    ask = script.Ask(count=12, prompt_tokens=200, max_tokens=[8, 100])
    told = msgspec.structs.replace(story(), requests=[ask])
    numbers = itertools.count()
    draw = Draw(PromptSet.load())
    first, second = (draw.plan(told, phase, lambda: next(numbers)) for phase in script.PHASES)
    asked = [[(one.request.prompt, one.request.max_tokens, one.at) for one in plan] for plan in (first, second)]
    assert asked[0] == asked[1] and len({tokens for _, tokens, _ in asked[0]}) > 4
    assert not {one.request.number for one in first} & {one.request.number for one in second}
    other = draw.plan(msgspec.structs.replace(told, seed=8), "a", lambda: next(numbers))
    assert [one.request.max_tokens for one in other] != [one.request.max_tokens for one in first]


def test_captions_are_filled_with_what_was_measured():
    values = {("a", "", "tokens"): 1234.0, ("b", "", "tokens"): 617.0, ("b", "long", "ttft"): 0.0312}

    def value(phase, group, name):
        return values.get((phase, group, name), math.nan)

    assert fill("{a.tokens} then {b.tokens}", value, figures.FORMATS) == "1,234 then 617"
    assert fill("{ a.tokens / b.tokens }", value, figures.FORMATS) == "2.0×"
    assert fill("{b.long.ttft}", value, figures.FORMATS) == "31.2 ms"
    assert fill("{b.ttft} and {a.tokens / b.ttft}", value, figures.FORMATS) == "– and –"


def test_ratios_have_no_more_digits_than_they_are_worth():
    assert [ratio(x) for x in (0.784, 1.2345, 1.96, 12.34, 123.4)] == ["0.78×", "1.23×", "2.0×", "12×", "123×"]


@pytest.mark.parametrize("text", ["{c.tokens}", "{tokens}", "{a.tokens / b.tokens / a.tokens}", "}", "{a.seconds} {"])
def test_templates_are_checked(text: str):
    with pytest.raises(BadTemplate):
        check(text, figures.FIGURES)
