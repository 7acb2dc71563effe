"""Batches that the device's sampler and the host's are both given, and what it is for them to agree."""

from __future__ import annotations

import math

import torch

from engine.penalties import Penalties
from engine.sampler import Outcome, SampleRow

TEMPERATURES = (0.0, 0.3, 1.0, 1.7)


def batch(
    seed: int, vocabulary: int, count: int, gamma: int, sharp: float = 3.0
) -> tuple[torch.Tensor, list[SampleRow]]:
    """`count` rows with up to γ drafts of every kind: greedy, filtered, penalised, certain, drawn, in several types.
    Logits are eighths where the vocabulary is small, so that equal ones are common."""
    chance = torch.Generator().manual_seed(seed)

    def pick(*values):
        return values[int(torch.randint(len(values), (1,), generator=chance))]

    rows, parts = [], []
    for i in range(count):
        drafts = pick(*range(gamma + 1))
        logits = torch.randn(drafts + 1, vocabulary, generator=chance) * 3
        if vocabulary < 1000:
            logits = (logits * 8).round() / 8
        if i % 5 == 3:
            logits[:, ::3] = -math.inf
        likely = logits.argsort(dim=1, descending=True)
        tokens = [int(likely[d, pick(0, 0, 0, 1, vocabulary - 1)]) for d in range(drafts)]
        q_rows = None
        if drafts and pick(True, False):
            # near to the target, in the types that drafters leave, not quite normalised
            near = (logits[:drafts] + torch.randn(drafts, vocabulary, generator=chance)).softmax(dim=1)
            q_rows = (near * 1.001).to(pick(torch.float32, torch.float64))
        penalties = None
        if pick(True, False, False):
            penalties = Penalties(1.2, 0.3, 0.1)
            penalties.follow([int(t) for t in likely[0, :3]] * 2, 3)
        rows.append(
            SampleRow(
                drafts=tokens,
                temperature=pick(*TEMPERATURES),
                top_k=pick(0, 0, 1, 5, 40, vocabulary, vocabulary + 3),
                top_p=pick(1.0, 0.9, 0.5, 0.01),
                min_p=pick(0.0, 0.0, 0.05, 0.3),
                seed=pick(1, 77, 2**63) + i,
                position=pick(0, 9, 4000),
                q_rows=q_rows,
                penalties=penalties,
            )
        )  # fmt: skip
        parts.append(logits)
    return torch.cat(parts), rows


DRAFTS = {"certain": None, "float32": torch.float32, "float64": torch.float64}  # by the type of q
FILTERS = {"none": {}, "top-k": {"top_k": 5}, "top-p": {"top_p": 0.7}, "all": {"top_k": 9, "top_p": 0.9, "min_p": 0.02}}


def alike(
    vocabulary: int, gamma: int, drafts: str, temperature: float, filters: str
) -> tuple[torch.Tensor, list[SampleRow]]:
    """Three rows that ask for the same, with γ, half as many and no drafts: the likeliest of a draft distribution,
    which the target often rejects."""
    chance = torch.Generator().manual_seed(vocabulary + gamma)
    rows, parts = [], []
    for i, count in enumerate((gamma, gamma // 2, 0)):
        logits = torch.randn(count + 1, vocabulary, generator=chance) * 3
        near = logits[:count] + 2 * torch.randn(count, vocabulary, generator=chance)
        tokens, q_rows = near.argmax(dim=1).tolist(), None
        if DRAFTS[drafts] is not None and count:
            q_rows = near.softmax(dim=1).to(DRAFTS[drafts])
        rows.append(
            SampleRow(drafts=tokens, temperature=temperature, seed=i, position=i, q_rows=q_rows, **FILTERS[filters])
        )
        parts.append(logits)
    return torch.cat(parts), rows


def assert_same(got: list[Outcome], wanted: list[Outcome]) -> None:
    """Tokens, verdicts, origins and draws to the bit; probabilities to the order in which sums are taken."""
    assert len(got) == len(wanted)
    for ours, theirs in zip(got, wanted, strict=True):
        assert (ours.tokens, ours.accepted, ours.origins) == (theirs.tokens, theirs.accepted, theirs.origins)
        assert [d[:3] for d in ours.drafts] == [d[:3] for d in theirs.drafts]
        for one, other in zip(ours.drafts, theirs.drafts, strict=True):
            torch.testing.assert_close(
                torch.tensor(one[3:], dtype=torch.float64), torch.tensor(other[3:], dtype=torch.float64),
                rtol=1e-11, atol=1e-14, equal_nan=True,
            )  # fmt: skip
            assert one[5] == other[5] or (math.isnan(one[5]) and math.isnan(other[5]))
