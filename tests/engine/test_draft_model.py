"""A model that drafts: its proposals are its own dense continuations whatever happened before, its distributions are
those it drew from, and no block of its pool is lost or read by another sequence."""

from __future__ import annotations

import random
from contextlib import suppress

import numpy as np
import pytest
import torch
from scipy import stats

from engine.config import SettingRefused
from engine.core import Engine
from engine.model.store import ModelFiles
from engine.model.weights import load
from engine.penalties import Penalties
from engine.records import ACCEPTED, DRAFT, REJECTED, ROW, TOKEN, Preempted, Request, Sampling, unpack
from engine.runner.cpu import CpuRunner
from engine.sampler import Sampler, SampleRow
from engine.speculation import draft_model
from engine.speculation.draft_model import DraftModel
from engine.speculation.ngram import NgramProposer
from engine.speculation.proposer import Ask
from tests.support import joint, tiny_models
from tests.support.fake_runner import FakeRunner, TableModel, settings

V = 8
SIZE = 4  # tokens a block
GREEDY = SampleRow()


def drafter(blocks: int = 64, model: TableModel | None = None, draws: bool = True, vocabulary: int = V) -> DraftModel:
    """Its K/V is strict: a read of what isn't the sequence's own fails."""
    runner = FakeRunner(blocks, SIZE, model or TableModel(V, seed=5, sharpness=3.0))
    return DraftModel(runner, vocabulary, draws, own_weights=True)


def dense(proposer: DraftModel, tokens: list[int], count: int) -> list[int]:
    return proposer.runner.table_model.greedy(tokens, count)


# --- what it proposes ---


def test_a_draft_is_the_models_own_greedy_continuation() -> None:
    proposer = drafter()
    asks = [Ask(1, [1, 2, 3], 4, GREEDY), Ask(2, [4] * 9, 1, GREEDY), Ask(3, [5], 6, GREEDY)]
    drafts = proposer.propose(asks)
    assert drafts.tokens == [dense(proposer, ask.tokens, ask.limit) for ask in asks]
    assert not drafts.q
    assert proposer.runner.passes == 6  # as many as the longest draft has tokens: the prompts are in the first
    proposer.check()


def test_a_pass_later_only_what_is_new_is_computed() -> None:
    proposer = drafter()
    tokens = [1, 2, 3, 4, 5, 6]
    written: list[int] = []
    execute = proposer.runner.execute
    proposer.runner.execute = lambda batch: (written.append(len(batch.tokens)), execute(batch))[1]
    drafted = proposer.propose([Ask(1, tokens, 3, GREEDY)]).tokens[0]
    tokens += [*drafted, 7]  # all accepted, and a bonus
    proposer.propose([Ask(1, tokens, 3, GREEDY)])
    other = next(token for token in range(V) if token != dense(proposer, tokens, 1)[0])
    tokens += [other]  # none accepted
    proposer.propose([Ask(1, tokens, 2, GREEDY)])
    assert written == [6, 1, 1, 2, 1, 1, 1, 1]  # the prompt; the last draft and the bonus; what came instead


@pytest.mark.parametrize("seed", range(4))
def test_proposals_stay_the_dense_ones_through_a_random_life(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences come, are verified with any result, pause, end and find no room; limits vary; prompts are long."""
    monkeypatch.setattr(draft_model, "CATCH_UP", 24)
    rng = random.Random(seed)
    proposer = drafter(blocks=40)
    live: dict[int, list[int]] = {}
    drafted = proposed = 0
    for step in range(150):
        if len(live) < 6 and rng.random() < 0.4:
            live[step] = [rng.randrange(V) for _ in range(rng.choice([1, 5, 30, 70]))]
        asked = [seq for seq in live if rng.random() < 0.8]
        asks = [Ask(seq, live[seq], rng.randint(1, 8), GREEDY) for seq in asked]
        drafts = proposer.propose(asks)
        proposer.check()
        for ask, draft in zip(asks, drafts.tokens, strict=True):
            assert draft in ([], dense(proposer, ask.tokens, ask.limit))
            drafted, proposed = drafted + bool(draft), proposed + 1
            if rng.random() < 0.9:  # else it was preempted before its pass
                live[ask.seq] += [*draft[: rng.randint(0, len(draft))], rng.randrange(V)]
        for seq in [seq for seq in live if rng.random() < 0.03 or len(live[seq]) > 140]:
            proposer.forget(seq)
            del live[seq]
    assert proposed > drafted > proposed // 3
    for seq in live:
        proposer.forget(seq)
    proposer.forget(999)
    proposer.check()
    assert len(proposer._free) == 40


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> tuple[object, CpuRunner]:
    """A random Llama, in transformers and on the CPU runner."""
    home = tmp_path_factory.mktemp("tiny")
    model = tiny_models.save(home, "llama", tied=True)
    files, device = ModelFiles("hf", home, home, "tiny"), torch.device("cpu")
    return model, CpuRunner(*load(files, torch.float32, device), "tiny", torch.float32, device, 8, 64)


@pytest.mark.parametrize("layers", [1, 3])
def test_drafts_of_a_transformer_are_those_of_a_dense_run(tiny, layers: int) -> None:
    """Also those of its first layers, against the same model cut short in transformers."""
    model, runner = tiny
    first = runner.first(layers)
    first.resize(64)
    proposer = DraftModel(first, tiny_models.VOCABULARY, True, own_weights=False)
    kept = model.model.layers
    model.model.layers = kept[:layers]
    rng = random.Random(3)
    known = {seq: [rng.randrange(tiny_models.VOCABULARY) for _ in range(length)] for seq, length in enumerate((3, 40))}
    try:
        for _ in range(6):
            asks = [Ask(seq, tokens, rng.randint(1, 4), GREEDY) for seq, tokens in known.items()]
            for ask, draft in zip(asks, proposer.propose(asks).tokens, strict=True):
                wanted = list(ask.tokens)
                for _ in range(ask.limit):
                    wanted.append(int(tiny_models.logits(model, wanted)[-1].argmax()))
                assert draft == wanted[len(ask.tokens) :]
                ask.tokens += [*draft[: rng.randint(0, len(draft))], rng.randrange(tiny_models.VOCABULARY)]
    finally:
        model.model.layers = kept
    proposer.check()
    assert proposer.bytes == first.memory().kv_pool
    assert runner.num_blocks == 64 and runner.first(1)._transformer.layers[0] is runner._transformer.layers[0]


# --- what keeps it from proposing ---


def test_a_long_prompt_is_caught_up_over_several_steps_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_model, "CATCH_UP", 16)
    proposer = drafter()
    long, short = [1, 2, 3, 4] * 10, [5, 6]
    found = []
    for _ in range(4):
        asks = [Ask(1, long, 2, GREEDY), Ask(2, short, 2, GREEDY)]
        found.append(proposer.propose(asks).tokens)
        assert found[-1][1] == dense(proposer, short, 2)
    assert [bool(draft) for draft, _ in found] == [False, False, True, True]  # 16, 16 and then the last 8
    assert found[2][0] == dense(proposer, long, 2)


def test_who_finds_no_room_gives_back_what_it_has_and_drafts_when_there_is_some() -> None:
    proposer = drafter(blocks=5)  # 20 tokens
    a, b = Ask(1, [1] * 10, 2, GREEDY), Ask(2, [2] * 8, 1, GREEDY)
    assert all(proposer.propose([a, b]).tokens)  # 3 and 2 blocks
    b.tokens.append(3)
    assert [bool(draft) for draft in proposer.propose([a, b]).tokens] == [True, False]
    assert len(proposer._free) == 2
    proposer.forget(1)
    assert proposer.propose([b]).tokens == [dense(proposer, b.tokens, 1)]
    proposer.check()


def test_blocks_of_sequences_that_nobody_asks_for_are_taken() -> None:
    proposer = drafter(blocks=5)
    proposer.propose([Ask(1, [1] * 10, 2, GREEDY)])
    assert all(proposer.propose([Ask(2, [2] * 16, 2, GREEDY)]).tokens)
    assert list(proposer._caches) == [2]
    proposer.check()


def test_contexts_beyond_the_draft_models_are_left_alone() -> None:
    proposer = drafter()
    proposer._longest = 12
    assert [len(draft) for draft in proposer.propose([Ask(1, [1] * 9, 8, GREEDY)]).tokens] == [3]
    assert proposer.propose([Ask(1, [1] * 12, 8, GREEDY)]).tokens == [[]]
    assert len(proposer._free) == 64


def test_a_model_that_gives_no_numbers_drafts_nothing() -> None:
    model = TableModel(V, seed=5)
    model.table[:] = np.nan
    proposer = drafter(model=model)
    assert proposer.propose([Ask(1, [1, 2], 4, GREEDY), Ask(2, [3], 4, SampleRow(temperature=1.0))]).tokens == [[], []]
    proposer.check()


def test_a_pass_that_fails_leaves_nothing_behind_that_is_not_so() -> None:
    proposer = drafter()
    execute, ask = proposer.runner.execute, Ask(1, [1, 2, 3], 4, GREEDY)
    for broken in (1, 3):
        passes = iter(range(1, 9))

        def fails(batch, at=broken, passes=passes):
            if next(passes) == at:
                raise MemoryError
            return execute(batch)

        proposer.runner.execute = fails
        with pytest.raises(MemoryError):
            proposer.propose([ask])
        proposer.check()
    proposer.runner.execute = execute
    assert proposer.propose([ask]).tokens == [dense(proposer, ask.tokens, 4)]


# --- what it draws from ---


def test_sampled_requests_draw_from_the_distribution_that_is_told() -> None:
    params = SampleRow(temperature=0.7, top_k=5, top_p=0.9, seed=11)
    proposer = drafter()
    ask = Ask(1, [1, 2, 3], 3, params)
    drafts = proposer.propose([Ask(2, [4, 4], 2, GREEDY), ask])
    assert list(drafts.q) == [1] and drafts.q[1].shape == (3, V)
    known = list(ask.tokens)
    for token, q in zip(drafts.tokens[1], drafts.q[1], strict=True):
        p = proposer.runner.table_model.probabilities(known, 0.7)
        order = np.argsort(-p, kind="stable")[:5]
        share = p[order] / p[order].sum()
        order = order[: int((share.cumsum() < 0.9).sum()) + 1]
        wanted = np.zeros(V)
        wanted[order] = p[order] / p[order].sum()
        assert np.allclose(q, wanted, atol=1e-6)
        assert q[token] > 0
        known.append(token)


def test_draws_have_that_distribution_and_belong_to_seed_and_position() -> None:
    proposer = drafter(blocks=2000)
    asks = [Ask(seed, [2], 2, SampleRow(temperature=1.0, seed=seed)) for seed in range(400)]
    drafts = proposer.propose(asks)
    q = drafts.q[0][0].double().numpy()
    counts = np.bincount([draft[0] for draft in drafts.tokens], minlength=V)
    assert stats.chisquare(counts, q / q.sum() * len(asks)).pvalue > 1e-3
    alone = drafter()
    assert alone.propose([asks[17]]).tokens == [drafts.tokens[17]]
    assert len({tuple(draft) for draft in drafts.tokens}) > V


def test_greedy_drafts_for_sampled_requests_where_they_are_asked_for() -> None:
    proposer = drafter(draws=False)
    drafts = proposer.propose([Ask(1, [1, 2], 3, SampleRow(temperature=1.0))])
    assert drafts.tokens == [dense(proposer, [1, 2], 3)] and not drafts.q


@pytest.mark.parametrize("ours", [V - 2, V + 3])
def test_a_draft_whose_logits_are_padded_otherwise(ours: int) -> None:
    """The draft has V ids, the target fewer or more: nothing is proposed that it hasn't, and q is as wide as p."""
    proposer = drafter(vocabulary=ours)
    asks = [Ask(seed, [1, 2], 3, SampleRow(temperature=2.0, seed=seed)) for seed in range(60)]
    drafts = proposer.propose(asks)
    assert all(q.shape == (3, ours) for q in drafts.q.values())
    assert {token for draft in drafts.tokens for token in draft} == set(range(min(V, ours)))
    if ours > V:  # an id that it has no embedding of: that sequence goes without
        assert proposer.propose([Ask(99, [1, V], 3, GREEDY), Ask(98, [1], 1, GREEDY)]).tokens[0] == []
        proposer.check()


def test_penalties_count_for_drafts_too() -> None:
    """Greedy and sampled: what the draft repeats is penalised as the target will penalise it, drafts before it too."""
    proposer = drafter()
    tokens = [1, 2, 3, 2]
    for temperature in (0.0, 1.0):
        penalties = Penalties(repetition=1.0, presence=50.0)
        penalties.follow(tokens[:3], 2)
        drafts = proposer.propose([Ask(1, tokens, 5, SampleRow(temperature=temperature, penalties=penalties))])
        assert len({3, 2, *drafts.tokens[0]}) == 7  # no output token twice
        assert penalties.known == 3 and penalties.held()[0].tolist() == [1, 2, 3]
        proposer.forget(1)


# --- in an engine ---


def engine(target: TableModel, drafts: dict[str, DraftModel | NgramProposer], room: int = 1 << 20, **changes) -> Engine:
    now = settings(**changes)
    runner = FakeRunner(now.kv_blocks, 8, target, room)
    runner.resize_host(now.swap_blocks)
    factories = {method: lambda _, made=made: made for method, made in drafts.items()}
    return Engine(runner, now, Sampler(V), bounds=runner.bounds(), proposers=factories)


@pytest.mark.parametrize("gamma", [1, 3, 8])
def test_a_draft_equal_to_the_target_is_accepted_whole(gamma: int) -> None:
    """Greedy and sampled, in one batch: γ + 1 tokens a pass but for a sequence's end."""
    target = TableModel(V, seed=3, sharpness=2.0)
    core = engine(target, {"model": drafter(model=target)}, draft_method="model", draft_length=gamma, token_budget=64)
    for number, temperature in enumerate((0.0, 0.8)):
        sampling = Sampling(temperature=temperature, top_p=0.9, seed=4)
        core.submit(number, [1, 2, 3], Request(number=number, max_tokens=2 * (gamma + 1) + 1, sampling=sampling))
    rows = []
    while core.has_work:
        rows += unpack(core.step().rows, ROW).tolist()
    decodes = [dict(zip(ROW.names, row, strict=True)) for row in rows][2:]
    assert [(row["drafted"], row["accepted"], row["emitted"]) for row in decodes] == [(gamma, gamma, gamma + 1)] * 4


@pytest.mark.parametrize("seed", range(3))
def test_output_is_the_targets_own_while_everything_is_dragged(seed: int) -> None:
    """Preemption by recompute and swap, prefix hits, batch, γ, pool, block size and draft methods at random."""
    rng = random.Random(seed)
    target = TableModel(V, seed=3, sharpness=3.0)
    near = TableModel(V, seed=3, sharpness=3.0)
    near.table += np.random.default_rng(0).standard_normal(near.table.shape).astype(np.float32)
    drafts = {"model": drafter(blocks=30, model=near), "layers": drafter(blocks=50), "ngram": NgramProposer()}
    core = engine(target, drafts, draft_method="model", kv_blocks=14, swap_blocks=20, max_batch=6)
    prompts, out = {}, {}
    accepted = step = 0
    preempted = 0
    while step < 400 or core.has_work:
        if step < 400 and len(core._live) < 8 and rng.random() < 0.3:
            head = [1, 2, 3, 4] * rng.choice([0, 3, 5])
            prompts[step] = head + [rng.randrange(V) for _ in range(rng.randint(1, 12))]
            request = Request(number=step, max_tokens=rng.randint(1, 30), ignore_eos=True)
            out[core.submit(step, prompts[step], request)] = (step, [])
        if step < 400 and rng.random() < 0.3:
            key, value = rng.choice([
                ("draft_length", rng.randint(0, 8)), ("draft_method", rng.choice(["off", *drafts])),
                ("max_batch", rng.randint(1, 8)), ("kv_blocks", rng.randint(10, 20)),
                ("prefix_cache", rng.random() < 0.7), ("preemption", rng.choice(["recompute", "swap"])),
                ("token_budget", rng.choice([16, 32, 64])), ("draft_policy", rng.choice(["fixed", "adaptive"])),
            ])  # fmt: skip
            with suppress(SettingRefused):  # a request is too long for a smaller pool
                core.change({key: value})
        record = core.step() if core.has_work else None
        step += 1
        if record is None:
            continue
        core.check()
        for proposer in (drafts["model"], drafts["layers"]):
            proposer.check()
        preempted += sum(isinstance(event, Preempted) for event in record.events)
        accepted += int(unpack(record.rows, ROW)["accepted"].sum())
        for token in unpack(record.emitted, TOKEN):
            out[int(token["seq"])][1].append(int(token["token"]))
    assert accepted > 50 and preempted > 5
    for number, tokens in out.values():
        assert tokens == target.greedy(prompts[number], len(tokens))
    core.change({"draft_method": "off"})


@pytest.mark.parametrize("sampling", [
    Sampling(temperature=0.9),
    Sampling(temperature=1.1, top_k=5, top_p=0.9, min_p=0.05, repetition_penalty=1.4, presence_penalty=0.4),
], ids=("plain", "filtered and penalised"))  # fmt: skip
def test_sampled_output_keeps_the_targets_distribution(sampling: Sampling) -> None:
    """The draft believes something else, and half of what it draws is rejected."""
    runner = joint.FastRunner(3 * joint.BATCH, joint.BLOCK, TableModel(joint.WORDS, seed=5, sharpness=0.8))
    drawn = joint.draw(DraftModel(runner, joint.WORDS, True, own_weights=True), sampling, 5_000)
    assert joint.fit(drawn.counts, sampling) > 1e-3
    assert 0.3 < drawn.verdicts[ACCEPTED] / (drawn.verdicts[ACCEPTED] + drawn.verdicts[REJECTED]) < 0.7


def test_q_in_the_records_is_the_draft_models_own() -> None:
    target, other = TableModel(V, seed=3), TableModel(V, seed=9)
    core = engine(target, {"model": drafter(model=other)}, draft_method="model", draft_length=3)
    core.submit(1, [1, 2, 3], Request(number=1, max_tokens=24, sampling=Sampling(temperature=1.0, seed=2)))
    known, looked = [1, 2, 3], 0
    while core.has_work:
        record = core.step()
        ahead = list(known)
        for draft in unpack(record.drafts, DRAFT):
            if draft["verdict"] < 2:  # accepted, or the one that was rejected
                assert draft["q"] == pytest.approx(other.probabilities(ahead)[draft["token"]], abs=1e-5)
                ahead.append(int(draft["token"]))
                looked += 1
        known += unpack(record.emitted, TOKEN)["token"].tolist()
    assert looked > 10
