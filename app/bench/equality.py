"""When two greedy outputs count as equal, and what to say of those that don't.

Float arithmetic depends on how many rows a matrix kernel gets, so logits differ in their last bits with batch and
chunk size, and a near-tie can fall either way. Two outputs are *token-equal* when all tokens agree, or when at the
first difference the reference's own gap between its two best logits is under 5e-4. Over a set of prompts at most
1 in 20 may use that allowance, and each use is shown. Of a weight form the gap allowed is twice the form's own noise.
Knows tokens and gaps, no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

ALLOWED_GAP = 5e-4  # logits; the reference against itself, whole pass against cached decode, moves within 1e-4
ALLOWED_SHARE = 1 / 20


class Reference(msgspec.Struct, frozen=True):
    """What the reference generated after one prompt, and how close it was at each token."""

    prompt: list[int]
    tokens: list[int]
    gaps: list[float]  # best logit less second best


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token at which an output leaves the reference."""

    prompt: int  # index in the set
    prompt_tokens: int
    at: int  # index among the generated tokens
    ours: int | None  # None: the output ended early
    wanted: int
    gap: float
    allowance: float = ALLOWED_GAP

    @property
    def allowed(self) -> bool:
        return self.ours is not None and self.gap < self.allowance

    def __str__(self) -> str:
        ours = "ended" if self.ours is None else f"gave {self.ours}"
        verdict = "allowed" if self.allowed else "NOT EQUAL"
        return (
            f"prompt {self.prompt} ({self.prompt_tokens} tokens), output token {self.at}: {ours}, reference "
            f"{self.wanted} with a gap of {self.gap:.2e}: {verdict}"
        )


@dataclass(frozen=True, slots=True)
class Report:
    """A whole set compared."""

    prompts: int
    differences: list[Difference]

    @property
    def equal(self) -> bool:
        uses = len(self.differences)
        return all(d.allowed for d in self.differences) and uses <= self.prompts * ALLOWED_SHARE

    def __str__(self) -> str:
        head = f"{self.prompts - len(self.differences)} of {self.prompts} outputs agree in every token"
        return "\n".join([head, *map(str, self.differences)])


def first_difference(
    ours: Sequence[int], reference: Reference, prompt: int = 0, allowance: float = ALLOWED_GAP
) -> Difference | None:
    """None when all tokens agree. Tokens beyond the reference's end are not compared."""
    for at, (wanted, gap) in enumerate(zip(reference.tokens, reference.gaps, strict=True)):
        token = ours[at] if at < len(ours) else None
        if token != wanted:
            return Difference(prompt, len(reference.prompt), at, token, wanted, gap, allowance)
    return None


def token_equal(ours: Sequence[int], reference: Reference) -> bool:
    """One output: equal, or different first where the reference itself hardly cared."""
    difference = first_difference(ours, reference)
    return difference is None or difference.allowed


def compare(
    outputs: Sequence[Sequence[int]], references: Sequence[Reference], allowance: float = ALLOWED_GAP
) -> Report:
    """A set of outputs in the order of its references."""
    pairs = enumerate(zip(outputs, references, strict=True))
    found = [first_difference(ours, reference, i, allowance) for i, (ours, reference) in pairs]
    return Report(len(references), [difference for difference in found if difference is not None])
