"""What drafts were drawn from, on its way from the drafter to the verdict: no draft is tested with another's."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from engine.core import Engine
from engine.draft_rows import DraftRows
from engine.records import Preempted, Request, Sampling
from engine.sampler import Outcome, Sampler, SampleRow
from engine.speculation.proposer import Ask, Drafts
from tests.support.drafters import TableDrafter
from tests.support.fake_runner import FakeRunner, TableModel, settings

VOCABULARY = 8
MODEL = TableModel(VOCABULARY, seed=1)


def test_they_are_found_by_row_and_draft_whatever_their_type():
    torch.manual_seed(0)
    given = [torch.rand(2, 5), None, torch.rand(3, 5).half() * 7, None, torch.rand(1, 5).double()]
    rows = DraftRows(given)
    assert rows.drawn.tolist() == [True, False, True, False, True]
    which, drafts, tokens = np.array([4, 2, 0, 2]), np.array([0, 2, 1, 0]), np.array([3, 3, 0, 4])
    whole = rows.whole(which, drafts)
    for found, row, draft in zip(whole, which, drafts, strict=True):
        expected = given[row][draft].double()
        torch.testing.assert_close(found, expected / expected.sum())
    assert whole.dtype == torch.float64
    np.testing.assert_allclose(rows.of(which, drafts, tokens), whole[np.arange(4), tokens].numpy(), rtol=1e-15)


def test_certain_drafts_alone():
    assert DraftRows([None, None]).drawn.tolist() == [False, False]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}], ids=["greedy", "sampled"])
def test_q_is_told_as_it_was(sampling):
    q = torch.tensor([[0.2, 0.6, 0.2], [0.5, 0.25, 0.25]])
    (outcome,) = Sampler(3).sample(torch.zeros(3, 3), [SampleRow([1, 2], q_rows=q, position=4, **sampling)])
    told = {entry[0]: entry[4] for entry in outcome.drafts if (entry[0], entry[1]) in ((4, 1), (5, 2))}
    assert told == {4: pytest.approx(0.6), 5: pytest.approx(0.25)}


class Moody:
    """Draws some drafts and is certain of others, of uneven length. `given`: the latest, by seed of the request."""

    watches = False

    def __init__(self, rng: random.Random):
        self._drawing = TableDrafter(TableModel(VOCABULARY, seed=2), seed=1)
        self._rng = rng
        self.given: dict[int, tuple[list[int], torch.Tensor | None]] = {}

    def propose(self, asks: list[Ask]) -> Drafts:
        drafts = self._drawing.propose(asks)
        q = dict(drafts.q)
        for place in range(len(asks)):
            length = self._rng.randint(0, len(drafts.tokens[place]))
            drafts.tokens[place] = drafts.tokens[place][:length]
            if self._rng.random() < 0.5:
                q[place] = q[place][:length]
            else:
                del q[place]
                drafts.tokens[place] = [0] * length
        drafts.q = q
        self.given = {ask.params.seed: (drafts.tokens[i], q.get(i)) for i, ask in enumerate(asks)}
        return drafts

    def forget(self, seq: int) -> None:
        return None


class Spy(Sampler):
    """`seen`: what happened to drafts on their way."""

    def __init__(self, drafter: Moody):
        super().__init__(VOCABULARY)
        self._drafter = drafter
        self.seen: set[str] = set()

    def sample(self, logits: torch.Tensor, rows: list[SampleRow]) -> list[Outcome]:
        for row in rows:
            tokens, q = self._drafter.given.get(row.seed, ([], None))
            count = len(row.drafts)
            assert row.drafts == tokens[:count]
            if q is None or not count:
                assert row.q_rows is None
            else:
                assert row.q_rows is not None and torch.equal(row.q_rows, q[:count])
            kind = "certain" if q is None else "drawn"
            self.seen.add("none" if not tokens else f"{kind}, {'whole' if count == len(tokens) else 'trimmed'}")
        kinds = {row.q_rows is not None for row in rows if row.drafts}
        self.seen |= {"both in one pass"} if len(kinds) == 2 else set()
        return super().sample(logits, rows)


class Failing(FakeRunner):
    """Now and then a pass fails, and the step was not."""

    rng = random.Random(3)

    def execute(self, batch):
        if self.rng.random() < 0.05:
            raise ArithmeticError("of the test's making")
        return super().execute(batch)


def test_a_draft_is_tested_with_what_it_was_drawn_from_or_not_at_all():
    """Whatever came between: no room or no budget for it, a preemption, a pass that failed, an abort."""
    rng = random.Random(5)
    drafter = Moody(rng)
    live = settings(kv_blocks=8, token_budget=12, max_batch=6, temperature=1.0, draft_length=4)
    runner = Failing(live.kv_blocks, 8, MODEL)
    spy = Spy(drafter)
    engine = Engine(runner, live, spy, bounds=runner.bounds(), proposers={"ngram": lambda _: drafter})
    submitted = failed = preempted = 0
    while submitted < 60 or engine.has_work:
        if submitted < 60 and rng.random() < 0.3:
            prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(2, 12))]
            own = Sampling(seed=submitted, temperature=rng.choice([0.0, 1.0]), presence_penalty=rng.choice([0.0, 1.0]))
            engine.submit(submitted, prompt, Request(number=submitted, max_tokens=30, sampling=own))
            submitted += 1
        if submitted and rng.random() < 0.01:
            engine.abort(rng.randrange(submitted))
        try:
            record = engine.step()
        except ArithmeticError:
            failed += 1
            continue
        preempted += sum(isinstance(event, Preempted) for event in record.events)
    engine.check()
    assert failed > 5 and preempted > 5
    assert spy.seen == {
        "none", "certain, whole", "certain, trimmed", "drawn, whole", "drawn, trimmed", "both in one pass",
    }  # fmt: skip
