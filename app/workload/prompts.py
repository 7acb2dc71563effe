"""The built-in prompts, and a choice of one that comes near a wished length.

Knows lengths in tokens of the default model's tokenizer (measured once, kept beside each prompt); for another
model they are near enough for a slider that sets a mean. Knows nothing of arrivals or engines.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from importlib.resources import files

SPREAD = 0.5  # standard deviation of the logarithm of a drawn length: half of them within ×0.7 to ×1.4
NEAREST = 16  # prompts that a drawn length chooses among, so that the same length still brings variety
SHARED_AT_MOST = 0.2  # share of requests with the long common system prompt


@dataclass(frozen=True)
class Prompt:
    kind: str  # chat, code, list, summary, edit, shared
    text: str
    system: str
    tokens: int  # with the chat template


class PromptSet:
    """All built-in prompts and the passages that lengthen them."""

    def __init__(self, prompts: list[Prompt], passages: list[tuple[str, int]]):
        self.prompts = prompts
        self._passages = passages  # (text, tokens)
        self._plain = sorted((p for p in prompts if p.kind != "shared"), key=lambda p: p.tokens)
        self._shared = [p for p in prompts if p.kind == "shared"]
        self._shared_mean = sum(p.tokens for p in self._shared) / max(1, len(self._shared))

    @classmethod
    def load(cls) -> PromptSet:
        folder = files("assets") / "prompts"
        systems = json.loads((folder / "systems.json").read_text("utf-8"))
        lines = [json.loads(line) for line in (folder / "prompts.jsonl").read_text("utf-8").splitlines()]
        passages = [json.loads(line) for line in (folder / "passages.jsonl").read_text("utf-8").splitlines()]
        return cls(
            [Prompt(q["kind"], q["prompt"], systems.get(q["system"], ""), q["tokens"]) for q in lines],
            [(p["text"], p["tokens"]) for p in passages],
        )

    def choose(self, mean_tokens: float, rng: random.Random) -> Prompt:
        """A prompt; over many calls their lengths have about the mean `mean_tokens`.

        A part of them share one long system prompt. Its share shrinks with the mean, and the others are drawn
        shorter by what it adds, so that the mean is kept.
        """
        shared = min(SHARED_AT_MOST, 0.35 * mean_tokens / self._shared_mean) if self._shared else 0.0
        if rng.random() < shared:
            return rng.choice(self._shared)
        rest = (mean_tokens - shared * self._shared_mean) / (1 - shared)
        return self.near(draw_length(rest, rng), rng)

    def near(self, tokens: int, rng: random.Random) -> Prompt:
        """One of the prompts nearest to a length, lengthened by passages where it is much too short."""
        prompt = rng.choice(sorted(self._plain, key=lambda p: abs(p.tokens - tokens))[:NEAREST])
        missing = tokens - prompt.tokens
        extra: list[str] = []
        while self._passages and missing > 0:
            text, length = rng.choice(self._passages)
            words = text.split()
            taken = words[: max(1, round(len(words) * min(1.0, missing / length)))]
            extra.append(" ".join(taken))
            missing -= round(length * len(taken) / len(words)) + 2  # 2: the blank line between passages
        if not extra:
            return prompt
        text = prompt.text + "\n\nFor reference:\n\n" + "\n\n".join(extra)
        return Prompt(prompt.kind, text, prompt.system, max(tokens, prompt.tokens))


def draw_length(mean: float, rng: random.Random) -> int:
    """A length in tokens, log-normal around `mean`."""
    return max(1, round(mean * rng.lognormvariate(-SPREAD * SPREAD / 2, SPREAD)))


def more(kind: str) -> list[str]:
    """Further prompts of a kind, for loads that ask more at once than the built-in set has: none of most kinds."""
    lines = (files("assets") / "prompts" / "more.jsonl").read_text("utf-8").splitlines()
    return [line["prompt"] for line in map(json.loads, lines) if line["kind"] == kind]
