"""The distribution that a token is drawn from, as its definition reads: one position, one token at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.records import Sampling


def penalised(
    logits: np.ndarray, prompt: Sequence[int], output: Sequence[int], repetition: float, presence: float,
    frequency: float,
) -> np.ndarray:  # fmt: skip
    """logits (vocabulary,) of what follows prompt and output."""
    out = logits.copy()
    for token in {*prompt, *output}:
        out[token] = out[token] / repetition if out[token] > 0 else out[token] * repetition
    for token in set(output):
        out[token] -= presence + frequency * list(output).count(token)
    return out


def filtered(logits: np.ndarray, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0):
    """The distribution (vocabulary,) that temperature, above 0, and filters make of logits (vocabulary,)."""
    p = np.exp((logits - logits.max()) / temperature)
    p /= p.sum()
    order = sorted(range(len(p)), key=lambda i: (-logits[i], i))
    kept = [i for i in order if p[i] >= min_p * p.max() * (1 - 1e-12)]
    if top_k:
        kept = kept[:top_k]
    share, total, left = 0.0, sum(p[i] for i in kept), []
    for i in kept:
        if share < top_p * total * (1 - 1e-12):
            left.append(i)
        share += p[i]
    out = np.zeros_like(p)
    out[left] = p[left]
    return out / out.sum()


def distribution(logits: np.ndarray, prompt: Sequence[int], output: Sequence[int], sampling: Sampling) -> np.ndarray:
    """The distribution (vocabulary,) of the token that follows; what `sampling` leaves open is off."""
    x = penalised(
        logits.astype(np.float64),
        prompt,
        output,
        1.0 if sampling.repetition_penalty is None else sampling.repetition_penalty,
        sampling.presence_penalty or 0.0,
        sampling.frequency_penalty or 0.0,
    )
    assert sampling.temperature
    return filtered(x, sampling.temperature, sampling.top_k or 0, sampling.top_p or 1.0, sampling.min_p or 0.0)
