"""Penalties against their definition, one token at a time, and through the engine against a dense loop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.config import LiveSettings
from engine.core import Engine
from engine.penalties import Penalties, penalise
from engine.records import DRAFT, TOKEN, Preempted, Request, Sampling, unpack
from engine.requests import RequestRefused, check_request, resolve_sampling, settled
from engine.sampler import Sampler, SampleRow
from engine.speculation.ngram import NgramProposer
from tests.support.definition import penalised
from tests.support.fake_runner import FakeRunner, TableModel, settings

VOCABULARY = 8
PENALISED = Sampling(temperature=0.0, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.15)


def of(prompt: list[int], output: list[int], *values: float) -> Penalties:
    found = Penalties(*values)
    found.follow(prompt, len(prompt))
    found.follow(prompt + output, len(prompt))
    return found


def test_by_hand():
    """Token 0 only in the prompt, 1 once and 2 twice in the output, 3 nowhere."""
    logits = torch.tensor([[2.0, -1.0, 4.0, 3.0]])
    found = penalise(logits, [(0, of([0, 0], [2, 1, 2], 2.0, 0.5, 0.25), [])])
    assert found.tolist() == [[1.0, -2.0 - 0.5 - 0.25, 2.0 - 0.5 - 2 * 0.25, 3.0]]
    assert logits.tolist() == [[2.0, -1.0, 4.0, 3.0]]


ids = st.integers(0, VOCABULARY - 1)


@given(
    prompt=st.lists(ids, min_size=1, max_size=6),
    output=st.lists(ids, max_size=6),
    after=st.lists(ids, max_size=4),
    values=st.tuples(st.floats(0.1, 10), st.floats(-2, 2), st.floats(-2, 2)),
    seed=st.integers(0, 99),
)
def test_as_defined(prompt, output, after, values, seed):
    """Of a row and of the one before it; a row that isn't named keeps its logits."""
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(seed))
    penalties = of(prompt, output, *values)
    found = penalise(logits, [(2, penalties, after), (0, penalties, [])])
    assert torch.equal(found[1], logits[1])
    for row, tail in ((0, []), (2, after)):
        expected = penalised(logits[row].double().numpy(), prompt, output + tail, *values)
        np.testing.assert_allclose(found[row].numpy(), expected, rtol=1e-6, atol=1e-6)


@given(prompt=st.lists(ids, min_size=1, max_size=6), output=st.lists(ids, max_size=6), after=st.lists(ids, max_size=4))
def test_tokens_are_counted_as_they_come_and_drafts_are_forgotten(prompt, output, after):
    once, step_by_step = of(prompt, output), Penalties()
    for end in range(1, len(prompt + output) + 1):
        step_by_step.follow((prompt + output)[:end], len(prompt))
        step_by_step.held(after)
    assert step_by_step.held() == once.held()
    counts = dict(zip(*once.held(after), strict=True))
    assert counts == {token: (output + after).count(token) for token in prompt + output + after}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(dtype):
    """What was in less than float32 isn't rounded back to it."""
    found = penalise(torch.tensor([[3.0, 1.0]], dtype=dtype), [(0, of([0], [], 1.1), [])])
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert found[0, 0].item() == pytest.approx(3 / 1.1, rel=1e-7)


def test_a_token_of_probability_zero_stays_so():
    found = penalise(torch.tensor([[-torch.inf, 1.0]]), [(0, of([0], [0], 0.5, -2.0, -2.0), [])])
    assert found.tolist() == [[-torch.inf, 1.0]]


# --- in the sampler ---


def test_rows_without_penalties_pay_nothing(monkeypatch):
    monkeypatch.setattr("engine.sampler.penalise", None)  # not to be called
    logits = torch.randn(4, VOCABULARY)
    Sampler(VOCABULARY).sample(logits, [SampleRow([1]), SampleRow([2], temperature=1.0)])
    with pytest.raises(TypeError):
        Sampler(VOCABULARY).sample(logits[:1], [SampleRow(penalties=of([1], []))])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_penalties_of_one_row_leave_the_others_alone(temperature):
    logits = torch.randn(9, VOCABULARY, generator=torch.Generator().manual_seed(2))
    rows = [
        SampleRow([1, 2], temperature=temperature, seed=1),
        SampleRow([3], temperature=temperature, seed=2, penalties=of([3], [3, 4], 1.5, 1.0, 0.5)),
        SampleRow([5, 5, 6], temperature=temperature, seed=3, penalties=of([1, 5], [], 1.0, 0.0, 2.0)),
    ]
    together = Sampler(VOCABULARY).sample(logits, rows)
    for row, outcome, (start, end) in zip(rows, together, ((0, 3), (3, 5), (5, 9)), strict=True):
        alone = Sampler(VOCABULARY).sample(logits[start:end], [row])[0]
        assert (alone.tokens, alone.accepted) == (outcome.tokens, outcome.accepted)


def test_p_at_a_position_counts_the_drafts_before_it():
    logits = torch.zeros(4, 4)
    row = SampleRow([1, 1, 1], temperature=1.0, penalties=of([0], [], 1.0, 0.0, 1.0))
    (outcome,) = Sampler(4).sample(logits, [row])
    p = [entry[3] for entry in sorted(outcome.drafts) if entry[1] == 1][:3]
    assert p == pytest.approx([np.exp(-n) / (3 + np.exp(-n)) for n in range(3)])
    shown = Sampler(4).weights(logits, row)
    assert (shown[:, 1] / shown.sum(dim=1)).tolist() == pytest.approx([np.exp(-n) / (3 + np.exp(-n)) for n in range(4)])


def test_a_greedy_draft_repeats_only_while_that_is_the_likeliest():
    logits = torch.tensor([[0.0, 3.0, 2.5]]).repeat(4, 1)
    row = SampleRow([1, 1, 1], penalties=of([0], [], 1.0, 0.0, 0.3))
    (outcome,) = Sampler(3).sample(logits, [row])
    assert outcome.tokens == [1, 1, 2]  # 3.0 and 2.7 are above 2.5, 2.4 is not


# --- through the engine ---

MODEL = TableModel(VOCABULARY, seed=6, sharpness=1.5)
PROMPTS = [[1, 2, 3], [4], [5, 6, 5, 6, 5, 6], [7, 0, 7, 1, 7, 2, 7, 3], [2, 2]]
COUNT = 24


def dense(prompt: list[int], sampling: Sampling) -> list[int]:
    """Greedy, one token at a time, by the definition."""
    output: list[int] = []
    values = sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty
    for _ in range(COUNT):
        logits = MODEL.logits(prompt + output)
        output.append(int(penalised(logits.astype(np.float64), prompt, output, *values).argmax()))
    return output


def serve(request: Callable[[int], Request], **changes) -> tuple[list[list[int]], int, int]:
    """Outputs by sequence, drafts accepted, preemptions."""
    live = settings(**changes)
    runner = FakeRunner(live.kv_blocks, 8, MODEL)
    engine = Engine(runner, live, Sampler(VOCABULARY), bounds=runner.bounds(), proposers={"ngram": NgramProposer.of})
    lanes = sum(engine.submit(i, prompt, request(i)) and request(i).n for i, prompt in enumerate(PROMPTS))
    outputs: list[list[int]] = [[] for _ in range(lanes)]
    accepted = preempted = 0
    while engine.has_work:
        record = engine.step()
        engine.check()
        for seq, token in unpack(record.emitted, TOKEN)[["seq", "token"]].tolist():
            outputs[seq - 1].append(token)
        accepted += int((unpack(record.drafts, DRAFT)["verdict"] == 0).sum())
        preempted += sum(isinstance(event, Preempted) for event in record.events)
    return outputs, accepted, preempted


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("gamma", [0, 1, 4])
def test_greedy_output_is_the_definitions_with_drafts_and_without(gamma, tight):
    more = {"kv_blocks": 8, "token_budget": 8} if tight else {}
    outputs, accepted, preempted = serve(
        lambda i: Request(number=i, max_tokens=COUNT, sampling=PENALISED), draft_length=gamma, **more
    )
    assert outputs == [dense(prompt, PENALISED) for prompt in PROMPTS]
    assert (accepted > 0) == (gamma > 0)
    assert (preempted > 0) == tight


def test_penalties_change_what_is_written():
    plain = Sampling(temperature=0.0)
    outputs, _, _ = serve(lambda i: Request(number=i, max_tokens=COUNT, sampling=plain if i % 2 else PENALISED))
    assert outputs[1] == MODEL.greedy(PROMPTS[1], COUNT)  # beside rows with penalties
    assert outputs[0] == dense(PROMPTS[0], PENALISED) != MODEL.greedy(PROMPTS[0], COUNT)


def test_defaults_are_those_of_the_settings():
    named = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.15}
    outputs, _, _ = serve(lambda i: Request(number=i, max_tokens=COUNT), **named)
    assert outputs == [dense(prompt, PENALISED) for prompt in PROMPTS]


def sampled(n: int, seed: int) -> Callable[[int], Request]:
    sampling = Sampling(temperature=1.0, repetition_penalty=1.5, frequency_penalty=0.5, seed=seed)
    return lambda i: Request(number=i, max_tokens=COUNT, sampling=sampling, n=n)


def test_each_sample_counts_its_own_tokens():
    outputs, _, _ = serve(sampled(3, 7), draft_length=0, max_batch=16)
    for index in range(3):
        assert serve(sampled(1, 7 + index), draft_length=0)[0] == outputs[index::3]


# --- what is asked and what is refused ---


def test_without_effect_they_are_none():
    live = LiveSettings()
    assert resolve_sampling(Request(number=0), live, 0).penalties is None
    own = Sampling(repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)
    defaults = LiveSettings(repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=1.0)
    assert resolve_sampling(Request(number=0, sampling=own), defaults, 0).penalties is None
    found = resolve_sampling(Request(number=0, sampling=Sampling(presence_penalty=-1.0)), defaults, 0).penalties
    assert found is not None and (found.repetition, found.presence, found.frequency) == (2.0, -1.0, 1.0)


def test_settled_ones_are_asked_for_whatever_the_defaults_are():
    live = LiveSettings(temperature=0.5, top_k=3, repetition_penalty=2.0, frequency_penalty=1.0)
    asked = settled(resolve_sampling(Request(number=3, sampling=Sampling(presence_penalty=-1.0)), live, 7))
    assert asked == Sampling(
        temperature=0.5, top_k=3, top_p=1.0, min_p=0.0, repetition_penalty=2.0, presence_penalty=-1.0,
        frequency_penalty=1.0, seed=asked.seed,
    )  # fmt: skip
    assert settled(resolve_sampling(Request(number=3, sampling=asked), LiveSettings(presence_penalty=1.0), 0)) == asked


def refused(request: Request) -> str:
    with pytest.raises(RequestRefused) as error:
        check_request([1], request, LiveSettings(), VOCABULARY, 16)
    return str(error.value)


@pytest.mark.parametrize("value", [0.0, -1.0, 11.0, np.nan, np.inf])
def test_repetition_is_a_factor(value):
    found = refused(Request(number=0, sampling=Sampling(repetition_penalty=value)))
    assert found == f"repetition_penalty is {value:g}; it must be 0.1 to 10"


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_the_others_are_bounded_on_both_sides(name):
    for value in (-2.5, 2.5, np.nan):
        assert refused(Request(number=0, sampling=Sampling(**{name: value}))).endswith("it must be -2 to 2")


@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_a_beam_search_takes_none(name):
    assert f"without {name}; leave it out" in refused(Request(number=0, beams=2, sampling=Sampling(**{name: 0.5})))
    neutral = Sampling(repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)
    check_request([1], Request(number=0, beams=2, sampling=neutral), LiveSettings(), VOCABULARY, 16)
