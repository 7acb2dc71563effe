"""The sampler against straightforward references, one row and one token at a time, and against chi-square."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from engine.distribution import weights_of
from engine.records import ACCEPTED, BONUS, DISCARDED, ORIGINS, REJECTED, RESAMPLED
from engine.sampler import BadLogits, Sampler, SampleRow
from engine.speculation.accept import ExactRule
from tests.support.definition import filtered
from tests.support.wrong_rules import AcceptsByInverse, AlwaysAccepts, ResamplesFromTarget


def ours(logits: np.ndarray, **params) -> np.ndarray:
    row = SampleRow(**params)
    weights = weights_of(torch.tensor(logits[None], dtype=torch.float64), [row], np.zeros(1, dtype=np.int64))[0]
    return (weights / weights.sum()).numpy()


# eighths, so that equal logits are common and sums of shares are not at the edge of rounding
logit_rows = st.lists(st.integers(-24, 24).map(lambda n: n / 8), min_size=1, max_size=24).map(np.array)


@given(
    logits=logit_rows,
    temperature=st.floats(0.1, 3),
    top_k=st.integers(0, 30),
    top_p=st.floats(0.01, 1),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
)
def test_filters_do_what_they_say(logits, temperature, top_k, top_p, min_p):
    params = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    np.testing.assert_allclose(ours(logits, **params), filtered(logits, **params), atol=1e-12)


def test_filters_of_one_row_leave_the_others_alone():
    """Every row of a mixed batch has the distribution that it has alone."""
    logits = torch.randn(6, 3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = [
        SampleRow(temperature=0.7),
        SampleRow(temperature=1.3, top_k=5),
        SampleRow(temperature=1.0, top_p=0.9),  # flat: past the 1,024 likeliest, so the row is sorted whole
        SampleRow(temperature=0.2, top_p=0.5, min_p=0.1),
        SampleRow(temperature=1.0, min_p=0.3, top_k=2000),
    ]
    owner = np.array([0, 1, 2, 3, 4, 4])
    together = weights_of(logits, rows, owner)
    for i, row in enumerate(owner):
        alone = weights_of(logits[i : i + 1], [rows[row]], np.zeros(1, dtype=np.int64))[0]
        torch.testing.assert_close(together[i], alone)


def test_equal_logits_lower_id_first():
    assert ours(np.zeros(6), temperature=1.0, top_k=2).tolist() == [0.5, 0.5, 0, 0, 0, 0]
    assert ours(np.zeros(4), temperature=1.0, top_p=0.5).tolist() == [0.5, 0.5, 0, 0]
    row = np.array([0.0, 3.0, 1.0, 1.0, 1.0])
    assert np.flatnonzero(ours(row, temperature=1.0, top_k=3)).tolist() == [1, 2, 3]
    assert Sampler(4).sample(torch.zeros(1, 4), [SampleRow()])[0].tokens == [0]


def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.full((1, 5), -math.inf)
    logits[0, 3] = 0.0
    for seed in range(50):
        assert Sampler(5).sample(logits, [SampleRow(temperature=5.0, seed=seed)])[0].tokens == [3]


# --- greedy ---


def test_greedy_is_the_likeliest():
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    outcomes = Sampler(40).sample(logits, [SampleRow() for _ in range(5)])
    assert [o.tokens for o in outcomes] == logits.argmax(1)[:, None].tolist()
    assert all(o.origins == [0] and o.accepted == 0 and o.drafts == [] for o in outcomes)


def one_hot_logits(tokens: list[int], vocabulary: int = 10) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens), vocabulary).float()


def test_greedy_verdicts():
    logits = one_hot_logits([1, 2, 7, 4])
    outcome = Sampler(10).sample(logits, [SampleRow(drafts=[1, 2, 3], q=[1.0] * 3, position=20)])[0]
    assert outcome.tokens == [1, 2, 7]
    assert outcome.accepted == 2
    assert [ORIGINS[o] for o in outcome.origins] == ["accepted", "accepted", "resampled"]
    assert [d[:5] for d in outcome.drafts] == [
        (20, 1, ACCEPTED, 1.0, 1.0),
        (21, 2, ACCEPTED, 1.0, 1.0),
        (22, 3, REJECTED, 0.0, 1.0),
        (22, 7, RESAMPLED, 1.0, 0.0),
    ]
    assert all(math.isnan(d[5]) for d in outcome.drafts)


def test_greedy_bonus_and_discarded():
    whole, none = Sampler(10).sample(
        one_hot_logits([1, 2, 3, 5, 6, 7]), [SampleRow(drafts=[1, 2], position=5), SampleRow(drafts=[4, 6], position=9)]
    )
    assert whole.tokens == [1, 2, 3]
    assert [d[:3] for d in whole.drafts] == [(5, 1, ACCEPTED), (6, 2, ACCEPTED), (7, 3, BONUS)]
    assert ORIGINS[whole.origins[-1]] == "bonus"
    assert none.tokens == [5]
    assert [d[:3] for d in none.drafts] == [(9, 4, REJECTED), (9, 5, RESAMPLED), (10, 6, DISCARDED)]


# --- sampled ---


def test_sampled_verdicts_tell_what_decided():
    logits = torch.log(torch.tensor([[0.7, 0.2, 0.1]])).repeat(4, 1)
    seen = set()
    for seed in range(200):
        row = SampleRow(drafts=[0, 0, 1], q=[1.0] * 3, temperature=1.0, seed=seed, position=3)
        outcome = Sampler(3).sample(logits, [row])[0]
        assert outcome.accepted == len(outcome.tokens) - 1
        examined = [d for d in outcome.drafts if d[2] in (ACCEPTED, REJECTED)]
        assert [d[2] == ACCEPTED for d in examined] == [d[5] < d[3] for d in examined]
        assert [d[3] for d in examined] == pytest.approx([0.7, 0.7, 0.2][: len(examined)])
        assert all(math.isnan(d[5]) for d in outcome.drafts if d[2] == DISCARDED)
        assert [d[0] for d in outcome.drafts] == sorted(d[0] for d in outcome.drafts)
        assert all(d[3] == pytest.approx([0.7, 0.2, 0.1][d[1]]) for d in outcome.drafts if d[2] in (RESAMPLED, BONUS))
        seen.add(tuple(d[2] for d in outcome.drafts))
    assert (ACCEPTED, ACCEPTED, ACCEPTED, BONUS) in seen
    assert (REJECTED, RESAMPLED, DISCARDED, DISCARDED) in seen
    assert (ACCEPTED, REJECTED, RESAMPLED, DISCARDED) in seen


def mixed_rows(count: int, vocabulary: int, seed: int) -> list[SampleRow]:
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        drafts = rng.integers(0, vocabulary, rng.integers(0, 5)).tolist()
        kind = i % 4
        params = [{}, {"temperature": 0.8}, {"temperature": 1.0, "top_k": 3}, {"temperature": 1.5, "top_p": 0.8}][kind]
        q_rows = torch.rand(len(drafts), vocabulary) if kind == 1 and drafts else None
        rows.append(SampleRow(drafts=drafts, seed=i, position=int(rng.integers(1, 99)), q_rows=q_rows, **params))
    return rows


def same(a, b) -> bool:
    return a.tokens == b.tokens and a.origins == b.origins and [d[:3] for d in a.drafts] == [d[:3] for d in b.drafts]


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 12))
def test_a_row_decides_the_same_alone_and_in_a_batch(seed, count):
    """Mixed draft lengths, greedy and sampled rows, one-hot and full draft distributions, in one pass."""
    vocabulary = 12
    torch.manual_seed(seed)
    rows = mixed_rows(count, vocabulary, seed)
    logits = torch.randn(sum(len(r.drafts) + 1 for r in rows), vocabulary)
    sampler = Sampler(vocabulary)
    together = sampler.sample(logits, rows)
    start = 0
    for row, outcome in zip(rows, together, strict=True):
        end = start + len(row.drafts) + 1
        assert same(sampler.sample(logits[start:end], [row])[0], outcome)
        start = end


def test_groups_of_a_large_batch_decide_as_one(monkeypatch):
    rows = mixed_rows(20, 12, 5)
    logits = torch.randn(sum(len(r.drafts) + 1 for r in rows), 12, generator=torch.Generator().manual_seed(1))
    whole = Sampler(12).sample(logits, rows)
    monkeypatch.setattr("engine.sampler._CHUNK", 12 * 6)
    assert all(same(a, b) for a, b in zip(whole, Sampler(12).sample(logits, rows), strict=True))


def test_seed_and_position_choose_the_number_and_nothing_else_does():
    logits = torch.zeros(1, 1000)
    first = Sampler(1000).sample(logits, [SampleRow(temperature=1.0, seed=1, position=5)])[0].tokens
    assert Sampler(1000).sample(logits, [SampleRow(temperature=1.0, seed=1, position=5)])[0].tokens == first
    others = [SampleRow(temperature=1.0, seed=2, position=5), SampleRow(temperature=1.0, seed=1, position=6)]
    assert all(o.tokens != first for o in Sampler(1000).sample(logits.repeat(2, 1), others))


def test_single_draws_have_the_distribution():
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5, 0.5])
    rows = [SampleRow(temperature=0.9, top_k=5, seed=i, position=i % 7) for i in range(40_000)]
    outcomes = Sampler(6).sample(logits.repeat(len(rows), 1), rows)
    counts = np.bincount([o.tokens[0] for o in outcomes], minlength=6)
    expected = filtered(logits.double().numpy(), 0.9, 5, 1.0, 0.0)
    assert counts[expected == 0].sum() == 0
    assert stats.chisquare(counts[expected > 0], len(rows) * expected[expected > 0]).pvalue > 1e-4


# --- distribution of a verified pass ---

# target probabilities at two positions, whatever came before, and those of a draft model that is mostly wrong
P = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
Q = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]], dtype=torch.float64)
JOINT = np.outer(P[0], P[1]).ravel()
JOINT /= JOINT.sum()


def pass_counts(rule: ExactRule | None, full: bool, n: int = 30_000) -> np.ndarray:
    """How often each pair of first two tokens came out: draft one token, verify, and where the pass ended after one
    token, draw the second plainly."""
    logits = P.log()
    sampler = Sampler(4, rule)
    drafted = np.random.default_rng(3).choice(4, size=n, p=Q[0]) if full else np.full(n, 2)
    rows = [
        SampleRow([int(d)], [], 1.0, seed=i, position=0, q_rows=Q[:1] if full else None) for i, d in enumerate(drafted)
    ]
    outcomes = sampler.sample(logits.repeat(n, 1), rows)
    short = [i for i, o in enumerate(outcomes) if len(o.tokens) == 1]
    ended = [SampleRow(temperature=1.0, seed=i, position=1) for i in short]
    second = sampler.sample(logits[1:].repeat(len(short), 1), ended)
    for i, outcome in zip(short, second, strict=True):
        outcomes[i].tokens += outcome.tokens
    return np.bincount([o.tokens[0] * 4 + o.tokens[1] for o in outcomes], minlength=16)


@pytest.mark.parametrize("full", [False, True], ids=["one-hot", "draft model"])
def test_a_verified_pass_has_the_targets_distribution(full):
    counts = pass_counts(None, full)
    assert stats.chisquare(counts, counts.sum() * JOINT).pvalue > 1e-4


WRONG = [AlwaysAccepts(), AcceptsByInverse(), ResamplesFromTarget()]


@pytest.mark.parametrize("full", [False, True], ids=["one-hot", "draft model"])
@pytest.mark.parametrize("rule", WRONG, ids=lambda rule: type(rule).__name__)
def test_wrong_rules_are_caught(rule, full):
    counts = pass_counts(rule, full)
    assert stats.chisquare(counts, counts.sum() * JOINT).pvalue < 1e-12


def test_a_draft_equal_to_the_target_is_always_accepted():
    rows = [SampleRow([i % 4], [], 1.0, seed=i, q_rows=P[:1]) for i in range(400)]
    outcomes = Sampler(4).sample(P.log().repeat(400, 1), rows)
    assert all(o.accepted == 1 for o in outcomes)


# --- what is refused ---


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("row", [SampleRow(), SampleRow(temperature=1.0)], ids=["greedy", "sampled"])
def test_bad_logits_are_an_error(bad, row):
    logits = torch.randn(2, 50)
    logits[1, 31] = bad
    with pytest.raises(BadLogits, match="1 of 2 rows"):
        Sampler(50).sample(logits, [row, row])


def test_a_row_without_any_token_is_an_error():
    with pytest.raises(BadLogits):
        Sampler(5).sample(torch.full((1, 5), -math.inf), [SampleRow()])


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="2 rows of 5"):
        Sampler(5).sample(torch.zeros(1, 5), [SampleRow([1])])
    assert Sampler(5).sample(torch.zeros(0, 5), []) == []


def test_draft_probabilities_are_checked():
    with pytest.raises(ValueError, match="q_rows"):
        SampleRow([1], [0.5])
    with pytest.raises(ValueError, match="probabilities"):
        SampleRow([1, 2], [1.0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(dtype):
    logits = torch.tensor([[0.0, 3.0, 1.0]], dtype=dtype)
    assert Sampler(3).sample(logits, [SampleRow()])[0].tokens == [1]
    assert Sampler(3).sample(logits, [SampleRow(temperature=0.01)])[0].tokens == [1]


# --- the watched sequence ---


def test_what_is_shown_is_what_decided():
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0], [3.0, 1.0, 1.0, 0.0]])
    weights = Sampler(4).weights(logits, SampleRow([1], temperature=0.5, top_k=3))
    for shown, row in zip(weights / weights.sum(dim=1, keepdim=True), logits.double().numpy(), strict=True):
        assert shown.tolist() == pytest.approx(filtered(row, 0.5, 3, 1.0, 0.0).tolist())


def test_of_a_greedy_request_the_models_own_is_shown():
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    weights = Sampler(4).weights(logits, SampleRow(top_k=1))
    assert (weights / weights.sum())[0].tolist() == pytest.approx(torch.softmax(logits[0], 0).tolist())
    with pytest.raises(BadLogits):
        Sampler(4).weights(torch.full((1, 4), math.nan), SampleRow())


def test_the_leftover_of_a_certain_draft_is_p_without_it():
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    sampler, row = Sampler(3), SampleRow([1], temperature=1.0)
    assert sampler.draft(row, 0, p).tolist() == [0, 1, 0]
    assert sampler.leftover(p, row, 0).tolist() == [0.5, 0, 0.2]


def test_the_leftover_of_a_drawn_draft_is_p_less_q():
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    row = SampleRow([1], [0.6], temperature=1.0, q_rows=torch.tensor([[0.2, 1.2, 0.6]]))
    assert Sampler(3).draft(row, 0, p).tolist() == pytest.approx([0.1, 0.6, 0.3])
    assert Sampler(3).leftover(p, row, 0).tolist() == pytest.approx([0.4, 0, 0])
    same = SampleRow([1], [0.3], temperature=1.0, q_rows=p[None])
    assert Sampler(3).leftover(p, same, 0).tolist() == p.tolist()
