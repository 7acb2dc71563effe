"""Outputs drawn by the thousand through `Engine.step()`, against the joint distribution that their tokens must have.

Any proposer can be put in. In each pass are rows with drafts of different lengths and rows without. The model is a
table of six words, so that the exact joint of three tokens has 216 cells and is summed up by definition.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

import numpy as np
import torch
from msgspec.structs import replace
from scipy import stats

from engine.core import Engine
from engine.records import DRAFT, ROW, TOKEN, Request, Sampling, unpack
from engine.runner.batch import PackedBatch
from engine.sampler import Sampler
from engine.speculation.proposer import Proposer
from tests.support.definition import distribution
from tests.support.drafters import Uneven
from tests.support.fake_runner import FakeRunner, TableModel, settings

WORDS = 6
MODEL = TableModel(WORDS, seed=4, sharpness=1.0)
BLOCK = 8  # tokens: the prompt's, so that its samples share it and each has a block of its own
PROMPT = [4, 2, 0, 1, 1, 3, 2, 4]  # nearly all words are in it, to be looked up and penalised
# The first output token comes from the prefill, never from a draft: the three tokens compared are the next ones.
SKIPPED, COMPARED = 1, 3
GAMMA = 3  # of one request in four; the others' drafts are of two tokens, one and none
SAMPLES = 50  # of one request: its prompt is computed once
BATCH = 500


class FastRunner(FakeRunner):
    """The table model without loops: the last two tokens of each position, read through the block tables."""

    def execute(self, batch: PackedBatch) -> torch.Tensor:
        held = self._kv[:, 0]
        written = batch.slots >= 0
        held[batch.slots[written]] = batch.tokens[written]
        row_of = np.repeat(np.arange(len(batch.contexts)), np.diff(batch.row_starts))
        before = np.maximum(batch.positions - 1, 0)
        slots = batch.tables[row_of, before // self.block_size] * self.block_size + before % self.block_size
        wanted = batch.logit_index
        return torch.from_numpy(self.table_model.table[held[slots[wanted]], batch.tokens[wanted]])


@dataclass
class Drawn:
    """`counts` (WORDS³,): how often each three tokens came. `verdicts`: how many drafts met each. `whole`: for each γ
    of a verification that accepted all of its drafts, the numbers of tokens that such passes gave."""

    counts: np.ndarray
    verdicts: dict[int, int] = field(default_factory=dict)
    whole: dict[int, set[int]] = field(default_factory=dict)


def longest(seq: int) -> int:
    """A sequence's draft length: that of its request."""
    return (seq - 1) // SAMPLES % (GAMMA + 1)


def draw(proposer: Proposer | None, sampling: Sampling, draws: int, sampler: Sampler | None = None) -> Drawn:
    """None drafts nothing. `draws`: a multiple of SAMPLES."""
    gc.disable()  # a quarter of the time is spent looking for cycles otherwise, and there are none
    try:
        return _draw(proposer, sampling, draws, sampler or Sampler(WORDS))
    finally:
        gc.enable()


def _draw(proposer: Proposer | None, sampling: Sampling, draws: int, sampler: Sampler) -> Drawn:
    live = settings(
        max_batch=BATCH, token_budget=8 * BATCH, kv_blocks=2 * BATCH, draft_length=GAMMA, prefix_cache=False,
        draft_method="ngram" if proposer else "off",
    )  # fmt: skip
    runner = FastRunner(live.kv_blocks, BLOCK, MODEL)
    factories = {"ngram": lambda _: Uneven(proposer, longest)} if proposer else {}
    engine = Engine(runner, live, sampler, bounds=runner.bounds(), proposers=factories)
    first = len(PROMPT) + SKIPPED
    tokens = np.full((draws + 1, COMPARED), -1)  # by sequence, which are counted from 1
    drawn = Drawn(np.zeros(0))
    submitted = 0
    while submitted < draws or engine.has_work:
        while submitted < draws and len(engine.scheduler.running) + engine.scheduler.waiting_count + SAMPLES <= BATCH:
            # one more than is compared leaves a pass room for as many drafts
            count = SKIPPED + COMPARED + (proposer is not None and longest(submitted + 1) == COMPARED)
            own = replace(sampling, seed=submitted)
            engine.submit(submitted, PROMPT, Request(number=submitted, max_tokens=count, n=SAMPLES, sampling=own))
            submitted += SAMPLES
        record = engine.step()
        emitted = unpack(record.emitted, TOKEN)
        emitted = emitted[(emitted["position"] >= first) & (emitted["position"] < first + COMPARED)]
        tokens[emitted["seq"], emitted["position"] - first] = emitted["token"]
        for verdict, count in zip(*np.unique(unpack(record.drafts, DRAFT)["verdict"], return_counts=True), strict=True):
            drawn.verdicts[int(verdict)] = drawn.verdicts.get(int(verdict), 0) + int(count)
        rows = unpack(record.rows, ROW)
        whole = rows[(rows["drafted"] > 0) & (rows["accepted"] == rows["drafted"])]
        for drafted, emitted in np.unique(whole[["drafted", "emitted"]]).tolist():
            drawn.whole.setdefault(drafted, set()).add(emitted)
    engine.check()
    cells = np.ravel_multi_index(tuple(tokens[1:].T), (WORDS,) * COMPARED)
    drawn.counts = np.bincount(cells, minlength=WORDS**COMPARED)
    return drawn


def exact_joint(sampling: Sampling) -> np.ndarray:
    """(WORDS³,) of the compared tokens, by summing over all outputs up to the last of them."""
    outputs: list[list[int]] = [[]]
    p = np.ones(1)
    for _ in range(SKIPPED + COMPARED):
        following = [distribution(MODEL.logits(PROMPT + output), PROMPT, output, sampling) for output in outputs]
        p = (p[:, None] * np.array(following)).ravel()
        outputs = [[*output, token] for output in outputs for token in range(WORDS)]
    return p.reshape(WORDS**SKIPPED, -1).sum(axis=0)


def fit(counts: np.ndarray, sampling: Sampling) -> float:
    """p-value of the counts under the exact joint; 0 if one came that can't. Cells that expect fewer than 5 are taken
    together."""
    joint = exact_joint(sampling)
    if counts[joint == 0].any():
        return 0.0
    expected = joint * counts.sum()
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    if wanted[-1] == 0:
        observed, wanted = observed[:-1], wanted[:-1]
    return float(stats.chisquare(observed, wanted * (observed.sum() / wanted.sum())).pvalue)
