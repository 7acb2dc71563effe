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
])  # fmt: skip
def test_a_mistake_is_one_line_that_names_the_remedy(words, said):
    with pytest.raises(UsageError, match=said):
        of(*words)


def test_generate_says_that_it_was_simulated(capfd):
    from app.__main__ import main

    code = main(["generate", "--simulate", "h200:llama-3-8b", "--prompt", "Why is the sky blue?", "--json",
                 "--max-tokens", "8"])  # fmt: skip
    out, err = capfd.readouterr()
    assert code == 0
    assert json.loads(out)["simulated"] == "h200:llama-3-8b"
    assert "the text is meaningless" in err
