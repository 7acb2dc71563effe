"""Logits in, each beam's likeliest next tokens out, with log-probabilities that can be summed.

A row's order is that of its logits, so the vocabulary is normalised by one number and only the tokens taken get a
log-probability. That number is the largest logit plus the log of the summed exponentials: exponentials in float32,
their sum and everything after it in float64, which over 24 tokens of the default model sums to within 3e-8 of float64
throughout. torch's float32 log-softmax, which transformers uses, comes out 1e-5 a token too high over a vocabulary of
49,152, and 2e-4 over those 24; since it does so for every beam alike, the same sequences are found. Knows logits, never
the search.
"""

from __future__ import annotations

import torch

from engine.beam_search import Candidates
from engine.sampler import likeliest


def candidates(logits: torch.Tensor, count: int) -> list[Candidates]:
    """The `count` likeliest tokens of each row of logits (rows, vocabulary). Raises BadLogits.

    Among equal logits the lower token goes first and is taken first. A token of probability zero is not one of them.
    """
    best = torch.from_numpy(likeliest(logits)).to(logits.device)
    largest = logits.gather(1, best[:, None])  # (rows, 1)
    total = (logits - largest).float().exp_().sum(dim=1, dtype=torch.float64)  # (rows,), 1 or more
    norm = largest[:, 0].double() + total.log()
    count = min(count, logits.shape[1])
    # top-k may pick any of those that equal its last value: it only says where to cut
    last = logits.topk(count, dim=1).values[:, -1:]
    found = []
    for row, kept, norm_of_row in zip(logits, logits >= last, norm.tolist(), strict=True):
        tokens = kept.nonzero()[:, 0]  # ascending
        values, order = row[tokens].double().sort(descending=True, stable=True)
        tokens, values = tokens[order[:count]], values[:count]
        real = values > -torch.inf
        found.append(Candidates(tokens[real].cpu().numpy(), (values[real] - norm_of_row).cpu().numpy()))
    return found
