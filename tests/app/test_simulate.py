"""`--simulate`: what the command line makes of it, and that what is printed says so."""

from __future__ import annotations

import argparse
import json

import pytest

from app.fitting import fit, given
from app.options import UsageError, add_engine_options, add_simulate, engine_config
from engine.profiles import parse


def of(*words: str):
    parser = argparse.ArgumentParser()
    add_engine_options(parser)
    add_simulate(parser)
    args = parser.parse_args(list(words))
    return fit(engine_config(args), given(args.set))


def test_the_pool_fills_the_device_unless_it_is_asked_for():
    config = of("--simulate", "h200:llama-3-8b")
    assert config.simulation is not None and config.simulation.paced
    assert config.settings.kv_blocks == parse("h200:llama-3-8b").blocks(16, 8192) > 50_000
    assert config.settings.max_batch == 256 and config.settings.max_context == 8192
    asked = of("--simulate", "h200:smollm2-135m", "--set", "kv_blocks=400000", "--set", "max_batch=8")
    assert (asked.settings.kv_blocks, asked.settings.max_batch) == (400_000, 8)


@pytest.mark.parametrize("words, said", [
    (["--simulate", "h2000:llama-3-8b"], "devices: a10"),
    (["--simulate", "h200"], "DEVICE:MODEL"),
    (["--simulate", "h200:llama-3-8b", "--device", "cpu"], "leave --device out"),
    (["--simulate", "l4:llama-3-8b"], "'l4' is not known"),  # not the L40S
    (["--simulate", "h20:llama-3-8b"], "'h20' is not known"),  # not the H200
    (["--simulate", "a100:llama-3-8b"], "a100-40-gb or a100-80-gb"),
    (["--simulate", "rtx-4090:llama-3-70b"], "131 GiB.*22 GiB of one RTX 4090"),
    (["--simulate", "h200:llama-3-70b"], "--set kv_blocks=1024"),
    (["--simulate", "h200:smollm2-135m", "--set", "kv_blocks=1000000000"], "4,194,304 blocks at most"),
])  # fmt: skip
def test_a_mistake_is_one_line_that_names_the_remedy(words, said):
    with pytest.raises(UsageError, match=said):
        of(*words)


def test_a_pool_beyond_the_device_may_be_asked_for():
    assert of("--simulate", "rtx-4090:llama-3-70b", "--set", "kv_blocks=1024").settings.kv_blocks == 1024


@pytest.mark.parametrize("typed", ["rtx4090:gemma-2b", "RTX 4090:Gemma", "rtx-4090:gemma-2b-multi-query"])
def test_the_first_words_of_a_name_are_enough(typed):
    assert of("--simulate", typed).simulation.profile == typed


def test_generate_says_that_it_was_simulated(capfd):
    from app.__main__ import main

    code = main(["generate", "--simulate", "h200:llama-3-8b", "--prompt", "Why is the sky blue?", "--json",
                 "--max-tokens", "8"])  # fmt: skip
    out, err = capfd.readouterr()
    assert code == 0
    assert json.loads(out)["simulated"] == "h200:llama-3-8b"
    assert "the text is meaningless" in err
