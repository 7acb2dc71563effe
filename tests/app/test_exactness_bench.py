"""The exactness bench without a model: that its runs cover what it says, and what it refuses."""

import argparse
import random
from dataclasses import astuple
from itertools import combinations, product

import pytest

from app.__main__ import main
from app.bench import exactness
from app.bench.combinations import FULL, LONGEST, PAIRWISE, PERIOD
from app.bench.drag import changes
from app.bench.equality import compare, first_difference
from app.bench.oracle import KINDS, LENGTHS, NEW_TOKENS, prompts
from app.bench.policies import POLICIES
from app.options import add_engine_options
from engine import config
from engine.config import SettingRefused, follow_block_size, limits, limits_of_size, validate
from tests.support.fake_runner import FakeRunner
from tests.support.tiny_directory import make_directory

OPTIONS = argparse.ArgumentParser()
add_engine_options(OPTIONS)
INT8 = OPTIONS.parse_args(["--dtype", "int8"])


def test_full_has_every_combination_of_the_first_five():
    assert sorted(astuple(c)[:5] for c in FULL) == sorted(
        product((1, 16), (16, 32), (32, 512), (0, 4), (False, True))
    )


@pytest.mark.parametrize("runs", [FULL, PAIRWISE], ids=["full", "pairwise"])
def test_every_two_settings_meet_at_every_two_values(runs):
    values = [astuple(c) for c in runs]
    for a, b in combinations(range(6), 2):
        assert len({(v[a], v[b]) for v in values}) == 4


@pytest.mark.parametrize("combination", FULL, ids=str)
def test_settings_are_valid_and_stay_so(combination):
    model = FakeRunner(4, 16).model
    bounds = limits(model, combination.block_size, 1 << 20)
    settings = combination.settings()
    validate(settings, bounds, combination.block_size, largest_need=LONGEST)
    changes = [change for step in range(3 * PERIOD) if (change := combination.change_at(step))]
    assert bool(changes) == combination.preempt
    for change in changes:
        assert change["max_batch"] <= settings.token_budget


def test_the_last_forced_change_puts_the_batch_back():
    for combination in FULL:
        if combination.preempt:
            last = [change for step in range(3 * PERIOD) if (change := combination.change_at(step))][-1]
            assert last == {"max_batch": combination.batch}


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_policies_are_valid_and_stay_so(policy):
    """A change that is refused would show nothing."""
    model = FakeRunner(4, 16).model
    now, bounds = policy.settings(), limits(model, 16, 1 << 20)
    validate(now, bounds, 16, largest_need=LONGEST)
    changes = [change for step in range(200) if (change := policy.change_at(step))]
    assert bool(changes) == bool(policy.turns)
    for change in changes:
        new = follow_block_size(now, config.change(now, change), change) if "block_size" in change else None
        new = new or config.change(now, change)
        bounds = limits_of_size(bounds, now.block_size, new.block_size)
        validate(new, bounds, new.block_size, largest_need=LONGEST)
        now = new


def test_prompts_are_twenty_from_5_to_600_tokens():
    made = prompts(lambda text: [ord(c) for c in text])
    assert len(made) == len(KINDS) * len(LENGTHS) >= 20
    assert sorted({len(p) for p in made}) == sorted(LENGTHS)
    assert (min(LENGTHS), max(LENGTHS)) == (5, 600)
    assert max(LENGTHS) + NEW_TOKENS <= LONGEST
    longest = [p for p in made if len(p) == 600]
    assert all(any(long[: len(p)] == p for long in longest) for p in made)  # prefixes to be shared
    assert len({tuple(p) for p in made}) == len(made)


def test_what_it_refuses(capsys):
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["bench", "exactness", "--set", "max_batch=2"]))
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert "chooses the settings itself" in error
    assert len(error.strip().splitlines()) == 1


def test_a_missing_oracle_is_said(monkeypatch, capsys):
    monkeypatch.setattr("app.bench.exactness.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["bench", "exactness"]))
    assert ended.value.code == 1
    assert "pip install 'servescope[test]'" in capsys.readouterr().err


def test_a_form_is_given_twice_its_noise(monkeypatch, capsys):
    """And one without noise is given nothing."""
    references = [{"prompt": [1], "tokens": [2, 3], "gaps": [0.5, 1e-9]}]
    for noise, allowance in ((0.0, 0.0), (0.25, 0.5)):
        answer = {"references": references, "noise": noise}
        monkeypatch.setattr("app.bench.runs.fresh_process", lambda *_, answer=answer, **__: answer)
        found, allowed = exactness._from_itself(INT8)
        assert allowed == allowance and f"moves by {noise:.2e}" in capsys.readouterr().err
        assert compare([[2, 3]], found, allowed).equal
        difference = first_difference([2, 4], found[0], 0, allowed)
        assert difference.allowed == (noise > 0)


def test_a_form_that_cannot_be_had_is_said(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["bench", "exactness", "--dtype", "file", "--model", str(make_directory(tmp_path))]))
    assert ended.value.code == 1 and "bench exactness: " in capsys.readouterr().err


def test_a_refusal_would_be_seen():
    with pytest.raises(SettingRefused):
        validate(FULL[0].settings(), limits(FakeRunner(4, 16).model, 16, 8), 16)


def test_dragging_reaches_every_length_and_is_never_refused():
    model = FakeRunner(4, 16).model
    now, bounds, rng = config.LiveSettings(), limits(model, 16, 1 << 20), random.Random(0)
    bounds["draft_layers"] = config.Limit(0, 0, "")
    seen = set()
    for _ in range(600):
        now = config.change(now, changes(rng, ("off", "ngram", "suffix")))
        validate(now, bounds, now.block_size)
        seen.add((now.draft_length, now.draft_method, now.draft_policy))
    assert {length for length, _, _ in seen} == set(range(9))
    assert {method for _, method, _ in seen} == {"off", "ngram", "suffix"}
    assert {policy for _, _, policy in seen} == {"fixed", "adaptive"}


def test_dragging_is_a_run_of_its_own(capsys):
    with pytest.raises(SystemExit) as end:
        main(["bench", "exactness", "--drag", "5", "--full"])
    assert end.value.code == 2
    assert "not allowed with" in capsys.readouterr().err
