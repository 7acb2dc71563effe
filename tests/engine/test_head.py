"""A trained draft head: the two ways to compute it agree, it starts from the right state, and it changes no output."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.config import LiveSettings, limits
from engine.core import Engine
from engine.cpu.packed_matrix import dequantise, quantise_small, some_rows
from engine.model.architecture import ModelConfig
from engine.model.packed_weights import load_packed
from engine.model.store import ModelFiles
from engine.model.weights import load
from engine.records import DRAFT, TOKEN, VERDICTS, Request, Sampling, unpack
from engine.runner.cpu import CpuRunner
from engine.runner.packed import PackedRunner
from engine.sampler import Outcome, Sampler, SampleRow
from engine.speculation.head import HeadProposer
from engine.speculation.head_model import HeadProblem, HeadWeights, TorchSteps, find
from engine.speculation.proposer import Ask
from tests.support import tiny_models

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 16}  # fmt: skip
V, WIDTH, INNER, KEPT = tiny_models.VOCABULARY, 64, 96, 40
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("head") / "llama"
    tiny_models.save(path, "llama", True, **SIZES)
    return path


@pytest.fixture(autouse=True)
def collected():
    """An engine and the factory that makes its proposers hold each other: their threads end when both are collected."""
    yield
    gc.collect()


def floats(folder: Path) -> CpuRunner:
    files = ModelFiles("hf", folder, folder, "llama")
    device = torch.device("cpu")
    return CpuRunner(*load(files, torch.float32, device), "llama", torch.float32, device, 16, 64)


def packed(folder: Path) -> PackedRunner:
    config, weights = load_packed(ModelFiles("hf", folder, folder, "llama"), "int8")
    assert isinstance(config, ModelConfig)
    return PackedRunner(config, weights, "llama", 2, 16, 64)


def head(seed: int = 0) -> HeadWeights:
    rng = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=rng)  # noqa: E731
    kept = torch.randperm(V, generator=rng)[:KEPT].sort().values
    return HeadWeights(
        *(1 + 0.2 * draw(WIDTH) for _ in range(2)), draw(WIDTH, 2 * WIDTH) / 11, 1 + 0.2 * draw(WIDTH),
        draw(2 * INNER, WIDTH) / 8, draw(WIDTH, INNER) / 10, 1 + 0.2 * draw(WIDTH), kept, 1e-5,
    )  # fmt: skip


def rounded(weight: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(dequantise(quantise_small(weight.numpy())))


class RoundedTarget:
    """The runner's rows as the compiled steps hold them."""

    def __init__(self, runner: PackedRunner):
        self.final_norm, self._runner = runner.final_norm, runner

    def embedding_rows(self, tokens):
        return torch.from_numpy(some_rows(self._runner._weights.embedding, tokens))

    def head_rows(self, tokens):
        return rounded(torch.from_numpy(some_rows(self._runner._weights.head, tokens)))


@pytest.mark.parametrize("rows", [1, 2, 7, 33])
def test_the_compiled_steps_are_torchs_over_the_same_rounded_weights(folder, rows: int):
    weights, runner = head(), packed(folder)
    held = {name: rounded(getattr(weights, name)) for name in ("join", "gate_up", "down")}
    exact = TorchSteps(replace(weights, **held), RoundedTarget(runner), torch.device("cpu"))
    ours = runner.head_steps(weights)
    rng = np.random.default_rng(rows)
    states = rng.normal(size=(rows, WIDTH)).astype(np.float32) * 7
    tokens = rng.integers(0, V, rows)
    exact.start(states)
    ours.start(states)
    for _ in range(3):
        wanted, got = exact.logits(tokens), ours.logits(tokens)
        assert got.shape == wanted.shape == (rows, KEPT)
        # rows are rounded to 8 bits before each of four products
        assert (got - wanted).square().mean().sqrt() <= 0.03 * wanted.std()
        tokens = weights.vocabulary.numpy()[wanted.argmax(1).numpy()]


def test_four_bits_are_off_by_half_a_step_at_most():
    weight = torch.randn(48, 64, generator=torch.Generator().manual_seed(1)).numpy()
    weight[3, :32] = 0.25  # a group of equal numbers has no steps
    grouped = weight.reshape(48, 2, 32)
    step = (grouped.max(2) - grouped.min(2)) / 15
    off = np.abs(dequantise(quantise_small(weight)).reshape(48, 2, 32) - grouped)
    assert (off <= 0.51 * step[:, :, None] + 2e-3).all() and off.max() > 0.05


def test_a_greedy_draft_is_its_own_likeliest_tokens_in_one_call_or_step_by_step(folder):
    weights, steps = head(), packed(folder).head_steps(head())
    states = np.random.default_rng(1).normal(size=(5, WIDTH)).astype(np.float32)
    first = np.arange(5)
    found = steps.greedy(states, first, 4)
    assert found.shape == (4, 5)
    steps.start(states)
    tokens = first
    for row in found:
        tokens = weights.vocabulary.numpy()[steps.logits(tokens).argmax(1).numpy()]
        assert tokens.tolist() == row.tolist()


def test_a_rows_draft_is_the_same_bits_in_any_batch(folder):
    steps = packed(folder).head_steps(head())
    states = np.random.default_rng(2).normal(size=(9, WIDTH)).astype(np.float32)
    tokens = np.arange(9)
    steps.start(states)
    whole = steps.logits(tokens).clone()
    for row in range(9):
        steps.start(states[row : row + 1])
        assert torch.equal(steps.logits(tokens[row : row + 1])[0], whole[row])


class Spy:
    """Steps that tell what they were started from."""

    bytes = 0

    def __init__(self) -> None:
        self.states = np.zeros(0)

    def greedy(self, states, tokens, steps):
        self.states = states[:, 0].copy()
        return np.tile(tokens, (steps, 1))


def test_a_draft_starts_from_the_state_that_the_newest_token_was_chosen_from():
    spy = Spy()
    proposer = HeadProposer(spy, np.arange(8), 8, 1, probabilistic=False)
    plain = Outcome([5], 0, [0], [])
    drafted = Outcome([1, 2, 3], 2, [1, 1, 2], [(0, 0, 0, 0.0, 0.0, 0.0)] * 5)  # 4 drafts, 2 of them accepted
    hidden = torch.arange(7.0)[:, None]  # row 0 is the plain one's; 1 to 5 the drafted one's; 6 another plain one's
    proposer.see([10, 11, 12], [plain, drafted, plain], hidden)
    asks = [Ask(seq, [5, seq - 10], 2, SampleRow()) for seq in (12, 11, 99, 10)]
    found = proposer.propose(asks)
    assert spy.states.tolist() == [6.0, 3.0, 0.0]
    assert found.tokens == [[2, 2], [1, 1], [], [0, 0]], "who is unknown isn't drafted for"
    proposer.forget(11)
    assert proposer.propose([asks[1]]).tokens == [[]]


def engine_of(runner, probabilistic: bool = True, **changes) -> Engine:
    live = LiveSettings(**{
        "max_batch": 6, "max_context": 128, "kv_blocks": 64, "draft_method": "head", "draft_length": 4,
        "token_budget": 64, **changes,
    })  # fmt: skip
    weights = head()

    def make(_):
        steps = runner.head_steps(weights)
        return HeadProposer(steps, weights.vocabulary.numpy(), V, WIDTH, probabilistic)

    bounds = limits(runner.model, 16, 64)
    return Engine(runner, live, Sampler(V), bounds=bounds, proposers={"head": make})


def outputs(engine: Engine, **sampling) -> tuple[dict[int, list[int]], set[str]]:
    for number in range(8):
        request = Request(number=number, max_tokens=40, sampling=Sampling(temperature=0.0, **sampling))
        engine.submit(number, PROMPT[number:] + [number] * number, request)
    found: dict[int, list[int]] = {}
    verdicts: set[str] = set()
    while engine.has_work:
        record = engine.step()
        engine.check()
        verdicts |= {VERDICTS[v] for v in unpack(record.drafts, DRAFT)["verdict"]}
        for token in unpack(record.emitted, TOKEN):
            found.setdefault(int(token["seq"]), []).append(int(token["token"]))
    return found, verdicts


@pytest.mark.parametrize("make", [floats, packed])
def test_greedy_output_is_the_same_with_the_head_and_without(folder, make):
    plain, none = outputs(engine_of(make(folder), draft_method="off"))
    drafted, verdicts = outputs(engine_of(make(folder)))
    assert drafted == plain and not none and "rejected" in verdicts


def test_it_survives_preemption_and_being_switched_on_while_it_runs(folder):
    plain, _ = outputs(engine_of(floats(folder), draft_method="off"))
    engine = engine_of(floats(folder))
    engine.change({"kv_blocks": 9})
    for number in range(8):
        engine.submit(number, PROMPT[number:] + [number] * number, Request(number=number, max_tokens=40))
    found: dict[int, list[int]] = {}
    while engine.has_work:
        engine.change({"draft_method": "off" if engine.last_step % 7 < 3 else "head"})
        for token in unpack(engine.step().emitted, TOKEN):
            found.setdefault(int(token["seq"]), []).append(int(token["token"]))
        engine.check()
    assert found == plain


def test_what_is_drawn_is_drawn_from_q(folder):
    """Drafts of sampled requests: q is the distribution (vocabulary) that they came from, 0 outside the kept ones."""
    weights = head()
    steps = floats(folder).head_steps(weights)
    proposer = HeadProposer(steps, weights.vocabulary.numpy(), V, WIDTH, probabilistic=True)
    state = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(4)) * 3
    draws = 4000
    proposer.see(list(range(draws)), [Outcome([2], 0, [0], [])] * draws, state.expand(draws, -1))
    asks = [Ask(seq, [1, 2], 2, SampleRow(temperature=1.0, top_k=12, seed=seq)) for seq in range(draws)]
    found = proposer.propose(asks)
    q = found.q[0]
    assert q.shape == (2, V) and torch.allclose(q.sum(1), torch.ones(2)) and (q[0] > 0).sum() == 12
    outside = torch.ones(V, dtype=torch.bool)
    outside[weights.vocabulary] = False
    assert (q[:, outside] == 0).all()
    counts = np.bincount([tokens[0] for tokens in found.tokens], minlength=V)
    expected = draws * q[0].double().numpy()
    seen = expected > 0
    assert counts[~seen].sum() == 0
    assert (((counts - expected) ** 2)[seen] / expected[seen]).sum() < 35  # chi-square, 11 degrees: 1 in 4,000
    greedy = HeadProposer(steps, weights.vocabulary.numpy(), V, WIDTH, probabilistic=False)
    greedy.see([0], [Outcome([2], 0, [0], [])], state)
    assert not greedy.propose(asks[:1]).q


def test_a_model_without_a_head_is_told_so():
    with pytest.raises(HeadProblem, match="no trained draft head"):
        find(torch.ones(48), 97)
