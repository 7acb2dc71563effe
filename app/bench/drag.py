"""Drafting dragged about while prompts are served: what a hand at the sliders could do, faster. Knows no engine."""

from __future__ import annotations

import random
from collections.abc import Sequence

LONGEST = 8  # tokens of a draft
_EVERY = 3  # changes of the length to one of anything else


def changes(rng: random.Random, methods: Sequence[str]) -> dict[str, object]:
    """The draft length to anywhere from 0 to 8; now and then who drafts, by what policy, and what must match, too."""
    found: dict[str, object] = {"draft_length": rng.randint(0, LONGEST)}
    if rng.randrange(_EVERY):
        return found
    low = rng.randint(1, 4)
    others: list[dict[str, object]] = [
        {"draft_method": rng.choice(methods)},
        {"draft_policy": rng.choice(("fixed", "adaptive"))},
        {"ngram_min": low, "ngram_max": rng.randint(low, 8)},
    ]
    return found | rng.choice(others)
