"""Sampled output of the whole engine has the target's distribution, with speculation and without.

Three tokens, drawn 100,000 times through `Engine.step()` from a model of six words, are compared with their exact
joint distribution by chi-square. The drafter is wrong most of the time. That the test can fail is tested too: a rule
that always accepts, and one that resamples from p instead of from what is left of it, are each caught.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from engine.core import Engine
from engine.records import ACCEPTED, DRAFT, REJECTED, TOKEN, Request, Sampling, unpack
from engine.runner.batch import PackedBatch
from engine.sampler import Sampler
from engine.speculation.accept import ExactRule
from engine.speculation.proposer import Lookup
from tests.support.fake_runner import FakeRunner, TableModel, settings

WORDS = 6
PROMPT = [0, 3]
GAMMA = 4
# The first output token comes from the prefill, never from a draft: the three tokens compared are the next ones,
# all of which the first verification covers. Two more leave that pass room for four drafts and a bonus.
SKIPPED, COMPARED, OUTPUT = 1, 3, 6
DRAWS = 100_000
BATCH = 500
ALARM = 1e-12  # what a wrong rule must fall below; the right one must stay above FINE
FINE = 1e-3

MODEL = TableModel(WORDS, seed=4, sharpness=1.0)


class FastRunner(FakeRunner):
    """The table model without loops: the last two tokens of each position, read through the block tables."""

    def execute(self, batch: PackedBatch) -> torch.Tensor:
        held = self._kv[:, 0]
        held[batch.slots] = batch.tokens
        row_of = np.repeat(np.arange(len(batch.contexts)), np.diff(batch.row_starts))
        before = np.maximum(batch.positions - 1, 0)
        slots = batch.tables[row_of, before // self.block_size] * self.block_size + before % self.block_size
        wanted = batch.logit_index
        return torch.from_numpy(self.table_model.table[held[slots[wanted]], batch.tokens[wanted]])


class OtherOpinion(Lookup):
    """Drafts the likeliest continuation by a blurred copy of the table: right often enough, and never to be trusted."""

    def __init__(self) -> None:
        self._best = (MODEL.table + TableModel(WORDS, seed=5, sharpness=0.7).table).argmax(axis=2).tolist()

    def follow(self, seq: int, tokens: list[int], limit: int) -> list[int]:
        known = tokens[-2:]
        for _ in range(limit):
            known.append(self._best[known[-2]][known[-1]])
        return known[2:]

    def forget(self, seq: int) -> None:
        return None


def exact_joint() -> np.ndarray:
    """(WORDS³,) of the compared tokens, by summing over all outputs up to the last of them."""
    joint = np.zeros((WORDS,) * COMPARED)
    for first in range(WORDS):
        p_first = MODEL.probabilities(PROMPT)[first]
        for index in np.ndindex(joint.shape):
            tokens, p = [*PROMPT, first], p_first
            for token in index:
                p *= MODEL.probabilities(tokens)[token]
                tokens.append(token)
            joint[index] += p
    return joint.ravel()


def draw(gamma: int, draws: int, seed: int, rule: ExactRule | None = None) -> tuple[np.ndarray, dict[int, int]]:
    """Counts (WORDS³,) of the compared tokens, and how many drafts met each verdict."""
    live = settings(
        max_batch=BATCH, token_budget=4096, kv_blocks=2048, draft_length=gamma, temperature=1.0, prefix_cache=False
    )
    runner = FastRunner(live.kv_blocks, 8, MODEL)
    engine = Engine(
        runner, live, Sampler(WORDS, rule), bounds=runner.bounds(), proposers={"ngram": lambda _: OtherOpinion()}
    )
    request = Request(number=0, max_tokens=OUTPUT if gamma else SKIPPED + COMPARED)
    first, last = len(PROMPT) + SKIPPED, len(PROMPT) + SKIPPED + COMPARED - 1
    tokens = np.zeros((draws + 1, COMPARED), dtype=np.int64)  # by sequence number, which counts from 1
    verdicts: dict[int, int] = {}
    submitted = 0
    while submitted < draws or engine.has_work:
        while submitted < draws and len(engine.scheduler.running) + len(engine.scheduler.waiting) < BATCH:
            submitted += 1
            engine.submit(submitted, PROMPT, _seeded(request, submitted, seed))
        record = engine.step()
        emitted = unpack(record.emitted, TOKEN)
        emitted = emitted[(emitted["position"] >= first) & (emitted["position"] <= last)]
        tokens[emitted["seq"], emitted["position"] - first] = emitted["token"]
        for seq in emitted["seq"][emitted["position"] == last].tolist():
            engine.abort(seq)  # numbered as submitted; what would follow is not looked at
        for verdict, count in zip(*np.unique(unpack(record.drafts, DRAFT)["verdict"], return_counts=True), strict=True):
            verdicts[int(verdict)] = verdicts.get(int(verdict), 0) + int(count)
    engine.check()
    cells = np.ravel_multi_index(tuple(tokens[1:].T), (WORDS,) * COMPARED)
    return np.bincount(cells, minlength=WORDS**COMPARED), verdicts


def _seeded(request: Request, number: int, seed: int) -> Request:
    return Request(number=number, max_tokens=request.max_tokens, sampling=Sampling(seed=seed + number))


def against_exact(counts: np.ndarray) -> float:
    """p-value of the counts under the exact joint; cells that expect fewer than 5 are taken together."""
    expected = exact_joint() * counts.sum()
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    if wanted[-1] == 0:
        observed, wanted = observed[:-1], wanted[:-1]
    return float(stats.chisquare(observed, wanted * (observed.sum() / wanted.sum())).pvalue)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_speculation_leaves_the_distribution_alone():
    plain, none = draw(0, DRAWS, seed=0)
    drafted, verdicts = draw(GAMMA, DRAWS, seed=10**6)
    assert none == {}
    assert plain.sum() == drafted.sum() == DRAWS
    examined = verdicts[ACCEPTED] + verdicts[REJECTED]
    assert 0.15 < verdicts[ACCEPTED] / examined < 0.6  # both outcomes are at work
    assert against_exact(plain) > FINE
    assert against_exact(drafted) > FINE
    seen = plain + drafted >= 10
    assert stats.chi2_contingency(np.stack([plain[seen], drafted[seen]])).pvalue > FINE


class AlwaysAccept(ExactRule):
    def accepts(self, p, q, draws):
        return np.ones_like(p, dtype=bool)


class ResampleFromTarget(ExactRule):
    def residual(self, p, drafted, q):
        return p


@pytest.mark.parametrize("rule", [AlwaysAccept(), ResampleFromTarget()], ids=lambda r: type(r).__name__)
def test_a_wrong_rule_is_caught(rule):
    counts, _ = draw(GAMMA, DRAWS // 20, seed=0, rule=rule)
    assert against_exact(counts) < ALARM


def test_the_right_rule_is_not_caught_by_as_many_draws():
    counts, _ = draw(GAMMA, DRAWS // 20, seed=0)
    assert against_exact(counts) > FINE
