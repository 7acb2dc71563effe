"""Beam search finds the sequence that transformers' generate finds, under every rule, width and penalty.

On tiny random models, where many short searches can be run over transformers' own forward pass, and by the engine on
the default model against what is kept in tests/bench/beam_reference.json.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from engine.beam_search import BeamSearch
from engine.build import build
from engine.config import EngineConfig, LiveSettings
from engine.records import Request, Searched
from tests.bench.beam_reference import ARGUMENTS, PROMPTS, Arguments, Run, best_sequence, kept, summed_logprob
from tests.support.beams import Dense, search
from tests.support.tiny_models import VOCABULARY, config_of, make

ALLOWED = 1e-4  # summed log-probability of another sequence than transformers'
FLOAT32 = 2e-5  # a token: what torch's float32 log-softmax, which transformers sums, is off over 49,152 tokens
RULES = (False, True, "never")


@pytest.fixture(scope="module")
def tiny():
    return make(config_of("llama", tied=False), seed=5)


def likely_endings(model, prompt: list[int], count: int) -> list[int]:
    """Tokens that come up while searching, so that beams really end."""
    found: list[int] = []
    tokens = list(prompt)
    with torch.inference_mode():
        for rank in itertools.cycle((2, 1, 3)):
            if len(found) == count:
                return sorted(found)
            best = model(input_ids=torch.tensor([tokens])).logits[0, -1].topk(4).indices.tolist()
            if best[rank] not in found:
                found.append(best[rank])
            tokens.append(best[0])


@pytest.mark.parametrize("width", [2, 3, 8])
def test_tiny_models_agree(tiny, width):
    """Every penalty with every rule, without an ending token, with one and with three."""
    ended = 0
    for penalty, rule, endings in itertools.product([0.0, 1.0, 2.0], RULES, (0, 1, 3)):
        generator = torch.Generator().manual_seed(100 * width + endings)
        prompt = torch.randint(VOCABULARY, (6,), generator=generator).tolist()
        eos = likely_endings(tiny, prompt, endings)
        wanted, score = best_sequence(tiny, prompt, Arguments(width, penalty, rule), 10, eos)
        best, *_ = found = search(Dense(tiny, prompt), BeamSearch(width, 10, eos, penalty, rule))
        assert len(found) == width
        assert list(best.tokens) == wanted or abs(best.logprob - summed_logprob(tiny, prompt, wanted)) < ALLOWED
        assert best.score == pytest.approx(score, abs=1e-4)
        ended += best.stopped
    assert 3 < ended < 18, "either hardly any search ended by a token, or all did"


def test_what_is_kept_covers_the_rules():
    reference = kept()
    assert len(reference.prompts) == len(PROMPTS) >= 12
    assert {(run.prompt, run.arguments) for run in reference.runs} == set(
        itertools.product(range(len(PROMPTS)), ARGUMENTS)
    )
    assert {a.width for a in ARGUMENTS} == {2, 4, 8}
    assert {a.early_stopping for a in ARGUMENTS} == set(RULES)
    by_end = [run.tokens[-1] in reference.eos_ids for run in reference.runs]
    assert any(by_end) and not all(by_end)
    for run in reference.runs:
        summed = run.score * len(run.tokens) ** run.arguments.length_penalty
        assert abs(summed - run.logprob) < FLOAT32 * len(run.tokens)


def chosen(each: int) -> list[Run]:
    """`each` runs a prompt, so that every set of arguments is among them."""
    runs = {(run.prompt, run.arguments): run for run in kept().runs}
    places = [(i, (each * i + k) % len(ARGUMENTS)) for i in range(len(PROMPTS)) for k in range(each)]
    return [runs[prompt, ARGUMENTS[place]] for prompt, place in places]


def is_found(run: Run, tokens: list[int], logprob: float) -> bool:
    """Whether it is the very sequence; another must be as likely."""
    same = tokens == run.tokens
    if not same:
        print(f"prompt {run.prompt}, {run.arguments}: another sequence, {logprob:.6f} for {run.logprob:.6f}")
    assert logprob == pytest.approx(run.logprob, abs=ALLOWED)
    return same


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_engine_finds_what_transformers_finds():
    """All searches together, sharing blocks and steps."""
    reference, runs = kept(), chosen(1)
    settings = LiveSettings(max_batch=32, kv_blocks=1024, max_context=256)
    engine = build(EngineConfig(dtype="float32", device="cpu", settings=settings), lambda *_: None).engine
    for number, run in enumerate(runs):
        a = run.arguments
        request = Request(
            number=number,
            max_tokens=reference.new_tokens,
            beams=a.width,
            length_penalty=a.length_penalty,
            early_stopping=a.early_stopping,
        )
        engine.submit(number, reference.prompts[run.prompt].ids, request)
    found = {}
    while engine.has_work:
        found |= {event.number: event.found for event in engine.step().events if isinstance(event, Searched)}
    engine.check()
    same = sum(is_found(run, found[i][0].token_ids, found[i][0].log_probability) for i, run in enumerate(runs))
    assert same >= len(runs) - 1
    for i, run in enumerate(runs):
        assert found[i][0].score == pytest.approx(run.score, abs=1e-3)
